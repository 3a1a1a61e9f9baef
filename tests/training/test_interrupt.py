"""Ctrl-C, SIGTERM, SIGHUP and SIGUSR1, sent for real to a training in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from denskit.runtime.run_state import progress_of
from denskit.training.checkpoint import load_checkpoint
from denskit.training.load_config import RunConfig
from denskit.training.run import train
from training.same_runs import assert_same_runs, rows_of

from tolerances import PATIENCE_S

pytestmark = pytest.mark.one_thread
SCRIPT = """
import sys

from denskit.training import load_config, run

run.train(load_config.load_config(sys.argv[1]), progress=True)
"""
ON_A_TERMINAL = """
import fcntl, termios

fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # the terminal of this process, which gets SIGHUP when it is closed
"""
CASES = {
    "Ctrl-C": (signal.SIGINT, 1, 130),
    "SIGTERM": (signal.SIGTERM, 1, 143),
    "SIGUSR1 of a batch system": (signal.SIGUSR1, 1, 138),
    "SIGHUP of a closed terminal": (signal.SIGHUP, 1, 129),
    "SIGTERM to torchrun": (signal.SIGTERM, 2, None),
}


@pytest.fixture(autouse=True)
def _hung_up() -> Iterator[None]:
    """Processes that are started here end by SIGHUP, also where this one runs under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("case", CASES)
def test_a_signal_saves_and_says_how_to_go_on(tiny: Callable[..., RunConfig], tmp_path: Path, case: str) -> None:
    number, processes, code = CASES[case]
    config = tiny("training.max_steps=100000", "training.log_every=1", "training.evaluate_every=100000 steps")
    file, script = tmp_path / "run.yaml", tmp_path / "script.py"
    file.write_text(yaml.safe_dump(config.document()))
    script.write_text(SCRIPT)
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"] if processes > 1 else []
    process = subprocess.Popen(
        [sys.executable, *launcher, str(script), str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    metrics = Path(config.output) / "metrics.csv"
    deadline = time.monotonic() + PATIENCE_S
    try:
        while not (metrics.exists() and len(metrics.read_text().splitlines()) > 2):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)
        process.send_signal(number)
        output, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.terminate()
    step = load_checkpoint(Path(config.output) / "checkpoints/last.pt").step
    assert step >= 2
    assert f"stopped after step {step} of 100000" in output
    assert progress_of(Path(config.output)) == (step, 100000)
    assert "--resume" in output
    assert (Path(config.output) / "checkpoints/last.safetensors").exists()
    if code is not None:  # torchrun has codes and tracebacks of its own
        assert process.returncode == code, errors
        assert "Traceback" not in errors
        shorter = config.model_copy(update={"training": config.training.model_copy(update={"max_steps": step + 1})})
        train(shorter, resume=True)
        assert load_checkpoint(Path(config.output) / "checkpoints/last.pt").step == step + 1


@pytest.mark.parametrize("steps", [5, 7])
def test_a_signal_does_not_wait_for_a_validation(tiny: Callable[..., RunConfig], steps: int) -> None:
    """It is the first work after a resume, and the run is the same; also at the last step."""
    settings = [f"training.max_steps={steps}", "training.log_every=2", "training.ema_decay=0.9"]
    whole, config = train(tiny(*settings, name="whole")), tiny(*settings)

    def stop(row: dict[str, float | int]) -> None:
        if row["step"] == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit, match="143"):
        train(config, on_row=stop)
    run = Path(config.output)
    assert load_checkpoint(run / "checkpoints/last.pt").step == 5
    assert [row["step"] for row in rows_of(run)] == ["2", "4"]
    assert_same_runs(whole, train(config, resume=True))


@pytest.mark.skipif(sys.platform != "linux", reason="terminals as Linux closes them")
def test_a_closed_terminal_saves(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    """SIGHUP comes, and nothing more can be written to the terminal, neither the log nor the progress bar."""
    config = tiny("training.max_steps=100000", "training.log_every=1", "training.evaluate_every=100000 steps")
    file, script = tmp_path / "run.yaml", tmp_path / "script.py"
    file.write_text(yaml.safe_dump(config.document()))
    script.write_text(ON_A_TERMINAL + SCRIPT)
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, str(script), str(file)], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    os.set_blocking(ours, False)
    log = Path(config.output) / "train.log"
    deadline = time.monotonic() + PATIENCE_S
    while not (log.is_file() and "step 4/" in log.read_text(encoding="utf-8")):
        assert process.poll() is None and time.monotonic() < deadline
        with suppress(BlockingIOError):
            os.read(ours, 2**16)  # a full terminal would block the training
        time.sleep(0.05)
    os.close(ours)
    assert process.wait(PATIENCE_S) == 129
    step = load_checkpoint(Path(config.output) / "checkpoints/last.pt").step
    assert step >= 4 and f"stopped after step {step} of 100000" in log.read_text(encoding="utf-8")
