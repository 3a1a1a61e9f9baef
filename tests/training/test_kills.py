"""Trainings killed by SIGKILL between any two of their operations on files, and the lock of a run folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from denskit.reading.documents import read_json
from denskit.training.checkpoint import load_checkpoint
from denskit.training.load_config import RunConfig
from denskit.training.run import train
from denskit.training.run_folder import RunFolder
from killing import command, posix, run, spread
from training.same_runs import assert_same_runs, rows_of

SETTINGS = (
    "device=cpu", "training.checkpoint_every=7 steps", "training.evaluate_every=2 steps", "training.ema_decay=0.9",
)  # fmt: skip
POINTS = 5
pytestmark = pytest.mark.one_thread


@posix
def test_a_killed_training_ends_as_one_that_was_not(tiny_file: Path, tmp_path: Path) -> None:
    """Killed at points spread over the run, and once more while it goes on."""
    whole = tmp_path / "whole"
    operations = run(whole, command, "train", tiny_file, f"output={whole}", *SETTINGS)
    for number, point in enumerate(spread(operations, POINTS)):
        folder = tmp_path / f"killed_{point}"
        order = ("train", tiny_file, f"output={folder}", *SETTINGS)
        run(folder, command, *order, kill_at=point)
        if number % 2:
            run(folder, command, *order, "--resume", kill_at=20)
        run(folder, command, *order, "--resume")
        assert_same_runs(whole, folder)


@posix
def test_a_run_is_not_joined_by_another_process(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    config = tiny("training.max_steps=2", "training.checkpoint_every=1 step")
    folder = Path(config.output)
    train(config)
    before = (folder / "metrics.csv").read_bytes()
    script = "import sys; from pathlib import Path; from denskit.files import locked\n" \
        "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"  # fmt: skip
    running = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "held\n"
    with pytest.raises(ValueError, match=rf"run is in use by process {running.pid} on \S+\. Wait until it ends"):
        train(config, resume=True)
    assert (folder / "metrics.csv").read_bytes() == before
    running.kill()
    running.communicate()
    assert (folder / ".lock").exists()  # which holds nobody up
    train(tiny("training.max_steps=3", "training.checkpoint_every=1 step"), resume=True)
    assert not (folder / ".lock").exists()


@posix
def test_a_refused_start_leaves_no_folder(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    config = tiny("data.split.train=100000")
    with pytest.raises(ValueError, match="100000"):
        train(config)
    assert not Path(config.output).exists()


def test_a_fresh_start_in_a_killed_run_says_how_to_go_on(tiny: Callable[..., RunConfig]) -> None:
    config = tiny("training.max_steps=1")
    folder = RunFolder(Path(config.output))
    folder.write_start(config)  # killed before the checkpoint of step 0
    with pytest.raises(ValueError, match="holds a run; continue it with --resume"):
        train(config)
    train(config, resume=True)
    assert load_checkpoint(folder.last).step == 1


def test_a_row_that_a_full_disk_cut_is_forgotten(tiny: Callable[..., RunConfig]) -> None:
    folder = train(tiny("training.max_steps=2"))
    whole = (folder / "metrics.csv").read_text()
    (folder / "metrics.csv").write_text(whole + "1,0,0.3")  # of step 1000 or so
    train(tiny("training.max_steps=4"), resume=True)
    assert [row["step"] for row in rows_of(folder)] == ["2", "4"]


def test_the_command_that_began_a_run_stays_on_record(
    tiny: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beside those that resume it, and a damaged record ends none."""
    config = tiny("training.max_steps=1")
    folder = RunFolder(Path(config.output))
    for words in (["train", "demo"], ["train", "run", "--resume"], ["train", "run", "--resume"]):
        monkeypatch.setattr("denskit.training.run_folder.environment", lambda words=words: {"command": words})
        folder.write_start(config)
    assert read_json(folder.environment) == {"command": words, "begun_by": ["train", "demo"]}
    folder.environment.write_text("{", encoding="utf-8")
    folder.write_start(config)
    assert read_json(folder.environment) == {"command": words}
