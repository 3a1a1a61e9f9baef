"""Limits on the memory that reading a file takes, and errors that name the file.

A small file can ask for very much memory: compressed zeros, a header with huge shapes, a list that holds itself many
times.  Every reader of files from outside compares the size of its result with :func:`allowance`.  Time needs no limit
of its own: it grows in proportion to the bytes.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import PickleError
from typing import Any, Self

EXPANSION = "DENSKIT_MAX_EXPANSION"  # environment variable
PART = 64  # bytes that a list, a dict, a line or a number takes at least as a Python object
TEXT = 16  # bytes that a byte of JSON can take as Python objects
_SMALL = 2**20  # bytes; smaller files and records count as this large
_SHOWN = 300  # letters of another program's message


class Unreadable(ValueError):
    """A file that cannot be read; the message names the file and the place, in one line."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


def one_line(text: str) -> str:
    """A text without line breaks, as other programs have them in their messages."""
    return " ".join(line.strip() for line in text.splitlines())


def allowance(size: int) -> int:
    """Bytes of memory that a file or record of ``size`` bytes may take: 100 times its size, and 100 MiB at least.

    The environment variable ``DENSKIT_MAX_EXPANSION`` gives another factor.  Raises Unreadable where it is no number.
    """
    return int(_expansion() * max(size, _SMALL))


def require_allowed(needed: int, size: int, where: str | Path) -> None:
    """Raise Unreadable if ``where``, of ``size`` bytes, would take more than its allowance."""
    if needed > allowance(size):
        raise Unreadable(
            f"{where} has {size:,} bytes and would take over {allowance(size):,} in memory: {_expansion():g} times "
            f"its size, or that of 1 MiB. If you trust it, allow a larger factor: {EXPANSION}=10000"
        )


def _expansion() -> float:
    said = os.environ.get(EXPANSION, "100")
    try:
        return float(said)
    except ValueError:
        raise Unreadable(f"{EXPANSION}={said}: a number is wanted, such as {EXPANSION}=1000") from None


@contextmanager
def naming(where: str | Path, problem: str) -> Iterator[None]:
    """Turn a parser's errors on bad bytes into Unreadable: ``where``, then ``problem``, then the parser's words.

    Parsers raise errors of nearly any type.  Unreadable and errors of the file system pass unchanged.
    """
    try:
        yield
    except Exception as error:
        of_the_system = isinstance(error, OSError) and error.filename is not None
        if of_the_system or isinstance(error, Unreadable | FileNotFoundError):
            raise
        raise Unreadable(f"{where} {problem} ({_words(error)})") from error


def _words(error: Exception) -> str:
    """An error in words: the type only where the text alone says too little."""
    if isinstance(error, KeyError):
        return f"no {error}"[:_SHOWN]
    text = str(error).strip()[:_SHOWN]
    return text if text and isinstance(error, ValueError | PickleError) else f"{type(error).__name__}: {text}"


PACKED: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}  # ending -> opener of compressed files


class _Unpacked:
    """A file, unpacked where its name says that it is compressed.  Used as a context.

    All that is read of it takes no more than the file's allowance; Unreadable where it would.
    """

    def __init__(self, path: Path, mode: str, encoding: str | None = None) -> None:
        self.path = path
        self.size = path.stat().st_size
        self.left = allowance(self.size)
        self.stream = PACKED.get(path.suffix, open)(path, mode, encoding=encoding)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def _take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            require_allowed(allowance(self.size) - self.left, self.size, self.path)


class Lines(_Unpacked):
    """The lines of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.next, b"")

    def next(self) -> bytes:
        """The next line with its end; nothing at the end of the file."""
        line = self.stream.readline(self.left + 1)
        self._take(len(line) + PART)
        return line


class Text(_Unpacked):
    """The text of a file in pieces."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rt", "utf-8")

    def read(self, count: int) -> str:
        """At most ``count`` characters; nothing at the end of the file."""
        piece: str = self.stream.read(count)
        self._take(len(piece))
        return piece


def require_unpackable(path: Path) -> None:
    """Raise Unreadable for a packed file that unpacks to more than its allowance, or that is damaged."""
    with naming(path, "cannot be unpacked: it is truncated or damaged"), _Unpacked(path, "rb") as file:
        while piece := file.stream.read(_SMALL):
            file._take(len(piece))
