"""Programs in processes of their own, killed by SIGKILL just before their n-th operation on the files of a folder.

So every point between two operations can be reached, whatever the speed of the machine.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked, files are locked")
OPERATIONS = {"open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir"}
PRELOADED = [  # once for all processes
    "denskit.cli", "denskit.training.trainer", "denskit.simulation.relaxation.folder", "denskit.data.convert",
    "ase.build", "numba", "torch.utils.tensorboard",
]  # fmt: skip


def command(*arguments: object) -> None:
    """The program, as a user runs it."""
    from denskit.cli import app

    app([str(argument) for argument in arguments])


def run(folder: Path, job: Callable[..., Any], *arguments: object, kill_at: int = 0, **options: object) -> int:
    """Run a job in a process of its own, which kills itself before operation ``kill_at`` on a file in ``folder``.

    Returns the number of these operations.  0 for ``kill_at``: it is not killed, and ends without an error.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    counter = context.Value("i", 0)
    process = context.Process(target=_counted, args=(counter, str(folder), kill_at, job, arguments, options))
    process.start()
    process.join(300)
    assert process.exitcode == (-signal.SIGKILL if kill_at else 0), (process.exitcode, kill_at)
    return int(counter.value)


def spread(operations: int, points: int) -> list[int]:
    """Points from the first operation to the last: close to each other at first, where files are begun."""
    return sorted({1 + round((operations - 1) * (point / (points - 1)) ** 1.5) for point in range(points)})


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether a condition comes true in time."""
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return met


def lives(process: int) -> bool:
    """Whether a process runs; one that has ended may still be in the table."""
    status = Path(f"/proc/{process}/status")
    try:
        os.kill(process, 0)
        return not (status.is_file() and "State:\tZ" in status.read_text())
    except (ProcessLookupError, FileNotFoundError):
        return False


def leftovers(folder: Path) -> list[str]:
    """Locks and temporary files in a folder."""
    return [path.name for path in folder.rglob(".*")]


def _counted(
    counter: Any, folder: str, kill_at: int, job: Callable[..., Any], arguments: Sequence[object], options: dict
) -> None:
    import torch

    torch.set_num_threads(1)

    def hook(event: str, found: tuple[Any, ...]) -> None:
        if event not in OPERATIONS or not found or not str(found[0]).startswith(folder):
            return
        counter.value += 1
        if counter.value == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    try:
        job(*arguments, **options)
    except SystemExit as end:  # of the program
        if end.code:
            raise
