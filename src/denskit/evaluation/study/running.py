"""Running a study: one training in this process, or all missing trainings side by side in processes of their own."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from denskit.evaluation.denoising import noise_error
from denskit.evaluation.evaluate import evaluate
from denskit.evaluation.study.config import StudyConfig, StudyRun, runs_of
from denskit.evaluation.study.splits import split_settings
from denskit.files import write_json
from denskit.models.model_file import read_header
from denskit.tasks import denoises
from denskit.training.run import train
from denskit.training.run_folder import RunFolder

State = Literal["waiting", "running", "done", "failed"]
_POLL = 0.5  # s


@dataclass(frozen=True)
class StudyFolder:
    """Paths of a study's results."""

    path: Path

    def run(self, run: StudyRun) -> Path:
        """Run folder of one training."""
        return self.path / "runs" / run.name

    def result(self, run: StudyRun) -> Path:
        """Errors of one training; the file exists once the run is trained and judged."""
        return self.run(run) / "result.json"

    def log(self, run: StudyRun) -> Path:
        """Output of its process."""
        return self.path / "logs" / f"{run.name}.log"

    @property
    def splits(self) -> Path:
        """Folder of split files."""
        return self.path / "splits"


def train_and_judge(
    study: StudyConfig, run: StudyRun, folder: StudyFolder, *, progress: bool = False
) -> dict[str, Any]:
    """Train one run, or continue it, judge it on the test split and the study's other tests, and write result.json.

    ``progress``: as of :func:`train`.  Raises as :func:`train` and :func:`evaluate`.
    """
    path = folder.run(run)
    config = run.config(path, split_settings(study, run, folder.splits))
    train(config, resume=True, progress=progress)
    header = read_header(RunFolder(path).model)
    errors = {"test": evaluate(path)} if _has_test_split(path) else {}
    errors |= {name: evaluate(path, file) for name, file in study.tests.items()}
    if not errors:
        raise ValueError(f"{path}: no test split and no tests: in the study; nothing to judge the run on")
    result: dict[str, Any] = {
        "errors": errors,
        "parameters": header["parameters"],
        "seconds": seconds_of_run(path),
        "steps": header["metadata"]["step"],
    }
    if denoises(config.task) and "test" in errors:
        result["noise"] = noise_error(path)
    write_json(folder.result(run), result)
    return result


def _has_test_split(path: Path) -> bool:
    splits = RunFolder(path).splits
    if splits.is_file():
        return bool(json.loads(splits.read_text(encoding="utf-8"))["test"])
    return True  # data.test, or the dataset's own


def seconds_of_run(path: Path) -> float:
    """Training time of a run, s."""
    with RunFolder(path).metrics.open(newline="") as stream:
        return float(list(csv.DictReader(stream))[-1]["seconds"])


@dataclass
class Job:
    """A run of the study and its state."""

    number: int
    run: StudyRun
    state: State
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)


def run_all(
    study: StudyConfig,
    command: Callable[[int], Sequence[str]],
    folder: StudyFolder,
    *,
    processes: int,
    watch: Callable[[list[Job]], None],
) -> list[Job]:
    """Run the missing trainings, ``processes`` at a time, each with one thread; returns all jobs.

    ``command``: the command line of run number k.  ``watch`` is called about twice a second.  On Ctrl-C and SIGTERM the
    running trainings save their state and end, and KeyboardInterrupt(signal) is raised.
    """
    jobs = [
        Job(number=number, run=run, state="done" if folder.result(run).is_file() else "waiting")
        for number, run in enumerate(runs_of(study))
    ]
    with _ended_together(jobs):
        while any(job.state in ("waiting", "running") for job in jobs):
            _collect(jobs, folder)
            free = processes - sum(job.state == "running" for job in jobs)
            for job in [job for job in jobs if job.state == "waiting"][: max(free, 0)]:
                _start(job, command(job.number), folder)
            watch(jobs)
            time.sleep(_POLL)
    watch(jobs)
    return jobs


def _start(job: Job, command: Sequence[str], folder: StudyFolder) -> None:
    log = folder.log(job.run)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        job.process = subprocess.Popen(
            [sys.executable, "-m", "denskit", *command],
            stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C reaches us alone; we pass it on once
        )  # fmt: skip
    job.state = "running"


def _collect(jobs: Sequence[Job], folder: StudyFolder) -> None:
    for job in jobs:
        if job.process is not None and job.state == "running" and job.process.poll() is not None:
            job.state = "done" if folder.result(job.run).is_file() else "failed"


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


@contextmanager
def _ended_together(jobs: Sequence[Job]) -> Iterator[None]:
    """SIGTERM acts like Ctrl-C; when the block is left early, the running trainings save their state and end."""
    # also SIGINT, which shells ignore in what they run in the background
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        running = [job.process for job in jobs if job.process is not None and job.process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait()
