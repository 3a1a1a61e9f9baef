"""The allocator of the C library: keep freed memory in the process."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # names of the settings in glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory; False on other systems.

    A step of a model allocates and frees the same large tensors.  By default glibc maps blocks above 32 MiB and unmaps
    them when freed, and the system clears every page again: a third of the time of a large system.  The process then
    stays at its peak size.  The ``denskit`` command calls this; a library should leave the choice to its user.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))
