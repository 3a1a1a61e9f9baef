"""Nested settings as dotted keys."""

from __future__ import annotations

from denskit.settings import dotted


def test_nested_entries_have_dotted_keys() -> None:
    nested = {"a": 1, "b": {"c": {}, "d.e": {2: None}}, "f": [{"g": 3}, {"h": 4}], "i": [5]}
    plain = {"a": 1, "b.c": {}, "b.d.e.2": None, "f": [{"g": 3}, {"h": 4}], "i": [5]}
    assert dict(dotted(nested)) == plain
    assert dict(dotted(nested, lists=True)) == {**{k: v for k, v in plain.items() if k != "f"}, "f.0.g": 3, "f.1.h": 4}
