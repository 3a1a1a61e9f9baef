"""What the children call wrong: a kill, a hang, too much memory, another error, a message without the file."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest

from fuzz import child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of processes and /proc are Linux's")


def _read(folder: Path) -> None:
    what = (folder / "what").read_text()
    if what == "fine":
        return
    if what == "named":
        raise ValueError(f"{folder / 'what'} is wrong")
    if what == "absent":
        (folder / "absent").read_bytes()
    if what == "unnamed":
        raise ValueError("something is wrong")
    if what == "other":
        raise KeyError("what")
    if what == "killed":
        ctypes.string_at(0)
    if what == "swollen":
        bytearray(child.MEMORY + 2**26)
    if what == "huge":
        bytearray(2**40)
    while what == "hangs":
        pass


def _found(tmp_path: Path, said: dict[str, str]) -> None:
    cases = [{"what": what.strip().encode()} for what in said]
    found = dict(child.failures(cases, _read, tmp_path))
    wrong = {number: problem for number, problem in enumerate(said.values()) if problem}
    assert found.keys() == wrong.keys()
    for number, problem in wrong.items():
        assert problem in found[number]


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    said = {
        "fine": "", "named": "", "absent": "", "unnamed": "names no file", "other": "KeyError", "killed": "SIGSEGV",
        "swollen": "MiB", "huge": "MemoryError", "fine ": "",
    }  # fmt: skip
    _found(tmp_path, said)


def test_a_hang_is_found_and_what_follows_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "SECONDS", 2)  # here alone: other cases compute little, but on a slow machine how long?
    _found(tmp_path, {"fine": "", "hangs": "took more than 2 s", "fine ": ""})
