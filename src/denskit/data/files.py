"""Files: atomic writes, hashes, where downloads are kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that takes its place when the block ends well, and vanishes when it fails.

    The temporary keeps the suffix, from which writers choose their format.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def new_file(path: str | Path, *, inputs: Iterable[str | Path] = (), force: bool | None = None) -> Path:
    """The path of a file that a user wants written, checked before the work begins.

    inputs: files and folders that are read; none of them is ever replaced, nor a file inside such a folder.
    force: whether another existing file is replaced; None: never, and the command has no ``--force``.

    Raises ValueError where a file of the user's would be lost, and for a folder.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; wanted the name of a file to write")
    if not path.exists():
        return path
    for read in map(Path, inputs):
        if read.exists() and (path.samefile(read) or path.resolve().is_relative_to(read.resolve())):
            raise ValueError(f"{path} belongs to the input {read}; give another name for the output (nothing changed)")
    if not force:
        advice = "" if force is None else ", or replace it with --force"
        raise ValueError(f"{path} exists already: give another name{advice} (nothing changed)")
    return path


def identity(path: Path) -> tuple[int, str]:
    """Bytes and SHA-256 of a file; of a folder, the sum of its files' bytes and a hash of their names and sizes."""
    if not path.is_dir():
        return path.stat().st_size, sha256_of(path)
    sizes = {str(file.relative_to(path)): file.stat().st_size for file in sorted(path.rglob("*")) if file.is_file()}
    return sum(sizes.values()), hashlib.sha256(repr(sizes).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path:
    """Where downloads are kept: ``$DENSKIT_CACHE``, else ``~/.cache/denskit``."""
    return Path(os.environ.get("DENSKIT_CACHE") or Path.home() / ".cache" / "denskit")
