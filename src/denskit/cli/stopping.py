"""Commands that end after the step under way when Ctrl-C or SIGTERM comes, and can be continued."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.console import Console

from denskit.cli.output import complain

if TYPE_CHECKING:
    from denskit.runtime.interrupt import Interrupt
    from denskit.runtime.progress import Report


@dataclass(frozen=True)
class Stoppable:
    """``stop`` and ``progress`` are for the function that works, ``leave`` for the command that it was stopped in."""

    interrupt: Interrupt
    progress: Report

    def stop(self) -> bool:
        """Whether a signal has come."""
        return self.interrupt.signal != 0

    def leave(self, kept: str, *, command: str = "the same command and --resume") -> NoReturn:
        """Say what is kept and how to continue; exit with 130 after Ctrl-C, 143 after SIGTERM."""
        complain(f"Stopped; {kept}. Continue with {command}")
        raise typer.Exit(128 + self.interrupt.signal)


@contextmanager
def stoppable(console: Console) -> Iterator[Stoppable]:
    """In the block the first Ctrl-C or SIGTERM asks the work to stop; the console shows a progress bar."""
    from denskit.runtime.interrupt import Interrupt
    from denskit.runtime.progress import progress_bar

    with Interrupt(patient=False) as interrupt, progress_bar(console) as bar:
        yield Stoppable(interrupt, bar)
