"""Ctrl-C, SIGTERM and SIGUSR1, acted on after the step under way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

# SIGUSR1 is what job scripts often ask of a batch system before the end of the time (sbatch --signal=USR1@120)
STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))


@contextmanager
def raised(numbers: Sequence[int] = STOPPING) -> Iterator[None]:
    """In the block these signals raise KeyboardInterrupt(number), so that it ends as after Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():  # the only thread in which Python handles signals
        numbers = ()
    before = {number: signal.signal(number, _raise) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


class Interrupt:
    """Notes the first of the ``STOPPING`` signals in its block as ``signal``; a second one acts at once.

    ``patient``: all signals are noted.  Under torchrun a Ctrl-C comes twice, from the terminal and from torchrun, which
    itself ends a process that takes too long.
    """

    def __init__(self, *, patient: bool) -> None:
        self.signal: int = 0  # 0: none
        self.patient = patient

    def __enter__(self) -> Self:
        self._before = {}
        if threading.current_thread() is threading.main_thread():  # the only thread in which Python handles signals
            for number in STOPPING:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        if not self.patient:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
