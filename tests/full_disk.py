"""A disk that is full, as files see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """The system refuses to write more bytes into any file, as a full disk does."""
    resource = pytest.importorskip("resource", reason="file size limits are POSIX's")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
