"""Arrays by name with checked shapes, of an npz file or of a pickled object."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Shape = tuple[int | None, ...]  # None: any length


class NamedArrays:
    """The arrays of a file or record.  Errors, ValueError, say ``where``, the array, its shape and the wanted one."""

    def __init__(self, arrays: Mapping[str, Any], where: str | Path) -> None:
        self.arrays, self.where = arrays, where

    @property
    def names(self) -> str:
        """All names, for messages."""
        return ", ".join(sorted(self.arrays)) or "nothing"

    def find(self, *names: str) -> str | None:
        """The first of ``names`` that is there."""
        return next((name for name in names if name in self.arrays), None)

    def numbers(self, *names: str, shape: Shape) -> np.ndarray:
        """The array under the first of ``names`` that is there, in float64; outer axes of length one may be extra."""
        name = self.find(*names)
        if name is None:
            raise ValueError(f"{self.where} has no array {' or '.join(names)}; it has {self.names}")
        value = found = np.asarray(self.arrays[name])
        while value.ndim > len(shape) and 1 in (value.shape[0], value.shape[-1]):  # energies [B, 1], cells [1, 3, 3]
            value = value[0] if value.shape[0] == 1 else value[..., 0]
        fits = value.ndim == len(shape) and all(w in (None, n) for w, n in zip(shape, value.shape, strict=True))
        if not fits or value.dtype.kind not in "fiub":
            wanted = ", ".join("any" if length is None else str(length) for length in shape)
            was = f"{found.dtype} of shape {found.shape}"
            raise ValueError(f"{self.where}: array {name} is {was}; wanted numbers of shape ({wanted})")
        return value.astype(np.float64)

    def optional(self, *names: str, shape: Shape, key: str | None = None, option: str = "") -> np.ndarray | None:
        """As :meth:`numbers`, or None.  ``key``: the name that the user gave by ``option``, which must be there."""
        if key is not None and key not in self.arrays:
            raise ValueError(f"{self.where} has no array {key} ({option}); it has {self.names}")
        names = names if key is None else (key,)
        return None if self.find(*names) is None else self.numbers(*names, shape=shape)

    def words(self, name: str, count: int) -> tuple[str, ...]:
        """The entries of an array as texts, one for each of ``count`` structures."""
        if name not in self.arrays or self.arrays[name].shape != (count,):
            raise ValueError(f"{self.where} has no array {name} with one entry for each of {count} frames")
        return tuple(str(value) for value in self.arrays[name])
