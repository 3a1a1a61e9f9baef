"""Files: atomic writes, hashes, where downloads are kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
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
