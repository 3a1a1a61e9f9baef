"""A peer's end of the line: it reads a job, builds its model, and takes a step whenever it is told to.

One JSON object a line: the job comes first; the answer has the number of ``parameters`` and what else the peer has to
say.  Every further line asks for one step, answered by its clocks, the process's memory and what the step returns.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .gauges import forget_peak, peak_memory_mb, present_memory_mb, read_clocks

Step = Callable[[], dict[str, Any]]
Build = Callable[[dict[str, Any]], tuple[Step, dict[str, Any]]]


def serve(build: Build) -> None:
    """Serve one job; ``build`` makes the step and the first answer of it."""
    warnings.filterwarnings("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not come between answers

    def answer(found: dict[str, Any]) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    job = json.loads(sys.stdin.readline())
    device = torch.device(job["device"])
    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    step, ready = build(job)
    forget_peak(device)
    before = present_memory_mb(device)
    answer(ready)
    for _ in sys.stdin:
        found: dict[str, Any] = {}
        times = read_clocks(lambda: found.update(step()), device)  # noqa: B023 (called at once)
        peak = peak_memory_mb(device)
        answer({"times": times, "memory": {"process_mb": peak, "steps_mb": peak - before}, "found": found})
