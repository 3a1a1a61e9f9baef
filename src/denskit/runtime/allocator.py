"""How the process's memory is managed below torch: freed memory stays, instead of going back to the system."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # names of the settings in glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let the C library keep what is freed; whether it could be told so (glibc on Linux).

    A step of a model allocates and frees the same large tensors again and again.  glibc maps blocks above 32 MiB, and
    unmaps them when they are freed, so that the system clears every page anew: a third of the time of a large system.
    Afterwards the process stays as large as it once was.  For programs that are about tensors; the ``denskit`` command
    calls it, a library should not decide it for its user's process.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))
