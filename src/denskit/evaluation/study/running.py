"""Running a study: one training in this process, or all missing trainings side by side in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from denskit.evaluation.denoising import NothingDrawnError, noise_error
from denskit.evaluation.study.config import FRAMES, StudyConfig, is_written, load_study, write_study
from denskit.evaluation.study.data import (
    require_files,
    require_given,
    require_same_inputs,
    split_settings,
    training_files,
)
from denskit.evaluation.study.judges import asked_of, judge, left_to_judge, on_test_split, require_judgeable
from denskit.evaluation.study.presets_then import require_same_models
from denskit.evaluation.study.runs import StudyRun, runs_of
from denskit.files import is_locked, locked, write_json
from denskit.models.model_file import read_header
from denskit.runtime.children import start_denskit
from denskit.runtime.interrupt import raised
from denskit.settings import dotted
from denskit.tasks import denoises
from denskit.training.overview import metrics_of
from denskit.training.run import train
from denskit.training.run_folder import RunFolder

State = Literal["waiting", "running", "elsewhere", "done", "failed"]  # elsewhere: in a process of another command
Values = tuple[Any, ...] | dict[Any, dict[str, Any]]  # of an axis
_POLL = 0.5  # s
_PREPARED = ("trials", "splits", "inputs")  # folders of a study beside its runs
MAY_CHANGE = {  # trained runs stay what they are
    "seeds", "title", "published", "tests", "mean_of_tests", "best_of", "committees", "simulation", "relaxation",
    "needs",
}  # fmt: skip


class StudyFolder:
    """Paths of a study's results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.study = path / "study.yaml"  # with what was given on the command line
        self.draft = path / "draft.yaml"  # of a question that has no length yet, or of a dry run
        self.splits = path / "splits"  # folder of split files

    def keep(self, study: StudyConfig, *, draft: bool = False) -> tuple[Path, StudyConfig, list[str]]:
        """Write the study beside its results, so that a later call cannot mix them with those of another.

        Seeds, tests and the like may change; variants, and values of an axis, may be added.  Earlier seeds stay, since
        a printed script may still train them.  A study without trainings is replaced, with its trials and splits.
        Returns the file, its study, and messages.  ``draft``: the file is one beside a study that has trained.
        Raises ValueError for the folder of another study, and where a preset has changed since its runs began; and as
        :meth:`require_own`.
        """
        self.require_own()
        before = load_study(self.study) if self.study.is_file() else study
        said: list[str] = []
        if (unlike := _unlike(study, before)) is not None:
            self.forget(
                f"holds the results of another study ({self.study}): {unlike}. Seeds, tests and how to judge may "
                f"change, variants and values of an axis (not of {FRAMES}) may be added; for another study give "
                "another --output, or remove the folder"
            )
        elif self.has_begun():
            study, said = _with_all_that_was_asked(study, before, self.study)
            require_same_models(study, self.run)
        file = self.draft if draft and self.has_begun() else self.study
        if file == self.study:
            return file, study, [*said, *self.write(study)]
        write_study(study, file)
        return file, study, said

    def write(self, study: StudyConfig) -> list[str]:
        """Write the study's file; one by hand keeps its text, beside it where it differs.  Returns messages."""
        said = []
        if self.study.is_file() and not is_written(self.study):
            if load_study(self.study) == study:  # with its comments
                return []
            taken = sum(1 for _ in self.path.glob("study_before*.yaml"))
            by_hand = self.path / f"study_before{f'_{taken + 1}' if taken else ''}.yaml"
            said = [f"{self.study} as it was is {self.study.replace(by_hand)} now"]
        write_study(study, self.study)
        return said

    def require_own(self) -> None:
        """Raise ValueError where names that a study takes are others': what is removed later was written here."""
        if (self.study.is_file() and self.has_begun()) or is_written(self.study) or is_written(self.draft):
            return
        taken = [name for name in (*_PREPARED, "runs", self.draft.name) if (self.path / name).exists()]
        if taken and not (self.study.is_file() and taken == ["trials"]):  # of a study by hand that was timed
            raise ValueError(
                f"{self.path} holds {', '.join(taken)} and no study of denskit; give another --output (nothing changed)"
            )

    def clear(self, study: StudyConfig) -> None:
        """Remove the study, its runs and what was prepared for them; files of others stay."""
        for run in runs_of(study):
            shutil.rmtree(self.run(run), ignore_errors=True)
        self.forget("holds trainings of another study, too; give another --output, or remove the folder")
        self.study.unlink(missing_ok=True)

    def forget(self, otherwise: str) -> None:
        """Remove what is prepared here.  Raises ValueError, with ``otherwise``, where a study has trained or works."""
        if self.has_begun():
            raise ValueError(f"{self.path} {otherwise}")
        for prepared in _PREPARED:
            shutil.rmtree(self.path / prepared, ignore_errors=True)

    def has_begun(self) -> bool:
        """Whether there are trainings here, or a command is at work."""
        locks = (self.path, *(self.path / "locks").glob("*"))
        return any((self.path / "runs").glob("*")) or any(map(is_locked, locks))

    def run(self, run: StudyRun) -> Path:
        """Run folder of one training."""
        return self.path / "runs" / run.name

    def result(self, run: StudyRun) -> Path:
        """Errors of one training; the file exists once the run is trained and judged."""
        return self.run(run) / "result.json"

    def judged(self, run: StudyRun) -> dict[str, Any]:
        """What :meth:`result` holds; empty before the run is trained."""
        path = self.result(run)
        return json.loads(path.read_text("utf-8")) if path.is_file() else {}

    def finished(self, study: StudyConfig, run: StudyRun) -> bool:
        """Whether a run is trained, and judged on the tests of the study as it is now."""
        found = self.judged(run)
        return bool(found) and not left_to_judge(study, found)

    def require_inputs(self, study: StudyConfig) -> None:
        """Raise FileNotFoundError for missing files; ValueError for none, and for one that has changed since."""
        require_given(study)
        require_files(study)
        begun = (self.inputs(run) for run in runs_of(study))
        require_same_inputs(json.loads(path.read_text("utf-8")) for path in begun if path.is_file())

    def inputs(self, run: StudyRun) -> Path:
        """The files that a run has trained on, by content; written when it begins."""
        return self.path / "inputs" / f"{run.name}.json"

    def log(self, run: StudyRun) -> Path:
        """Output of its process."""
        return self.path / "logs" / f"{run.name}.log"

    def lock(self, run: StudyRun) -> Path:
        """Folder whose lock is held while a process trains or judges a run."""
        return self.path / "locks" / run.name


def _unlike(study: StudyConfig, before: StudyConfig) -> str | None:
    """What keeps the runs of a study as it was ``before`` from being runs of the study, on the same structures."""
    may_grow = MAY_CHANGE | {"axes", "variants"}
    then, now = (dict(dotted(one.model_dump(exclude=may_grow))) for one in (before, study))
    if changed := next((key for key in {**then, **now} if then.get(key) != now.get(key)), None):
        return f"{changed}: {then.get(changed, 'not given')} then, {now.get(changed, 'not given')} now"
    if before.axes.get(FRAMES) != study.axes.get(FRAMES):  # smaller sets are nested in the largest
        return f"axes.{FRAMES}: {_values(before, FRAMES)} then, {_values(study, FRAMES)} now"
    for name, settings in before.variants.items():
        if study.variants.get(name) != settings:
            return f"variants.{name}: {settings} then, {study.variants.get(name, 'absent')} now"
    runs = {run.name: run for run in runs_of(study.model_copy(update={"seeds": before.seeds}))}
    if all(runs.get(run.name) == run for run in runs_of(before)):
        return None
    if list(before.axes) != list(study.axes):
        return f"axes: {', '.join(before.axes) or 'none'} then, {', '.join(study.axes) or 'none'} now"
    for axis, values in before.axes.items():
        if not _holds(study.axes[axis], values):
            return f"axes.{axis}: {_values(before, axis)} then, {_values(study, axis)} now"
    return "its settings are written in another way"


def _values(study: StudyConfig, axis: str) -> str:
    values = study.axes.get(axis, "absent")
    return str(list(values) if isinstance(values, tuple) else values)


def _holds(values: Values, before: Values) -> bool:
    """Whether an axis has all values that it had, and what goes with them."""
    if isinstance(values, dict) and isinstance(before, dict):
        return all(value in values and values[value] == settings for value, settings in before.items())
    texts, texts_before = ({*map(repr, each)} for each in (values, before))  # 1.0 has another folder than 1
    return type(values) is type(before) and texts_before <= texts


def _with_all_that_was_asked(study: StudyConfig, before: StudyConfig, file: Path) -> tuple[StudyConfig, list[str]]:
    """The study with the seeds that it had before, and what of that one it has or lacks, in words."""
    said = []
    if missing := [seed for seed in before.seeds if seed not in study.seeds]:
        study = study.model_copy(update={"seeds": (*study.seeds, *missing)})
        seeds = f"seed{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        said.append(f"note: the study keeps {seeds}, which it was given before; for fewer edit {file}")
    if left := [name for name in before.tests if name not in study.tests]:
        said.append(
            f"note: {', '.join(left)} is no longer among the tests; its errors are kept, and come back with tests.NAME"
        )
    return study, said


def train_and_judge(
    study: StudyConfig, run: StudyRun, folder: StudyFolder, *, progress: bool = False
) -> dict[str, Any]:
    """Train one run, or continue it, judge it on all that the study asks, and write result.json.

    A trained run is judged on tests that were added since.  Raises as :func:`train` and :func:`evaluate`; ValueError
    where another process is at work on the run, and for missing or changed files.  ``progress``: as of :func:`train`.
    """
    folder.require_inputs(study)
    if folder.finished(study, run):
        return folder.judged(run)
    with locked(folder.lock(run)):
        return _train_and_judge(study, run, folder, progress=progress)


def _train_and_judge(study: StudyConfig, run: StudyRun, folder: StudyFolder, *, progress: bool) -> dict[str, Any]:
    path, before = folder.run(run), folder.judged(run)
    config = run.config(path, split_settings(study, run, folder.splits))
    if not before:
        if not RunFolder(path).last.is_file():  # a run that has begun was asked
            require_judgeable(study, config)
        if not folder.inputs(run).is_file():
            folder.inputs(run).parent.mkdir(exist_ok=True)
            write_json(folder.inputs(run), training_files(config))
        train(config, resume=True, progress=progress)
    header = read_header(RunFolder(path).model)
    errors = before.get("errors") or on_test_split(path)
    for name in left_to_judge(study, before):
        errors[name] = judge(study, path, name)
    if not errors:
        raise ValueError(f"{path}: no test split, and no tests: in the study; nothing to judge the run on")
    result: dict[str, Any] = {
        "errors": errors,
        "tests": asked_of(study),
        "parameters": header["parameters"],
        "seconds": seconds_of_run(path),
        "steps": header["metadata"]["step"],
    }
    if denoises(config.task) and "test" in errors:
        with suppress(NothingDrawnError):  # it says something about the noise, and nothing about the training
            result["noise"] = before.get("noise") or noise_error(path)
    write_json(folder.result(run), result)
    return result


def seconds_of_run(path: Path) -> float:
    """Training time of a run, s."""
    return float(metrics_of(RunFolder(path))["seconds"][-1])


@dataclass
class Job:
    """A run of the study and its state."""

    run: StudyRun
    state: State
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    gpu: str | None = None  # as CUDA_VISIBLE_DEVICES names it


def run_all(
    study: StudyConfig,
    command: Callable[[StudyRun], Sequence[str]],
    folder: StudyFolder,
    *,
    processes: int,
    gpus: Sequence[str] = (),
    watch: Callable[[list[Job]], None],
) -> list[Job]:
    """Run the missing trainings, ``processes`` at a time, each with one thread; returns all jobs.

    A run that another command trains is waited for.  Each run sees the one of the ``gpus`` with the fewest runs;
    without any all see those of this process.  ``command``: the command line of a run.  ``watch`` is called about twice
    a second.  On Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 trainings save their state and end, and KeyboardInterrupt(signal)
    is raised.
    """
    jobs = [Job(run, state="done" if folder.finished(study, run) else "waiting") for run in runs_of(study)]
    with _ended_together(jobs):
        while any(job.state in ("waiting", "running", "elsewhere") for job in jobs):
            _collect(study, jobs, folder)
            free = processes - sum(job.state == "running" for job in jobs)
            for job in [job for job in jobs if job.state == "waiting"][: max(free, 0)]:
                job.gpu = min(gpus, key=[other.gpu for other in jobs if other.state == "running"].count, default=None)
                _start(job, command(job.run), folder)
            watch(jobs)
            time.sleep(_POLL)
    watch(jobs)
    return jobs


def _start(job: Job, command: Sequence[str], folder: StudyFolder) -> None:
    gpu = {} if job.gpu is None else {"CUDA_VISIBLE_DEVICES": job.gpu}
    log = folder.log(job.run)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        job.process = start_denskit(
            command,
            {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **gpu},
            given=subprocess.DEVNULL,
            output=stream,
            errors=subprocess.STDOUT,
        )
    job.state = "running"


def _collect(study: StudyConfig, jobs: Sequence[Job], folder: StudyFolder) -> None:
    """The states of jobs by what is in the folder: another command may have trained a run, or does so now."""
    for job in jobs:
        ended = job.process is not None and job.state == "running" and job.process.poll() is not None
        if not ended and job.state not in ("waiting", "elsewhere"):
            continue
        if is_locked(folder.lock(job.run)):
            job.state = "elsewhere"
        elif (ended or job.state == "elsewhere") and folder.finished(study, job.run):
            job.state = "done"
        else:
            job.state = "failed" if ended else "waiting"


@contextmanager
def _ended_together(jobs: Sequence[Job]) -> Iterator[None]:
    """Signals that stop act like Ctrl-C; when the block is left early, running trainings save their state and end."""
    try:
        with raised():  # also SIGINT, which shells ignore in what they run in the background
            yield
    finally:
        running = [job.process for job in jobs if job.process is not None and job.process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait()
