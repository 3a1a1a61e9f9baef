"""Progress of long commands: a report function, a bar, durations in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Report = Callable[[float, str, float], None]  # done, a text beside the bar, total


def unreported(done: float, text: str, total: float) -> None:
    """The default of functions that report their progress."""


@contextmanager
def progress_bar(console: Console) -> Iterator[Report]:
    """A progress bar in a terminal, nothing elsewhere; the block gets the function that moves the bar."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, text, total: bar.update(task, completed=done, description=text, total=total)


def duration(seconds: float) -> str:
    """``2h05m``, ``3m20s``, ``12s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
