"""Counts in words."""

from __future__ import annotations

from denskit.runtime.progress import counted


def test_one_thing_is_no_plural() -> None:
    assert [counted(number, "frame") for number in (0, 1, 2)] == ["0 frames", "1 frame", "2 frames"]
    assert counted(12345, "training frame", ",") == "12,345 training frames"
