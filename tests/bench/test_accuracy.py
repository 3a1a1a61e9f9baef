"""The contest at equal processor time: its frames, its clock, what it tells each program, its table; the programs where
they are installed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
import yaml
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from typer.testing import CliRunner

from denskit_accuracy.cli import app
from denskit_accuracy.clock import Point, pace, points_of, run_and_note, training_seconds
from denskit_accuracy.contest import Contest, errors_of
from denskit_accuracy.frames import SETS, FrameSet, elements_of, labels_of, write_frames
from denskit_accuracy.programs import PROGRAMS, Denskit, Training, steps_per_epoch, with_pythons
from denskit_accuracy.report import write_report

REFERENCES = {"H": -13.0, "O": -2000.0}
SMALL = FrameSet(settings="rmd17", train_file="a.extxyz", test_file="b.extxyz", train=6, valid=3, test=4)


def frame(number: int) -> ase.Atoms:
    """O with one to three H, an energy near the sum of references, forces that name the frame."""
    generator = np.random.default_rng(number)
    elements = ["O"] + ["H"] * (1 + number % 3)
    atoms = ase.Atoms(elements, generator.normal(size=(len(elements), 3)), info={"frame": number})
    energy = sum(REFERENCES[element] for element in elements) + 0.001 * generator.normal()
    atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=np.full((len(elements), 3), float(number)))
    return atoms


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Ten frames to train on; eight to test on, of which the first two are among the ten."""
    folder = tmp_path / "data"
    folder.mkdir()
    ase.io.write(folder / "a.extxyz", [frame(number) for number in range(10)])
    ase.io.write(folder / "b.extxyz", [frame(number) for number in range(8, 16)])
    return folder


def test_frames_are_disjoint_without_references_and_the_same_each_time(data: Path, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write_frames(SMALL, data, tmp_path / folder)
    files = {split: tmp_path / "one" / f"{split}.extxyz" for split in ("train", "valid", "test")}
    numbers = {split: [int(forces[0, 0]) for forces in labels_of(file)[1]] for split, file in files.items()}
    assert [len(found) for found in numbers.values()] == [6, 3, 4]
    assert len(set(numbers["train"]) | set(numbers["valid"])) == 9
    assert set(numbers["test"]) <= set(range(10, 16))
    for file in files.values():
        assert np.abs(labels_of(file)[0]).max() < 0.1
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
    assert elements_of(tmp_path / "one") == ["H", "O"]
    assert json.loads((tmp_path / "one" / "frames.json").read_text())["indices"]["train"] == numbers["train"]


def test_frames_that_are_there_stay(data: Path, tmp_path: Path) -> None:
    write_frames(SMALL, data, tmp_path / "frames")
    (tmp_path / "frames" / "valid.extxyz").write_text("mine")
    before = {file.name: file.read_bytes() for file in (tmp_path / "frames").iterdir()}
    (data / "a.extxyz").unlink()
    write_frames(SMALL, data, tmp_path / "frames")
    assert {file.name: file.read_bytes() for file in (tmp_path / "frames").iterdir()} == before


def test_too_few_frames_are_an_error(data: Path, tmp_path: Path) -> None:
    more = FrameSet(settings="rmd17", train_file="a.extxyz", test_file="b.extxyz", train=6, valid=3, test=7)
    with pytest.raises(ValueError, match=r"b\.extxyz: 6 frames that can be used, 7 are wanted"):
        write_frames(more, data, tmp_path / "frames")


def test_lines_carry_processor_time_and_not_waiting(tmp_path: Path) -> None:
    program = "import time; print('a'); time.sleep(0.5); print('b')\nwhile time.process_time() < 0.5: pass\nprint('c')"
    start = time.perf_counter()
    run_and_note([sys.executable, "-c", program], tmp_path / "log", {})
    assert time.perf_counter() - start > 0.5
    lines = [line.split("\t") for line in (tmp_path / "log").read_text().splitlines() if "\t" in line]
    assert [text for _, text in lines] == ["a", "b", "c"]
    a, b, c = (float(seconds) for seconds, _ in lines)
    assert b - a < 0.4
    assert c >= 0.45


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"(?s)status 3.*out of cheese"):
        run_and_note([sys.executable, "-c", "print('out of cheese'); raise SystemExit(3)"], tmp_path / "log", {})


def test_start_up_and_lost_work_are_not_training(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "--- start train\n1.00\thello\n50.00\tepoch 9 MAE 300\n70.00\tepoch 19 MAE 200\n90.00\tepoch 29 MAE 150\n"
        "--- start train again\n31.00\tepoch 24 MAE 160\n41.00\tepoch 29 MAE 140\n"
    )
    points = points_of(log, r"epoch (\d+) MAE (\d+)", first=1)
    assert points == [Point(10, 50.0, 300.0), Point(20, 70.0, 200.0), Point(25, 31.0, 160.0), Point(30, 41.0, 140.0)]
    assert pace(points) == 2.0
    assert training_seconds(points) == [20.0, 40.0, 50.0, 60.0]
    with pytest.raises(ValueError, match="1 validations in the log"):
        pace(points[:1])


def training(tmp_path: Path, data: Path, settings: str = "rmd17", minutes: float = 10) -> Training:
    write_frames(SMALL, data, tmp_path / "frames")
    folder = tmp_path / "run"
    folder.mkdir(exist_ok=True)
    return Training(
        frames=tmp_path / "frames", folder=folder, settings=settings, minutes=minutes, length=200, interval=8
    )


def test_mace_is_told_to_end_stage_one_at_the_learning_rate_of_stage_two(tmp_path: Path, data: Path) -> None:
    command = PROGRAMS["mace"]("/env/bin/python").command(training(tmp_path, data, "3bpa"))
    assert command[:2] == ["/env/bin/python", "/env/bin/mace_run_train"]
    options = dict(part.removeprefix("--").split("=", 1) for part in command[2:] if "=" in part)
    assert (options["max_num_epochs"], options["start_swa"], options["eval_interval"]) == ("201", "160", "8")
    assert float(options["lr"]) * float(options["lr_scheduler_gamma"]) ** 160 == pytest.approx(1e-3)
    assert (options["energy_weight"], options["forces_weight"]) == ("27", "1000")
    assert options["hidden_irreps"] == "64x0e + 64x1o"
    assert {"--swa", "--ema", "--amsgrad", "--restart_latest"} < set(command)


def test_nequip_gets_a_configuration_for_the_set_and_the_budget(tmp_path: Path, data: Path) -> None:
    short, long = training(tmp_path, data), training(tmp_path, data, "3bpa", 120)
    PROGRAMS["nequip"]("/env/bin/python").command(short)
    settings = yaml.safe_load((short.folder / "config.yaml").read_text())
    assert (settings["r_max"], settings["l_max"], settings["epochs"], settings["interval"]) == (4.0, 1, 200, 8)
    assert settings["elements"] == ["H", "O"]
    assert not {"sets", "minutes", "ckpt_path"} & settings.keys()
    (long.folder / "last.ckpt").touch()
    PROGRAMS["nequip"]("/env/bin/python").command(long)
    settings = yaml.safe_load((long.folder / "config.yaml").read_text())
    assert (settings["r_max"], settings["l_max"], settings["ckpt_path"]) == (5.0, 2, str(long.folder / "last.ckpt"))


@pytest.mark.parametrize("stress", [True, False])
def test_stress_is_trained_on_where_the_set_has_it(tmp_path: Path, data: Path, stress: bool) -> None:
    one = replace(training(tmp_path, data, "alloys"), stress=stress)
    said = {name: PROGRAMS[name]("/env/bin/python").command(one) for name in ("mace", "nequip", "denskit-esen")}
    assert ("--compute_stress=True" in said["mace"]) == ("--stress_key=stress" in said["mace"]) == stress
    settings = yaml.safe_load((one.folder / "config.yaml").read_text())
    assert ("stress" in settings["training_module"]["loss"]["coeffs"]) == stress and "stress" not in settings
    assert {"esen", "--resume"} < set(said["denskit-esen"])
    assert ({"model.stress=strain", "task.stress_weight=10"} <= set(said["denskit-esen"])) == stress


def test_frames_have_the_stress_that_is_asked_for(data: Path, tmp_path: Path) -> None:
    """In the sign of ASE; a file without it is an error."""
    for number, name in enumerate(("a.extxyz", "b.extxyz")):
        crystals = [bulk("Cu", cubic=True) for _ in range(10)]
        for place, atoms in enumerate(crystals):
            atoms.rattle(0.1, seed=place + 100 * number)
            labels = {"energy": 0.1 * place, "forces": np.zeros((4, 3)), "stress": 0.01 * place + np.arange(6)}
            atoms.calc = SinglePointCalculator(atoms, **labels)
        ase.io.write(tmp_path / name, crystals)
    for stress in (True, False):
        write_frames(replace(SMALL, stress=stress), tmp_path, tmp_path / f"stress {stress}")
    found = labels_of(tmp_path / "stress True" / "test.extxyz")[2]
    assert found is not None and found.shape == (4, 6)
    assert np.allclose(found - found[:, :1], np.arange(6)), "Voigt's order"
    assert labels_of(tmp_path / "stress False" / "test.extxyz")[2] is None
    with pytest.raises(ValueError, match=r"a\.extxyz: .* no stress"):
        write_frames(replace(SMALL, stress=True), data, tmp_path / "molecules")


def test_every_set_has_settings_and_every_program_its_steps() -> None:
    for name in ("mace", "nequip"):
        file = Path(sys.modules["denskit_accuracy"].__path__[0]) / "settings" / f"{name}.yaml"
        assert yaml.safe_load(file.read_text())["sets"].keys() == {one.settings for one in SETS.values()}
    assert [steps_per_epoch(program, 52) for program in PROGRAMS.values()] == [11, 11, *[1] * 7]


def test_unknown_programs_and_missing_environments_are_named() -> None:
    with pytest.raises(ValueError, match="no program 'gap'; there are mace, nequip, denskit, denskit-dens, denskit-e"):
        with_pythons(["gap"], {})
    with pytest.raises(ValueError, match="--mace-python PATH"):
        with_pythons(["mace"], {"nequip": "python"})
    assert with_pythons(["denskit"], {})["denskit"].python == sys.executable


def test_errors_are_means_over_structures_and_over_components(tmp_path: Path) -> None:
    frames = [frame(0), frame(2)]
    ase.io.write(tmp_path / "test.extxyz", frames)
    energies = np.add([atoms.get_potential_energy() for atoms in frames], [0.003, -0.001])
    forces = np.concatenate([atoms.get_forces() for atoms in frames])
    forces[0] += [0.6, 0.0, -0.3]
    np.savez(tmp_path / "found.npz", energies=energies, forces=forces)
    found = errors_of(tmp_path / "found.npz", tmp_path / "test.extxyz")
    assert found["energy_mae_meV"] == pytest.approx(2.0)
    assert found["forces_mae_meV_per_A"] == pytest.approx(900 / 18)
    assert found["forces_rmse_meV_per_A"] == pytest.approx(1000 * np.sqrt(0.45 / 18))


def test_errors_of_stress_are_means_over_nine_components(tmp_path: Path) -> None:
    """As those of denskit evaluate."""
    atoms = bulk("Cu", cubic=True)
    atoms.calc = SinglePointCalculator(atoms, energy=0.0, forces=np.zeros((4, 3)), stress=np.zeros(6))
    ase.io.write(tmp_path / "test.extxyz", atoms)
    stress = 0.001 * np.array([[1.0, 0, 0, 4.0, 0, 0]])
    np.savez(tmp_path / "found.npz", energies=np.zeros(1), forces=np.zeros((4, 3)), stresses=stress)
    found = errors_of(tmp_path / "found.npz", tmp_path / "test.extxyz")
    assert found["stress_mae_meV_per_A3"] == pytest.approx((1 + 2 * 4) / 9)


def outcome(program: str, minutes: float, forces: float) -> dict[str, object]:
    return {
        "set": "ethanol-50", "program": program, "minutes": minutes, "used_minutes": minutes, "start_seconds": 9.0,
        "length": 100, "unit": "epoch", "version": "1", "energy_mae_meV": forces / 4, "forces_mae_meV_per_A": forces,
        "forces_rmse_meV_per_A": forces, "curve": [[minutes / 2, 2 * forces], [minutes, forces]],
    }  # fmt: skip


def test_the_report_has_a_table_a_budget_and_the_best_in_bold(tmp_path: Path) -> None:
    for one in (outcome("nequip", 10, 50.0), outcome("mace", 10, 40.0), outcome("denskit", 30, 20.0)):
        folder = tmp_path / "runs" / f"{one['program']}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(one))
    text = write_report(tmp_path)
    assert text.index("ethanol-50, 10 minutes") < text.index("| mace |") < text.index("| nequip |")
    assert text.index("| nequip |") < text.index("ethanol-50, 30 minutes") < text.index("| denskit |")
    assert "| mace | **40.0** | **10.0** | 10.0 | 9 | 100 epochs | 1 |" in text
    assert "| nequip | 50.0 | 12.5 |" in text and "stress" not in text
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    strained = outcome("denskit", 10, 8.0) | {"set": "alloys-50", "stress_mae_meV_per_A3": 0.5}
    (folder / "result.json").write_text(json.dumps(strained))
    text = write_report(tmp_path)
    assert "stress MAE" in text and "| denskit | **8.00** | **2.00** | **0.50** | 10.0 |" in text
    with pytest.raises(ValueError, match="no finished training"):
        write_report(tmp_path / "nowhere")


def test_a_set_that_does_not_exist_is_named(tmp_path: Path) -> None:
    said = CliRunner().invoke(
        app, ["run", str(tmp_path), "--data", str(tmp_path), "--programs", "denskit", "--sets", "x"]
    )
    assert said.exit_code == 1
    assert "there is no set 'x'" in said.output


@pytest.mark.one_thread
@pytest.mark.parametrize("name", ["denskit", "mace", "nequip"])
def test_a_program_is_trained_and_judged(
    name: str, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("denskit_accuracy.contest.TRIAL_STEPS", 10)
    variable = f"DENSKIT_{name.upper()}_PYTHON"
    if name != "denskit" and variable not in os.environ:
        pytest.skip(f"{variable} names no Python with {name} (docs/benchmarks.md)")
    program = with_pythons([name], {name: os.environ.get(variable, "")})[name]
    contest = Contest(
        folder=tmp_path, data=data_dir, set_name="ethanol-50", program_name=name, program=program, minutes=0.2
    )
    found = contest.run()
    validation = min(error for _, error in found["curve"])
    assert found["forces_mae_meV_per_A"] == pytest.approx(validation, rel=0.3)
    assert found["curve"][-1][0] == pytest.approx(found["used_minutes"])
    contest.result.unlink()
    (tmp_path / "data").mkdir()
    again = replace(contest, data=tmp_path / "data").run()  # without frames and without training
    assert again["forces_mae_meV_per_A"] == pytest.approx(found["forces_mae_meV_per_A"], rel=1e-4)


class Tired(Denskit):
    """Ends without an error, too early."""

    def command(self, training: Training) -> list[str]:
        return [sys.executable, "-c", "print('step 40/120 valid MAE energy 1.0 meV, forces 2.0 meV/Å')"]


def test_a_program_that_ends_too_early_is_not_judged(data: Path, tmp_path: Path) -> None:
    contest = Contest(
        folder=tmp_path, data=data, set_name="ethanol-50", program_name="denskit", program=Tired(), minutes=1
    )
    write_frames(SMALL, data, contest.frames)
    contest.run_folder.mkdir(parents=True)
    with pytest.raises(ValueError, match=r"output\.log: the training ended before 120 steps; run it again"):
        contest.run()
    assert not contest.result.exists()


def test_a_budget_below_a_few_steps_is_an_error(tmp_path: Path) -> None:
    contest = Contest(
        folder=tmp_path, data=tmp_path, set_name="ethanol-50", program_name="denskit", program=PROGRAMS["denskit"](),
        minutes=0.1,
    )  # fmt: skip
    for folder, name, content in (
        (contest.frames, "frames.json", {}),
        (contest.run_folder, "length.json", {"length": 4}),
    ):
        folder.mkdir(parents=True)
        (folder / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match="0.1 minutes are enough for 4 steps of denskit on ethanol-50"):
        contest.run()
