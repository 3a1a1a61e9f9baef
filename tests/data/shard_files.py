"""What tests of shards share: comparing structures, and an index written by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from denskit.batch import System
from denskit.data.readers.shards import INDEX, SIZES, ShardFile
from denskit.files import sha256_of


def same(one: System, other: System) -> None:
    """All fields but the place in the source, to the bit and the type."""
    for field in fields(one):
        if field.name != "index":
            a, b = getattr(one, field.name), getattr(other, field.name)
            assert type(a) is type(b), field.name
            assert np.array_equal(a, b), field.name
            assert not isinstance(a, np.ndarray) or a.dtype == b.dtype, field.name


def write_index(folder: Path, shards: Sequence[ShardFile], sizes: Sequence[int]) -> None:
    """By hand, as the format says."""
    np.save(folder / SIZES, np.array(sizes, dtype=np.int32))
    entries = [
        {"file": s.path.name, "structures": s.count, "bytes": s.path.stat().st_size, "sha256": sha256_of(s.path)}
        for s in shards
    ]
    index = {"format": "denskit-shards-1", "structures": len(sizes), "shards": entries}
    (folder / INDEX).write_text(json.dumps(index))
