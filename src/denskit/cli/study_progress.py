"""Progress of a study: in a terminal one bar per run, elsewhere a line at the start and end of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from denskit.runtime.run_state import progress_of
from denskit.training.overview import rows_of
from denskit.training.run_folder import RunFolder

if TYPE_CHECKING:
    from denskit.evaluation.study.running import Job, StudyFolder


@contextmanager
def study_progress(folder: StudyFolder) -> Iterator[StudyProgress]:
    """The progress of the study in a folder, shown while the block runs."""
    console = Console(highlight=False)
    if not console.is_terminal:
        yield StudyProgress(folder, console, None)
        return
    with Bars(
        TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.percentage:3.0f} %"),
        TextColumn("{task.fields[note]}"), TimeRemainingColumn(), console=console,
    ) as bars:  # fmt: skip
        yield StudyProgress(folder, console, bars)


class StudyProgress:
    """Follows the runs by their metrics.csv."""

    def __init__(self, folder: StudyFolder, console: Console, bars: Bars | None) -> None:
        self.folder = folder
        self._console, self._bars = console, bars
        self._states: dict[str, str] = {}  # by the name of the run
        self._tasks: dict[str, TaskID] = {}
        self._lengths: dict[TaskID, int] = {}  # steps in all, by the log

    def show(self, jobs: list[Job]) -> None:
        """Bring the display up to date."""
        for job in jobs:
            before = self._states.get(job.run.name, "done" if job.state == "done" else "waiting")
            if self._bars is not None and job.state == "running":
                self._move(self._bars, job)
            if job.state != before:
                self._changed(job)
            self._states[job.run.name] = job.state

    def _changed(self, job: Job) -> None:
        name = escape(f"{job.run.label}, seed {job.run.seed}")
        if job.state == "running":
            if self._bars is not None:
                self._tasks[job.run.name] = self._bars.add_task(name, total=None, note="")
            else:
                self._console.print(f"started   {name}", soft_wrap=True)
        elif job.state == "elsewhere":
            self._console.print(f"waiting   {name}: another process is at work on it", soft_wrap=True)
        elif job.state in ("done", "failed"):
            if self._bars is not None and job.run.name in self._tasks:
                self._bars.remove_task(self._tasks.pop(job.run.name))
            error = self._last(job).get("valid_forces_mae_meV_per_A")
            said = f": validation forces {float(error):.1f} meV/Å" if error else ""
            self._console.print(f"{'finished' if job.state == 'done' else 'FAILED':9} {name}{said}", soft_wrap=True)

    def _move(self, bars: Bars, job: Job) -> None:
        row = self._last(job)
        if row and job.run.name in self._tasks:
            error = row.get("valid_forces_mae_meV_per_A") or row.get("train_forces_mae_meV_per_A")
            note = f"forces {float(error):.1f} meV/Å" if error else ""
            task = self._tasks[job.run.name]
            if task not in self._lengths and (steps := progress_of(self.folder.run(job.run))[1]):
                self._lengths[task] = steps
            bars.update(task, completed=int(row["step"]), total=self._lengths.get(task), note=note)

    def _last(self, job: Job) -> dict[str, str]:
        """The last row of the run's metrics.csv; empty before there is one."""
        return next(reversed(rows_of(RunFolder(self.folder.run(job.run)))), {})
