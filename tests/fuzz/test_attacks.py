"""Each attack is refused with a message that names the file, or comes to nothing; none runs code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fuzz.attacks import ATTACKS
from fuzz.child import failures
from fuzz.formats import FORMATS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of processes and /proc are Linux's")


@pytest.mark.parametrize("kind", FORMATS)
def test_attacks_come_to_nothing(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [name for name, (of, _) in ATTACKS.items() if of == kind]
    cases = [{**FORMATS[kind].seed(), **ATTACKS[name][1]()} for name in names]
    found = {names[number]: problem for number, problem in failures(cases, FORMATS[kind].read, tmp_path)}
    assert not found
    assert not list(tmp_path.rglob("ran"))
