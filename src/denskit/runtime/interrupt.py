"""Ctrl-C, SIGTERM, SIGHUP and SIGUSR1, acted on after the step under way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Self

# SIGUSR1 is what job scripts often ask of a batch system before the end of the time (sbatch --signal=USR1@120)
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")  # SIGHUP: the terminal was closed
STOPPING = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None], numbers: Sequence[int] = STOPPING) -> Iterator[None]:
    """In the block these signals call the handler; in any thread but the main one they are left alone.

    So is a SIGHUP that is ignored, as under nohup.
    """
    if threading.current_thread() is not threading.main_thread():  # the only thread in which Python handles signals
        numbers = ()
    hung_up = getattr(signal, "SIGHUP", None)
    kept = {hung_up} if hung_up is not None and signal.getsignal(hung_up) == signal.SIG_IGN else set()
    before = {number: signal.signal(number, handler) for number in numbers if number not in kept}
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
    """Notes the first of the ``STOPPING`` signals in its block as ``signal``; a second one, but SIGHUP, acts at once.

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
        if self.patient:
            return
        self._handling.close()
        if number == getattr(signal, "SIGHUP", None):  # shells and the kernel send it again
            earlier = signal.signal(number, signal.SIG_IGN)
            self._handling.callback(signal.signal, number, earlier)
