"""Ctrl-C, SIGTERM and SIGUSR1, acted on after the step under way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Self

# SIGUSR1 is what job scripts often ask of a batch system before the end of the time (sbatch --signal=USR1@120)
STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None], numbers: Sequence[int] = STOPPING) -> Iterator[None]:
    """In the block these signals call the handler; in any thread but the main one they are left alone."""
    if threading.current_thread() is not threading.main_thread():  # the only thread in which Python handles signals
        numbers = ()
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def raised(numbers: Sequence[int] = STOPPING) -> AbstractContextManager[None]:
    """In the block these signals raise KeyboardInterrupt(number), so that it ends as after Ctrl-C."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    return handled(stop, numbers)


class Interrupt:
    """Notes the first of the ``STOPPING`` signals in its block as ``signal``; a second one acts at once.

    ``patient``: all signals are noted.  Under torchrun a Ctrl-C comes twice, from the terminal and from torchrun, which
    itself ends a process that takes too long.
    """

    def __init__(self, *, patient: bool) -> None:
        self.signal: int = 0  # 0: none
        self.patient = patient
        self._handling = ExitStack()

    def __enter__(self) -> Self:
        self._handling.enter_context(handled(self._note))
        return self

    def __exit__(self, *error: object) -> None:
        self._handling.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        if not self.patient:
            self._handling.close()
