"""Damaged files of every kind: each is read, or refused with a message that names it, in little time and memory.

``make fuzz`` goes on for half an hour (``DENSKIT_FUZZ``: seconds) with seeds of its own, and keeps what it finds.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fuzz.child import failures, write
from fuzz.formats import FORMATS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of processes and /proc are Linux's")
CASES = 50  # of each kind
LONG = float(os.environ.get("DENSKIT_FUZZ", "0"))  # seconds
FOUND = Path("fuzz-found")


@pytest.mark.parametrize("name", FORMATS)
def test_whole_files_are_read(name: str, tmp_path: Path) -> None:
    write(FORMATS[name].seed(), tmp_path / "0")
    FORMATS[name].read(tmp_path / "0")


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_named(name: str, tmp_path: Path) -> None:
    assert not _wrong(name, 0, tmp_path)


def _wrong(name: str, seed: int, folder: Path) -> list[str]:
    """What went wrong in one round; the files are kept in ``fuzz-found``."""
    kind, rng = FORMATS[name], np.random.default_rng([seed, *name.encode()])
    cases = [kind.mutated(rng) for _ in range(CASES)]
    found = []
    for number, problem in failures(cases, kind.read, folder):
        write(cases[number], FOUND / f"{name}-{seed}-{number}")
        found.append(f"{name}-{seed}-{number}: {problem}")
    return found


@pytest.mark.skipif(not LONG, reason="make fuzz: half an hour")
def test_long(tmp_path: Path) -> None:
    end, found = time.monotonic() + LONG, list[str]()
    for seed in itertools.count(1):
        for name in FORMATS:
            folder = tmp_path / f"{seed}-{name}"
            found += _wrong(name, seed, folder)
        if time.monotonic() > end:
            break
    print(f"{seed * CASES * len(FORMATS)} files")
    assert not found, "\n".join(found)
