"""Progress of long commands: a report function, a bar, durations and counts in words."""

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
    """A progress bar in a terminal or notebook, nothing elsewhere; the block gets the function that moves the bar."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    shown = (console.is_terminal or console.is_jupyter) and not console.quiet
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, text, total: bar.update(task, completed=done, description=text, total=total)


def counted(number: int, name: str, form: str = "") -> str:
    """``1 frame``, ``2 frames``; ``form``: a format of the number."""
    return f"{number:{form}} {name}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """``3d04h``, ``2h05m``, ``3m20s``, ``12s``, ``0.4s``."""
    if 0 < seconds < 9.95:
        return f"{seconds:.1f}s" if seconds >= 0.05 else f"{1000 * seconds:.0f}ms"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d{hours % 24:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
