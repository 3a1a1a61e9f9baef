"""LMDB files, read one record at a time (needs the package ``lmdb``: pip install 'denskit[oc]').

A file is opened once, whoever reads from it, and shared by all threads.  Forked processes go on with what their parent
opened, which is sound here since nothing is locked and nothing written; pickled readers carry the path only.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

_OPENED: WeakValueDictionary[Path, _Environment] = WeakValueDictionary()  # the package refuses to open a file twice
_OPENING = threading.Lock()


class LmdbFile:
    """A file of keys and values, opened for reading only, without a lock file.

    Raises FileNotFoundError, and ValueError for a file that is truncated or no LMDB.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = self._environment().entries
        """Number of keys, special ones included."""

    def get(self, key: str) -> bytes | None:
        """The value of a key, or None.  Raises ValueError, naming file and key, where the file is corrupt."""
        environment = self._environment()
        try:
            with environment.handle.begin() as transaction:
                return transaction.get(key.encode("ascii"))
        except environment.error as error:
            raise ValueError(f"{self.path}, key {key!r}: the LMDB file is corrupt ({error})") from None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "entries": self.entries}

    def _environment(self) -> _Environment:
        kept: _Environment | None = self.__dict__.get("_kept")
        if kept is None:
            kept = self.__dict__["_kept"] = _open(self.path.resolve())
        return kept


def _open(path: Path) -> _Environment:
    with _OPENING:
        environment = _OPENED.get(path)
        if environment is None:
            environment = _OPENED[path] = _Environment(path)
        return environment


class _Environment:
    """An open file."""

    def __init__(self, path: Path) -> None:
        lmdb = _lmdb(path)
        if not path.is_file():
            raise FileNotFoundError(f"no file {path}")
        self.error = lmdb.Error
        try:
            self.handle = lmdb.open(str(path), subdir=False, readonly=True, lock=False, readahead=False, max_readers=1)
            pages, page = self.handle.info()["last_pgno"] + 1, self.handle.stat()["psize"]
            self.entries = int(self.handle.stat()["entries"])
        except lmdb.Error as error:
            raise ValueError(f"{path} is no LMDB file, or its beginning is damaged ({error})") from None
        size = path.stat().st_size
        if size < pages * page:  # reading beyond the end would kill the process, not raise
            self.handle.close()
            raise ValueError(
                f"{path} is truncated: it has {size} bytes, its {pages} pages need {pages * page}. Copy or "
                "download it again"
            )


def _lmdb(path: Path) -> Any:
    try:
        import lmdb
    except ImportError:
        raise ValueError(f"{path}: LMDB files need the package lmdb: pip install 'denskit[oc]'") from None
    return lmdb
