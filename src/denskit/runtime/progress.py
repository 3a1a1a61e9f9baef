"""How far a long command is, in words and bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def progress_bar(console: Console, total: float | None = None) -> Iterator[Callable[..., None]]:
    """A bar in a terminal, nothing elsewhere.

    The function that the block gets is called with what is done, a text beside the bar, and perhaps another total.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=total)

        def show(done: float, text: str, total: float | None = None) -> None:
            bar.update(task, completed=done, description=text, total=total)

        yield show


def duration(seconds: float) -> str:
    """``2h05m``, ``3m20s``, ``12s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
