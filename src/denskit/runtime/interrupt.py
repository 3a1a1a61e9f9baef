"""Ctrl-C and SIGTERM: the step under way is finished first."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Interrupt:
    """Notes the first Ctrl-C or SIGTERM inside its block; a second one acts at once.

    ``patient``: further ones are noted, too.  Under torchrun a Ctrl-C comes twice, from the terminal and from torchrun,
    which ends a process by itself when it takes too long.
    """

    def __init__(self, *, patient: bool) -> None:
        self.signal: int = 0  # 0: none came
        self.patient = patient

    def __enter__(self) -> Self:
        self._before = {}
        if threading.current_thread() is threading.main_thread():  # Python handles signals only there
            for number in (signal.SIGINT, signal.SIGTERM):
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
