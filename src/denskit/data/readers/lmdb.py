"""LMDB files, read one record at a time by plain reads, every page held to its bounds.

The LMDB library maps the file into memory and trusts its pages, so that a damaged page kills the process.  This
reader follows the same tree of pages (LMDB 0.9, 64 bit, little-endian; one table without duplicate keys) and raises.
A page has a header (type, and where the places of its nodes end), those places, and the nodes: branches name a page for
all keys from theirs on, leaves have the values, and values larger than a page lie on pages of their own.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from denskit.reading.budget import Unreadable, naming

OPEN_FILES = 256  # kept open at once; processes are commonly allowed 1024 files
_MAGIC, _VERSION = 0xBEEFC0DE, 1
# Of the two pages that a file begins with: magic, version; (page size or 0, flags, depth, entries, root) of the free
# list and of the table; last page, number of the transaction.  Behind each page's header of 16 bytes.
_META = struct.Struct("<16xII16x IHH24xQQ IHH24xQQ QQ")
_PAGE, _HEADER = struct.Struct("<10xHH"), 16  # type, end of the places
_NODE = struct.Struct("<HHHH")  # page, or size of the value: low, high; flags; size of the key
_SMALLEST = 2 + _NODE.size + 1  # bytes of an entry: its place, its node, a key of one letter
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4  # types of pages
_ELSEWHERE = 1  # flag of nodes whose value lies on pages of its own


class LmdbFile:
    """A file of keys and values.  May be pickled, used after a fork and by several threads.

    Raises FileNotFoundError, and ValueError for a file that is truncated or no LMDB.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise FileNotFoundError(f"no file {path}")
        about = path.stat()
        self.size, self._changed = about.st_size, about.st_mtime_ns
        with naming(path, "is no LMDB file, or its beginning is damaged"):
            self._read_meta()

    def _read_meta(self) -> None:
        first = self._meta(0)
        self.page_size = first[2]
        second = self._meta(self.page_size)
        meta = max((first, second), key=lambda meta: meta[-1])  # the last transaction
        _, _, _, _, _, _, _, _, flags, depth, entries, root, last, _ = meta
        if flags:
            raise ValueError(f"its table is of a kind ({flags:#x}) that is not read")
        needed = (last + 1) * self.page_size
        if self.size < needed:
            raise Unreadable(f"{self.path} is truncated: it has {self.size} bytes of {needed}. Copy it again")
        if entries * _SMALLEST > needed:
            raise Unreadable(
                f"{self.path} is damaged: it says that it holds {entries} keys, more than fit into its {needed} bytes. "
                "Copy or download it again"
            )
        self.entries: int = entries
        """Number of keys, special ones included."""
        self._depth, self._root = depth, root

    def _meta(self, place: int) -> tuple[int, ...]:
        meta = _META.unpack(self._read(place, _META.size))
        if meta[:2] != (_MAGIC, _VERSION) or not 512 <= meta[2] <= 2**16:
            raise ValueError("it does not begin as LMDB files do")
        return meta

    def get(self, key: str) -> bytes | None:
        """The value of a key, or None.  Raises ValueError, naming file and key, where the file is corrupt."""
        with naming(f"{self.path}, key {key!r}", "cannot be read: the LMDB file is corrupt"):
            return self._find(key.encode("ascii"))

    def _find(self, key: bytes) -> bytes | None:
        number = self._root
        for _ in range(self._depth):
            page = self._read(number * self.page_size, self.page_size)
            kind, end = _PAGE.unpack_from(page)
            places = memoryview(page)[_HEADER:end].cast("H")

            def key_at(place: int, page: bytes = page) -> bytes:
                begin = place + _NODE.size
                return page[begin : begin + _NODE.unpack_from(page, place)[3]]

            if kind & _LEAF:
                index = bisect_left(places, key, key=key_at)
                found = index < len(places) and key_at(places[index]) == key
                return self._value(page, places[index]) if found else None
            if not kind & _BRANCH:
                raise ValueError(f"page {number} is of type {kind:#x}")
            # the first key of a branch is empty: it stands for all below the second
            low, high, top, _ = _NODE.unpack_from(page, places[bisect_right(places, key, lo=1, key=key_at) - 1])
            number = low | high << 16 | top << 32
        if self._depth:
            raise ValueError("its tree is deeper than it says")
        return None

    def _value(self, page: bytes, place: int) -> bytes:
        low, high, flags, key_size = _NODE.unpack_from(page, place)
        size, begin = low | high << 16, place + _NODE.size + key_size
        if flags & ~_ELSEWHERE:
            raise ValueError(f"a value of a kind ({flags:#x}) that is not read")
        if not flags:
            if begin + size > len(page):
                raise ValueError("a value beyond its page")
            return page[begin : begin + size]
        place = int.from_bytes(page[begin : begin + 8], "little") * self.page_size
        if not _PAGE.unpack(self._read(place, _PAGE.size))[0] & _OVERFLOW:
            raise ValueError("a value on a page of another type")
        return self._read(place + _HEADER, size)

    def _read(self, place: int, size: int) -> bytes:
        """Bytes of the file.  Raises ValueError where there are none."""
        if place + size > self.size:
            raise ValueError(f"bytes {place} to {place + size} of {self.size}")
        found = os.pread(_open(self.path, self._changed).fileno(), size, place)
        if len(found) != size:
            raise ValueError(f"bytes {place} to {place + size} end after {len(found)}")
        return found


@lru_cache(maxsize=OPEN_FILES)
def _open(path: Path, changed: int) -> BinaryIO:
    """An open file; one that falls out of the cache is closed when its last reader is done with it.

    ``changed``: when the file was written, so that another one of the same name is opened anew.
    """
    return path.open("rb", buffering=0)
