"""Files of ``torch.save`` read without torch's loader: tensors, numbers, text and plain containers."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denskit.reading.arrays import check_members
from denskit.reading.budget import naming
from denskit.reading.documents import check_extent
from denskit.reading.pickles import PLAIN, STORAGES, Machine, Names, run, storage_of, tensor

_RECORD = "data.pkl"  # in a folder whose name varies


def read_torch(path: Path) -> Any:
    """The value that a file of ``torch.save`` (torch 1.6 or later) holds, tensors on the CPU.

    Raises FileNotFoundError, and ValueError: a name beyond tensors and plain containers, a damaged file, and one that
    would take far more memory than it has bytes.
    """
    size = path.stat().st_size
    with naming(path, "is damaged, or no file of torch.save (torch 1.6 or later)"), zipfile.ZipFile(path) as archive:
        check_members(archive, path)
        record = next((name for name in archive.namelist() if name.endswith(f"/{_RECORD}")), None)
        if record is None:
            raise ValueError(f"there is no {_RECORD}")
        folder = record.removesuffix(_RECORD)
        if f"{folder}byteorder" in archive.namelist() and archive.read(f"{folder}byteorder") != b"little":
            raise ValueError("its numbers are not little-endian")
        value = run(_Machine(archive, folder, path))
        check_extent(value, size, path)
        return value


class _Machine(Machine):
    """The pickle of a file; numbers of tensors lie beside it."""

    def __init__(self, archive: zipfile.ZipFile, folder: str, path: Path) -> None:
        super().__init__(archive.read(folder + _RECORD), _NAMES, path, path.stat().st_size)
        self.archive, self.folder = archive, folder
        self.storages: dict[str, np.ndarray] = {}

    def persistent(self, name: Any) -> np.ndarray:
        dtype, key, count = storage_of(name)
        if key not in self.storages:
            # a bytearray, since torch wants memory that it may write
            self.storages[key] = np.frombuffer(bytearray(self.archive.read(f"{self.folder}data/{key}")), np.uint8)
        numbers = self.storages[key]
        if len(numbers) != count * np.dtype(dtype).itemsize:
            raise ValueError(f"storage {key} says {count} numbers of {dtype} and has {len(numbers)} bytes")
        return numbers.view(dtype)


def _tensor(machine: Machine, *described: Any) -> Tensor:
    array = tensor(machine, *described)
    found = torch.from_numpy(array.view(np.int16) if array.dtype.kind == "V" else array)
    found = found.view(torch.bfloat16) if array.dtype.kind == "V" else found
    # numpy's strides of an empty array are not torch's, and fused optimizers on GPUs compare strides
    return found if found.numel() else torch.zeros(found.shape, dtype=found.dtype)


def _parameter(_: Machine, data: Any, *_unused: Any) -> Tensor:
    if not isinstance(data, Tensor):
        raise ValueError("a parameter that is no tensor")
    return data


_NAMES: Names = {
    **PLAIN,
    **STORAGES,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch", "Size"): lambda _, sizes: tuple(sizes),
}
