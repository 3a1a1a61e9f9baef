"""Structures that would hang the search or kill the process end it soon, with their edges or a clear message.

They are searched in a child process, so that a crash fails a test and not the suite.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from geometry.hostile_structures import HOSTILE

SCRIPT = Path(__file__).with_name("hostile_structures.py")
Said = tuple[int | str, bool | None]  # edges or an error, and whether a simulation calls the structure broken


@pytest.fixture(scope="module")
def searched() -> dict[str, Said]:
    """What came of each structure; where a search ended the process, another one goes on behind it."""
    found: dict[str, Said] = {}
    while left := [name for name in HOSTILE if name not in found]:
        done = subprocess.run([sys.executable, str(SCRIPT), *left], capture_output=True, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines, done.stderr
        found |= {name: (said, broken) for name, said, broken in lines}
        if done.returncode:
            found[lines[-1][0]] = (f"process ended with {done.returncode}: {done.stderr[-500:]}", None)
    return found


@pytest.mark.parametrize("name", HOSTILE)
def test_is_searched_or_refused(name: str, searched: dict[str, Said]) -> None:
    case, (said, broken) = HOSTILE[name], searched[name]
    if case.error:
        assert isinstance(said, str) and re.search(case.error, said), said
        assert said.startswith("System 0 of the batch: ") or "cutoff is" in said
    else:
        assert said == case.edges
    if case.cutoff == 5.0:
        assert broken == bool(case.error), said
