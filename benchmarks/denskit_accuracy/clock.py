"""Processor time of another program, noted beside each line of its output, and learning curves made of it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

_START = "--- start"


@dataclass(frozen=True)
class Point:
    """A validation: epochs or steps done, processor seconds since the process began, force MAE in meV/Å."""

    at: int
    cpu: float
    force_mae: float


def run_and_note(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
    """Run a program; append each line of its output to ``log``, behind the processor seconds of its process so far.

    Its own processes, such as those that compile, are not counted.  Linux only.

    Raises ValueError with its last lines if the program fails.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    everything = {**os.environ, **environment, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{_START} {' '.join(command)}\n")
        with subprocess.Popen(
            command, env=everything, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(f"{_cpu_seconds(process.pid):.2f}\t{line}")
                file.flush()
    if process.returncode:
        last = "".join(log.read_text(encoding="utf-8").splitlines(keepends=True)[-15:])
        raise ValueError(f"{command[0]} ended with status {process.returncode}; {log} ends with:\n{last}")


def points_of(log: Path, pattern: str, *, first: int) -> list[Point]:
    """Validations in a log, the last attempt's where a resumed training repeats some.

    Args:
        log: written by :func:`run_and_note`.
        pattern: of a line with a validation; its groups are the epoch or step and the force MAE in meV/Å.
        first: added to the epoch or step, 1 for a program that counts from 0.
    """
    points: list[Point] = []
    attempt: list[Point] = []
    for line in [*log.read_text(encoding="utf-8").splitlines(), _START]:
        if line.startswith(_START):
            points = [point for point in points if not attempt or point.at < attempt[0].at] + attempt
            attempt = []
            continue
        cpu, _, text = line.partition("\t")
        if match := re.search(pattern, text):
            attempt.append(Point(int(match[1]) + first, float(cpu), float(match[2])))
    return points


def pace(points: Sequence[Point]) -> float:
    """Processor seconds of an epoch or step, validations included: the median over intervals between validations.

    Raises ValueError for fewer than two validations.
    """
    paces = [(b.cpu - a.cpu) / (b.at - a.at) for a, b in pairwise(points) if b.cpu > a.cpu]
    if not paces:
        raise ValueError(f"{len(points)} validations in the log; two are needed to know the pace of a training")
    return median(paces)


def training_seconds(points: Sequence[Point]) -> list[float]:
    """Processor seconds of training up to each validation, without start-up, compilation and lost work.

    The interval up to the first validation, and one that a resumed process begins in, has the usual pace.
    """
    usual, spent, seconds = pace(points), 0.0, []
    for before, point in pairwise([Point(0, float("inf"), 0.0), *points]):
        known = point.cpu > before.cpu
        spent += point.cpu - before.cpu if known else usual * (point.at - before.at)
        seconds.append(spent)
    return seconds


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
