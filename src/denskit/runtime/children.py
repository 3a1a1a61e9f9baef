"""Processes that another one starts, of this program or of :mod:`multiprocessing`, and that end with it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import parent_process
from multiprocessing.connection import wait
from typing import IO

_PARENT = "DENSKIT_PARENT"  # its process number
_STARTED = False  # this process, by :func:`start_denskit`
_ON_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl

Stream = IO[bytes] | IO[str] | int | None


def start_denskit(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: Stream,
    errors: Stream,
    given: Stream = None,
) -> subprocess.Popen[bytes]:
    """Start ``denskit`` with these arguments, in a session of its own: Ctrl-C reaches this process alone.

    ``output``, ``errors`` and ``given``: its standard streams, as of :class:`subprocess.Popen`.  The thread that calls
    this has to wait for it: at the end of that thread, too, Linux ends the process.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "denskit", *arguments], env={**environment, _PARENT: str(os.getpid())},
        stdin=given, stdout=output, stderr=errors, start_new_session=True,
    )  # fmt: skip


def end_with_parent() -> None:
    """In a process of :func:`start_denskit`: get SIGTERM when the process that started it has ended, however it did.

    A kill cannot be caught, so a parent cannot always end its children itself.  On Linux only.
    """
    global _STARTED
    parent = os.environ.pop(_PARENT, None)  # not for processes that this one starts
    _STARTED = parent is not None
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_ON_DEATH_OF_PARENT, signal.SIGTERM)
    if str(os.getppid()) != parent:  # it ended before
        signal.raise_signal(signal.SIGTERM)


def is_child() -> bool:
    """Whether :func:`start_denskit` started this process: it may be told to end more than once, and ends once."""
    return _STARTED


def end_worker_with_parent() -> None:
    """In a worker of :mod:`multiprocessing`: end as soon as the process that started it has ended, also by a kill.

    Otherwise it would wait for work for ever.  A program that the worker has started is not ended.
    """
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)  # not sys.exit, which ends this thread alone

    threading.Thread(target=watch, daemon=True).start()
