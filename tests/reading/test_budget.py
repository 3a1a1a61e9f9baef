"""What a file may cost, and how errors say where they were."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pytest

from denskit.reading.budget import Lines, Unreadable, allowance, naming, require_allowed, require_unpackable


def test_the_allowance_follows_the_size_and_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert allowance(5) == allowance(2**20) == 100 * 2**20
    assert allowance(10**9) == 10**11
    monkeypatch.setenv("DENSKIT_MAX_EXPANSION", "2.5")
    assert allowance(10**9) == 2_500_000_000
    require_allowed(2_500_000_000, 10**9, "a.npz")
    with pytest.raises(ValueError, match="a.npz has 1,000,000,000 bytes .* DENSKIT_MAX_EXPANSION=10000"):
        require_allowed(2_500_000_001, 10**9, "a.npz")
    monkeypatch.setenv("DENSKIT_MAX_EXPANSION", "much")
    with pytest.raises(ValueError, match="DENSKIT_MAX_EXPANSION=much: a number is wanted"):
        allowance(5)


def test_errors_say_where_and_what() -> None:
    for raised, said in (
        (KeyError("pos"), "a.json is damaged .no 'pos'."),
        (ValueError("wrong"), "a.json is damaged .wrong."),
        (TypeError("odd"), "a.json is damaged .TypeError: odd."),
        (MemoryError(), "a.json is damaged .MemoryError"),
        (OSError(5, "input/output error"), "a.json is damaged .OSError"),
    ):
        with pytest.raises(Unreadable, match=f"^{said}"), naming("a.json", "is damaged"):
            raise raised


def test_errors_that_say_where_pass_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"), naming("a.json", "is damaged"):
        (tmp_path / "absent").read_bytes()
    with pytest.raises(ValueError, match="^record 3"), naming("a.json", "is damaged"):
        raise Unreadable("record 3")
    with pytest.raises(KeyboardInterrupt), naming("a.json", "is damaged"):
        raise KeyboardInterrupt


@pytest.mark.parametrize("ending", ["", ".xz", ".gz", ".bz2"])
def test_lines_of_files_of_every_kind(ending: str, tmp_path: Path) -> None:
    pack = {"": bytes, ".xz": lzma.compress, ".gz": gzip.compress, ".bz2": bz2.compress}[ending]
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(pack(b"one\n\ntwo"))
    with Lines(path) as lines:
        assert list(lines) == [b"one\n", b"\n", b"two"]
        assert lines.next() == b""


@pytest.mark.parametrize("text", [b"a" * 2_000_000, b"\n" * 40_000], ids=["one line", "many lines"])
def test_lines_stop_at_the_allowance(text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DENSKIT_MAX_EXPANSION", "1")  # so 1 MiB here
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress(text))
    with (
        pytest.raises(ValueError, match="a.txt.xz has .* and would take over 1,048,576 in memory"),
        Lines(path) as lines,
    ):
        list(lines)


def test_packed_files_are_measured_before_others_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DENSKIT_MAX_EXPANSION", "1")  # so 1 MiB here
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"a" * 2**20))
    require_unpackable(path)
    path.write_bytes(gzip.compress(b"a" * (2**20 + 1)))
    with pytest.raises(Unreadable, match="a.gz has .* and would take over 1,048,576 in memory"):
        require_unpackable(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Unreadable, match=r"a.gz cannot be unpacked: it is truncated or damaged .*EOFError"):
        require_unpackable(path)
