"""One output for all verbs: --json, --quiet, --verbose, exit codes, colour, completion."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
import typer
from ase.build import molecule
from rich.console import Console

from cli_calls import denskit
from contract.variants import build
from denskit import predict
from denskit.cli import app
from denskit.cli.output import Urgent
from denskit.cli.sets import print_table
from denskit.models.model_file import save_model
from full_disk import files_limited_to

ESCAPE = "\x1b["


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and labelled frames of ethanol."""
    folder = tmp_path_factory.mktemp("output")
    save_model(folder / "model.safetensors", build("envelope", torch.float32), {})
    frames = [molecule("CH3CH2OH") for _ in range(3)]
    for index, atoms in enumerate(frames):
        atoms.rattle(0.02, seed=index)
        atoms.info["REF_energy"] = 0.1 * index
        atoms.arrays["REF_forces"] = np.random.default_rng(index).normal(size=(9, 3))
    ase.io.write(folder / "mine.extxyz", frames)
    return folder


def verbs(group: object, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from verbs(command, (*words, name))
        else:
            yield (*words, name)


@pytest.mark.parametrize("words", list(verbs(typer.main.get_command(app))), ids=" ".join)
def test_every_verb_has_the_options_of_output(words: tuple[str, ...]) -> None:
    shown = denskit(*words, "--help").output
    assert all(option in shown for option in ("--json", "--quiet", "--verbose"))


COMMANDS = {
    "info": (["info", "mine.extxyz"], {"frames", "elements", "findings"}),
    "model": (["info", "model.safetensors"], {"model", "scaling"}),
    "evaluate": (["evaluate", "model.safetensors", "mine.extxyz"], {"errors"}),
    "predict": (["predict", "model.safetensors", "mine.extxyz", "-o", "{tmp}/out.extxyz"], {"output", "structures"}),
    "relax": (["relax", "model.safetensors", "mine.extxyz", "-o", "{tmp}/relaxed", "--steps", 1], {"folder", "moves"}),
    "bench": (["bench", "model.safetensors", "mine.extxyz", "--repeats", 1], {"kernels", "predict_ms_per_structure"}),
    "doctor": (["doctor"], {"torch"}),
    "presets": (["presets"], {"presets"}),
    "settings": (["presets", "settings", "cutoff"], {"settings"}),
    "studies": (["study", "--list"], {"studies"}),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_all_of_standard_output(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    arguments, keys = COMMANDS[name]
    result = denskit(*(str(word).format(tmp=tmp_path) for word in arguments), "--json")
    assert result.exit_code in (0, 1) if name == "info" else result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert keys <= found.keys(), found.keys()
    assert "NaN" not in result.stdout


def test_an_error_is_in_the_json_too(folder: Path) -> None:
    result = denskit("evaluate", folder / "model.safetensors", folder / "absent.extxyz", "--json")
    assert result.exit_code == 1
    assert "absent.extxyz" in json.loads(result.stdout)["error"]
    assert "absent.extxyz" in result.stderr


def test_quiet_is_silent_but_for_errors(folder: Path, tmp_path: Path) -> None:
    done = denskit("predict", folder / "model.safetensors", folder / "mine.extxyz", "-o", tmp_path / "a.extxyz", "-q")
    assert (done.exit_code, done.output) == (0, "")
    failed = denskit("predict", folder / "model.safetensors", folder / "no.extxyz", "-o", tmp_path / "b.extxyz", "-q")
    assert failed.exit_code == 1 and "no.extxyz" in failed.stderr
    ase.io.write(tmp_path / "xenon.extxyz", ase.Atoms("Xe"))
    none = denskit("relax", folder / "model.safetensors", tmp_path / "xenon.extxyz", "-o", tmp_path / "none", "-q")
    assert none.exit_code == 1 and none.stdout == ""
    refused, last = none.stderr.splitlines()
    assert refused.startswith("structure 0: unknown element: ") and last == "No structure could be relaxed"


def test_quiet_lets_warnings_and_problems_through(folder: Path, tmp_path: Path) -> None:
    """Those of the verb itself, whatever it prints them with, and the reasons of parts that failed."""
    model, wrong = folder / "model.safetensors", tmp_path / "wrong.extxyz"
    frames = ase.io.read(folder / "mine.extxyz", ":")
    frames[2].positions[1] = np.nan
    ase.io.write(wrong, frames)
    looked = denskit("info", wrong, "-q")
    assert looked.exit_code == 1 and looked.stdout == ""
    assert "problem: positions or cell are NaN or infinite (frame 2)" in looked.stderr
    assert all(line.startswith("problem: ") for line in looked.stderr.splitlines())
    simulated = denskit(
        "md", model, folder / "mine.extxyz", "--steps", 20, "--timestep", 8, "-q", "-o", tmp_path / "md"
    )
    warned, ended = simulated.stderr.splitlines()
    assert simulated.exit_code == 1 and simulated.stdout == ""
    assert warned.startswith("warning: a time step of 8 fs") and ended.startswith("replica 0 became unstable at ")


def test_of_quiet_output_what_is_urgent_is_passed_on() -> None:
    """Colours and bars are left out, also where a line is written in pieces."""
    told = io.StringIO()
    urgent = Urgent(told)
    for text in (
        "reading\n", "\x1b[1;33mwarn", "ing: two\x1b[0m\n", "  lines\n", "  and one\nnote: none\n  of it\n",
        "step 1\rstep 2\r\x1b[2Ktraining data: problem: ", "units\n", "no problem found\nError: last\nstep 3",
    ):  # fmt: skip
        assert urgent.write(text) == len(text)
    assert told.getvalue().splitlines() == [
        "warning: two", "  lines", "  and one", "training data: problem: units", "Error: last",
    ]  # fmt: skip


def test_verbose_says_how_models_are_loaded_and_shows_the_traceback(folder: Path) -> None:
    arguments = ("evaluate", folder / "model.safetensors", folder / "mine.extxyz")
    for verbose in (denskit(*arguments, "-v"), denskit(*arguments)):
        assert "energy from REF_energy, forces from REF_forces" in verbose.stderr
    said = "equiformer on cpu, kernels"
    assert said in denskit(*arguments, "-v").stderr
    assert said not in denskit(*arguments).output
    assert isinstance(denskit("evaluate", folder / "none", "-v").exception, FileNotFoundError)


def test_other_reference_energies_are_noticed(folder: Path, tmp_path: Path) -> None:
    """Labels that are the model's own but for a constant; near ones give no hint."""
    model, frames = folder / "model.safetensors", [molecule("H2O") for _ in range(8)]
    for index, atoms in enumerate(frames):
        atoms.rattle(0.05, seed=index)
    energies = predict(model, frames).energy
    for name, constant in (("same", 0.0), ("other", 512.0)):
        for index, atoms in enumerate(frames):
            atoms.info["REF_energy"] = energies[index] + constant + 0.01 * (-1) ** index
        ase.io.write(tmp_path / f"{name}.extxyz", frames)
    said = {name: denskit("evaluate", model, tmp_path / f"{name}.extxyz").stdout for name in ("same", "other")}
    assert "hint: energies differ by a constant for each element" in said["other"] and "hint" not in said["same"]
    found = json.loads(denskit("evaluate", model, tmp_path / "other.extxyz", "--json").stdout)["errors"]["other"]
    assert found["energy_mae_meV"] == pytest.approx(512000, rel=1e-3)
    assert found["energy_mae_shifted_meV"] == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("columns", [None, 80], ids=["pipe", "terminal"])
def test_tables_of_errors_lose_no_letter(
    columns: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four sets and their mean, in a pipe and in a narrow terminal, where names fold."""
    if columns:
        monkeypatch.setattr("denskit.cli.sets.table_console", lambda: Console(width=columns))
    name = "forces_magnitude_mae_meV_per_A"
    print_table({f"validation_ood_{index}": {name: 115_900.0} for index in range(5)}, title="errors")
    shown = capsys.readouterr().out
    assert "…" not in shown and shown.count("1.159e+05") == 5
    assert columns or name in shown


def test_a_call_leaves_nothing_behind_for_the_next(folder: Path) -> None:
    shown = warnings.showwarning
    denskit("doctor", "--json", "-q", "-v")
    assert "torch" in denskit("doctor").stdout
    assert warnings.showwarning is shown, "a later warning would be written to a closed file"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["doctor"], 0),
        (["train", "equiformer", "data.path=absent.extxyz"], 1),
        (["train", "equiformr"], 1),
        (["predict", "model.safetensors"], 2),
        (["evaluate", "model.safetensors", "--batchsize", "3"], 2),
        (["nothing"], 2),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else str(value),
)
def test_exit_codes(arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert denskit(*arguments).exit_code == code


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """As ``denskit presets show demo | head -1``."""
    command = [sys.executable, "-m", "denskit", "presets", "show", "demo"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1


@pytest.mark.parametrize("options", [["--json"], []])
def test_a_full_disk_behind_standard_output_is_in_words(options: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "denskit", "presets", *options], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert "Error: standard output: no space left on device; it could not be written. Make room" in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_a_full_disk_is_named_by_the_file(folder: Path, tmp_path: Path) -> None:
    model, file = folder / "model.safetensors", folder / "mine.extxyz"
    with files_limited_to(1000):
        done = denskit("predict", model, file, "-o", tmp_path / "out.extxyz")
        assert done.exit_code == 1
        assert f"Error: {tmp_path / 'out.extxyz'}: file too large; it could not be written. Make room" in done.stderr
        done = denskit("md", model, file, "-o", tmp_path / "md", "--steps", 2)
        assert f"Error: {tmp_path / 'md' / 'restart.safetensors'}: file too large" in done.stderr
    assert not any(tmp_path.glob("*.extxyz"))


def test_letters_that_a_terminal_does_not_have_are_no_error(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "mit Ü.extxyz"
    file.write_bytes((folder / "mine.extxyz").read_bytes())
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for options in ([], ["--json"]):
        command = [sys.executable, "-m", "denskit", "info", str(file), *options]
        done = subprocess.run(command, capture_output=True, env=env)
        assert b"codec" not in done.stderr, done.stderr
    assert json.loads(done.stdout)["frames"] == 3


def test_errors_of_the_system_are_in_words(folder: Path) -> None:
    inside = folder / "mine.extxyz" / "out.extxyz"  # a file is no folder
    done = denskit("predict", folder / "model.safetensors", folder / "mine.extxyz", "-o", inside)
    assert done.exit_code == 1
    assert f"Error: {folder / 'mine.extxyz'}: file exists" in done.stderr


def test_errors_of_the_cache_name_its_setting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(folder / "cache" / "unpacked"))

    monkeypatch.setattr("denskit.evaluation.evaluate.predict_each", refused)
    words = ("predict", folder / "model.safetensors", folder / "mine.extxyz", "-o", folder / "cached.extxyz")
    assert "DENSKIT_CACHE" not in denskit(*words).stderr
    monkeypatch.setenv("DENSKIT_CACHE", str(folder / "cache"))
    told = f"read-only file system. This is in the cache folder, {folder / 'cache'}: DENSKIT_CACHE"
    assert told in denskit(*words).stderr


def test_ctrl_c_in_any_verb_is_130(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("denskit.evaluation.evaluate.predict_each", interrupted)
    out = folder / "interrupted.extxyz"
    assert denskit("predict", folder / "model.safetensors", folder / "mine.extxyz", "-o", out).exit_code == 130
    assert not out.exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_training_with_its_code(number: int, code: int, tmp_path: Path) -> None:
    """The first line of numbers shows that the training runs, long before ``training.log_every`` steps."""
    settings = ["data=embedded", "data.molecule=ethanol", "training.max_steps=100000", f"output={tmp_path / 'run'}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "denskit", "train", "demo", *settings],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("step 1/"):
            process.send_signal(number)
            break
    rest, errors = process.communicate()
    assert process.returncode == code, "".join(lines) + rest + errors
    assert "Continue with the same command" in rest


def test_a_signal_of_a_batch_system_leaves_no_half_written_file(folder: Path) -> None:
    frames = ase.io.read(folder / "mine.extxyz", ":")
    ase.io.write(folder / "many.extxyz", frames * 2000)
    words = [
        "predict",
        folder / "model.safetensors",
        folder / "many.extxyz",
        "-o",
        folder / "out.extxyz",
        "--batch-size",
        "1",
    ]
    process = subprocess.Popen([sys.executable, "-m", "denskit", *map(str, words)], stderr=subprocess.PIPE, text=True)
    partial = folder / ".out.partial.extxyz"
    while not (partial.is_file() and partial.stat().st_size):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert process.returncode == 143 and errors.splitlines()[-1] == "Stopped"
    assert not partial.exists() and not (folder / "out.extxyz").exists()


def test_control_characters_of_files_do_not_reach_the_terminal(folder: Path, tmp_path: Path) -> None:
    text = (folder / "mine.extxyz").read_text().replace("REF_energy", 'energy_unit="\x1b]0;owned\x07" REF_energy')
    (tmp_path / "hostile.extxyz").write_text(text)
    told = denskit("info", tmp_path / "hostile.extxyz")
    assert "\\x1b]0;owned\\x07" in told.output and not set("\x1b\x07") & set(told.output)


def test_there_is_no_colour_without_a_terminal_and_with_no_color(folder: Path) -> None:
    code = "from denskit.cli import app; app()"
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    for words, changes in ((["doctor"], {"NO_COLOR": "1"}), (["evaluate", "absent"], {}), (["--help"], {})):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=plain | changes)
        assert ESCAPE not in done.stdout + done.stderr


def test_bash_completes_verbs_and_options() -> None:
    def completed(*words: str) -> list[str]:
        env = {
            **os.environ, "_DENSKIT_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(("denskit", *words)),
            "COMP_CWORD": str(len(words)),
        }  # fmt: skip
        code = "import sys; sys.argv[0] = 'denskit'; from denskit.cli import app; app(prog_name='denskit')"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env).stdout.split()

    assert {"predict", "presets"} <= set(completed("pre"))
    assert "--json" in completed("predict", "--")


def test_what_is_urgent_is_known_by_the_beginning_of_its_line() -> None:
    stream = io.StringIO()
    urgent = Urgent(stream)
    for text in (
        "C:\\x.extxyz: problem: no forces\n  below\nok: fine\n",
        "no warning: of x",
        "\n",
        "Error: at the end",
    ):
        urgent.write(text)
    urgent.write("\n")
    assert stream.getvalue().splitlines() == ["C:\\x.extxyz: problem: no forces", "  below", "Error: at the end"]
    Urgent(None).write("Error: nobody listens\n")


def test_quiet_with_a_closed_standard_error(folder: Path) -> None:
    """As a shell closes it, 2>&-: the results are there all the same."""
    command = f"exec {sys.executable} -m denskit info {folder / 'mine.extxyz'} --quiet --json 2>&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["frames"] == 3 and "error" not in json.loads(done.stdout)
