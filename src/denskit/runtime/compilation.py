"""The first use of kernels, which numba compiles."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def told_of_compilation(tell: Callable[[], None]) -> Iterator[None]:
    """Call ``tell`` once, when a kernel begins to be compiled in the block; kernels found compiled say nothing."""
    event = sys.modules.get("numba.core.event")  # where no kernel is imported none is compiled
    if event is None:
        yield
        return

    class Listener(event.Listener):  # type: ignore[name-defined, misc]
        told = False

        def on_start(self, event: object) -> None:
            if not self.told:
                self.told = True
                tell()

        def on_end(self, event: object) -> None:
            pass

    with event.install_listener("numba:compile", Listener()):
        yield
