"""Trainings of several processes that the program starts itself, or a SLURM job."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from denskit.training.checkpoint import load_checkpoint

from tolerances import ENDED_S, PATIENCE_S

pytestmark = pytest.mark.one_thread
TINY = Path(__file__).parents[1] / "training" / "tiny.yaml"
DENSKIT = [sys.executable, "-m", "denskit", "train", str(TINY), "device=cpu"]


@pytest.fixture(autouse=True)
def _hung_up() -> Iterator[None]:
    """Processes that are started here end by SIGHUP, also where this one runs under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


LATE = """
import os, time
stat = os.stat
def late(path, *arguments, **named):
    if os.environ.get("RANK") == "SLOWER" and str(path).endswith("absent.extxyz"):
        time.sleep(1)
    return stat(path, *arguments, **named)
os.stat = late
"""


def started(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*DENSKIT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )  # fmt: skip


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    runs = [started(f"output={tmp_path / name}", *more) for name, more in (("one", []), ("two", ["--processes", "2"]))]
    for run in runs:
        _, errors = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 0, errors
    name = "valid_forces_mae_meV_per_A"
    rows = [list(csv.DictReader((tmp_path / run / "metrics.csv").open())) for run in ("one", "two")]
    one, two = (float(read[-1][name]) for read in rows)
    assert two == pytest.approx(one, rel=1e-3)
    assert json.loads((tmp_path / "two" / "environment.json").read_text(encoding="utf-8"))["processes"] == 2


def test_a_forecast_for_two_processes_is_timed_by_two(tmp_path: Path) -> None:
    """Printed once, here for scripts; nothing is written."""
    asked = [f"output={tmp_path / 'run'}", "--dry-run", "--processes", "2", "--json"]
    found = json.loads(started(*asked).communicate(timeout=PATIENCE_S)[0])
    assert found["config"]["training"]["max_steps"] == 10
    assert found["expected"].count("of training on 2 processes, at ") == 1, found
    assert not (tmp_path / "run").exists()


def test_a_forecast_under_torchrun_is_printed_once(tmp_path: Path) -> None:
    """As by several processes of which each knows its rank."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *DENSKIT[1:]]
    said = subprocess.run(
        [*torchrun, f"output={tmp_path / 'run'}", "--dry-run"], env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert yaml.safe_load(said.stdout)["training"]["max_steps"] == 10
    assert said.stdout.count("max_steps:") == 1
    assert said.stderr.count("of training on 2 processes, at ") == 1, said.stderr


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    log = tmp_path / "run" / "train.log"
    run = started(f"output={tmp_path / 'run'}", "training.max_steps=100000", "--processes", "2")
    while not (log.is_file() and "step 4/" in log.read_text(encoding="utf-8")):
        assert run.poll() is None, run.communicate()
        time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    said, _ = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 130
    assert "Continue with the same command" in said
    assert load_checkpoint(tmp_path / "run" / "checkpoints" / "last.pt").step >= 4


@pytest.mark.parametrize("slower", [0, 1])
def test_an_error_is_said_once(tmp_path: Path, slower: int) -> None:
    """Whichever process fails first."""
    late = LATE.replace("SLOWER", str(slower))
    (tmp_path / "sitecustomize.py").write_text(late, encoding="utf-8")
    data = ("data.name=file", "data.molecule=null", "data.train=absent.extxyz")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    run = started(*data, f"output={tmp_path / 'run'}", "--processes", "2", PYTHONPATH=path)
    _, errors = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 1
    assert errors.count("absent.extxyz") == 1, errors


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are found in /proc")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_others(tmp_path: Path, victim: int) -> None:
    """Also the first, which speaks for all: how to go on is said."""
    log = tmp_path / "run" / "train.log"
    run = started(f"output={tmp_path / 'run'}", "training.max_steps=100000", "--processes", "2")
    while not (log.is_file() and "step 4/" in log.read_text(encoding="utf-8")):
        assert run.poll() is None, run.communicate()
        time.sleep(0.2)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text(encoding="utf-8").split()
    os.kill(int(children[victim]), signal.SIGKILL)
    killed = time.monotonic()
    _, errors = run.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - killed < ENDED_S
    assert run.returncode == 128 + signal.SIGKILL
    assert ("lost process 1" in errors) == (victim == 1)
    assert f"process {victim} was ended by signal 9 (SIGKILL), perhaps for want of memory. Continue with" in errors


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of the end of its parent")
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_processes_save_and_end_with_the_one_that_started_them(tmp_path: Path, number: signal.Signals) -> None:
    """Its terminal is closed, or it is killed."""
    log = tmp_path / "run" / "train.log"
    run = started(f"output={tmp_path / 'run'}", "training.max_steps=100000", "--processes", "2")
    while not (log.is_file() and "step 4/" in log.read_text(encoding="utf-8")):
        assert run.poll() is None, run.communicate()
        time.sleep(0.2)
    run.send_signal(number)
    run.communicate(timeout=PATIENCE_S)  # to the end of the children, too, who have its standard output
    assert run.returncode == (-9 if number == signal.SIGKILL else 129)
    assert "stopped after step" in log.read_text(encoding="utf-8")
    assert load_checkpoint(tmp_path / "run" / "checkpoints" / "last.pt").step >= 4


def test_a_slurm_script_trains_and_is_queued_again_after_the_signal(tmp_path: Path) -> None:
    """With stand-ins for the commands of SLURM; the training saves at the signal, and a second job continues it."""
    output, queued = tmp_path / "run", tmp_path / "queued"
    printed = started(f"output={output}", "training.max_steps=100000", "--slurm").communicate(timeout=PATIENCE_S)[0]
    script = tmp_path / "job.sh"
    script.write_text(printed, encoding="utf-8")
    stand_ins = {
        "srun": f'[ "$1 $2" = "--cpus-per-task 2" ] || exit 9\nshift 2\necho $$ > {tmp_path}/step\nexec "$@"',
        "scancel": f'kill -TERM "$(cat {tmp_path}/step)"',
        "scontrol": f'if [ "$1" = show ]; then echo 127.0.0.1; else echo "$2" >> {queued}; fi',
        "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
    }
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    slurm = {
        "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "here", "SLURM_GPUS_ON_NODE": "2",
        "SLURM_CPUS_PER_TASK": "2", "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }  # fmt: skip
    assert f"#SBATCH --output={output}.slurm.log" in printed
    job = subprocess.Popen(["bash", str(script)], env=os.environ | slurm, cwd=tmp_path)  # it goes to the folder itself
    log = output / "train.log"
    while not (log.is_file() and "step 4/" in log.read_text(encoding="utf-8")):
        assert job.poll() is None
        time.sleep(0.2)
    job.send_signal(signal.SIGTERM)
    job.wait(PATIENCE_S)
    assert queued.read_text(encoding="utf-8").split() == ["7"]
    assert "stopped after step" in log.read_text(encoding="utf-8")
    assert " on 2 x cpu" in log.read_text(encoding="utf-8")
