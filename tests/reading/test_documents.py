"""JSON and YAML: what is read, and what is refused before it costs anything."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from denskit.reading.documents import LARGEST_YAML, check_extent, inflate_json, parse_yaml, read_json, read_yaml
from fuzz.attacks import laughs


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, 2.5, "é"]}', encoding="utf-8")
    assert read_json(path) == {"a": [1, 2.5, "é"]}
    for wrong in (b"", b"{", b"\xff", b"[" * 100_000):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match="a.json is damaged, or no JSON"):
            read_json(path)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "absent.json")


def test_inflated_json(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = zlib.compress(json.dumps({"a": list(range(1000))}).encode())
    assert inflate_json(raw, "here", lambda value: value) == {"a": list(range(1000))}
    with pytest.raises(ValueError, match="here is damaged .truncated"):
        inflate_json(raw[:-3], "here", lambda value: value)
    monkeypatch.setenv("DENSKIT_MAX_EXPANSION", "0.05")  # 3,276 bytes of text here
    with pytest.raises(ValueError, match="here has .* bytes and would take over"):
        inflate_json(raw, "here", lambda value: value)


def test_yaml_is_as_overrides_are() -> None:
    """1e-3 is a number, as in OmegaConf; interpolations and dates stay text."""
    assert parse_yaml("lr: 1e-3\nat: ${lr}\nday: 2024-01-02\n", "here") == {
        "lr": 1e-3,
        "at": "${lr}",
        "day": "2024-01-02",
    }
    assert parse_yaml(b"a: &x [1, 2]\nb: *x\n", "here") == {"a": [1, 2], "b": [1, 2]}
    assert parse_yaml("a: {<<: {b: 1}, c: 2}", "here") == {"a": {"b": 1, "c": 2}}


@pytest.mark.parametrize(
    "text", ["a: [1", "a: b: c", "a: *nobody", "a: &b [*b]", b"a: \xff", "a: 1\n" + "#" * LARGEST_YAML]
)
def test_what_is_no_yaml_is_named(text: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match="a.yaml (is no valid YAML|has lists nested)"):
        read_yaml(path)


def test_aliases_cannot_make_much_of_little() -> None:
    with pytest.raises(ValueError, match="here has .* bytes and would take over"):
        parse_yaml(laughs(8), "here")
    assert len(parse_yaml(laughs(3), "here")["a2"]) == 10


def test_extent_counts_parts_as_often_as_they_occur() -> None:
    value: Any = [1]
    for _ in range(20):
        value = [value, value]  # 2^20 ones
    check_extent(value, 2**21, "here")
    with pytest.raises(ValueError, match="here has .* would take over"):
        check_extent([value, value], 2**20, "here")
    check_extent({"a": {"b": (1, [2])}}, 1, "here")
    for _ in range(200):
        value = {"a": value}
    with pytest.raises(ValueError, match="here has lists nested more than 100 deep"):
        check_extent(value, 2**21, "here")


def test_extent_of_yaml_nodes_agrees_with_that_of_values() -> None:
    text = "a: &x [1, 2, {b: 3}]\nc: [*x, *x]\n"
    node, value = yaml.compose(text, yaml.SafeLoader), yaml.safe_load(text)
    check_extent(node, 1, "here")
    check_extent(value, 1, "here")
