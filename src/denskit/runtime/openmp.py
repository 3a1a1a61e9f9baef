"""How long the threads of OpenMP look for new work before they sleep."""

from __future__ import annotations

import os

_SPINS = "1000"  # tens of µs; without the variable GNU's OpenMP takes some ms


def wait_briefly() -> None:
    """Let idle threads of GNU's OpenMP, which PyTorch's wheels for Linux use, sleep soon.

    After an operation on several threads the others keep their cores busy for some ms, in case another one follows.
    The fused kernels have threads of their own (:mod:`denskit.models.equiformer.kernels.numba_threads`), and other
    programs work too: both then wait for cores that do nothing (docs/processes.md).

    Call it before torch is imported, which reads the variable once; later it is for processes started from here.  What
    the user has set stays.  The ``denskit`` command calls this; a library should leave the choice to its user.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
