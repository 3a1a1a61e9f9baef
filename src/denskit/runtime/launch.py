"""Several processes of this program on one machine that work on one training."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from denskit.runtime.children import start_denskit
from denskit.runtime.interrupt import handled
from denskit.runtime.threads import cores

_POLL = 0.2  # s
_PATIENCE = 25.0  # s that the others have to end after one has failed
_SAID = 1  # exit code of the first process after an error of its own, which it has shown


def run_together(
    arguments: Sequence[str], count: int, output: IO[str] | None = None, errors: IO[str] | None = None
) -> int:
    """Run ``denskit`` with these arguments in several processes; the exit code of the first that ended badly, or 0.

    The cores are divided among them, unless OMP_NUM_THREADS says otherwise.  The first process speaks; with the file
    ``output`` for its standard output it is heard only where it fails.  Where it has no error of its own, the message
    of the first other that failed is shown, in ``errors`` (default: standard error).  Signals that stop are passed on
    to all; where this process is killed, they save and end.  After a failure the others are ended.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    errors = errors or sys.stderr
    threads = str(max(1, cores() // count))
    shared = {"OMP_NUM_THREADS": threads, **os.environ, "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    with handled(ask), tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / str(rank) for rank in range(count)]
        running = []
        try:
            for rank, path in enumerate(said):
                environment = {**shared, "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}
                with path.open("wb") as stream:
                    running.append(
                        start_denskit(
                            arguments,
                            environment,
                            output=subprocess.DEVNULL if rank else output or sys.stdout,
                            errors=stream if rank or output else None,
                        )
                    )
            failed = _watch(running, asked)
        finally:
            for process in running:
                process.kill()
        if failed is not None:
            place = 0 if running[0].wait() == _SAID else failed
            errors.write(said[place].read_text(errors="replace"))  # empty where it was heard
    code = running[failed or 0].wait()
    if code < 0:
        why = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
        errors.write(
            f"process {failed or 0} was ended by signal {-code} ({signal.Signals(-code).name}){why}. Continue with the "
            "same command and --resume\n"
        )
    return 128 - code if code < 0 else code


def _watch(running: Sequence[subprocess.Popen[bytes]], asked: list[int]) -> int | None:
    """Wait for the end of all; the place of the first that ended badly, if one did."""
    failed, deadline = None, float("inf")
    while any(process.poll() is None for process in running) and time.monotonic() < deadline:
        while asked:
            number = asked.pop()
            for process in running:
                process.send_signal(number)
        if failed is None:
            failed = next((place for place, process in enumerate(running) if process.poll()), None)
            deadline = float("inf") if failed is None else time.monotonic() + _PATIENCE
        time.sleep(_POLL)
    return failed
