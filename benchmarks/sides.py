"""Two or more programs, each in a Python of its own, that take steps in turn, so that all see the same machine."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


class Side:
    """A process that takes a step when it is told to; its program calls :func:`serve`."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, env=environment, **pipes)
        self.rows: list[dict[str, Any]] = []
        self._answer("ready")

    def step(self) -> None:
        """Take one step."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.rows.append(json.loads(self._answer("row ")))

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def times(self, kind: str, warmups: int) -> list[float]:
        """Seconds of the steps after the warm-up; ``kind`` is "cpu" or "wall"."""
        return [row[kind] for row in self.rows[warmups:]]

    def _answer(self, start: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return line.removeprefix(start)
        raise RuntimeError(f"{self.process.args}: ended early")


def serve(step: Callable[[], dict[str, Any]]) -> None:
    """Take one step for each line of standard input; write what it returns, its times and the memory as JSON."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("ready", flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        found = step()
        times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print("row " + json.dumps({**times, "memory_MiB": memory, **found}), flush=True)
