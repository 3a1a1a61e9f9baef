"""npz and npy files from outside: plain arrays, nothing unpickled, sizes checked before anything is allocated."""

from __future__ import annotations

import math
import sys
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from denskit.reading.budget import Unreadable, naming, require_allowed

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file.  Raises FileNotFoundError, and Unreadable naming the file and the array."""
    with naming(path, "is truncated or no npz file"), zipfile.ZipFile(path) as archive:
        check_members(archive, path)
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        return {member.filename.removesuffix(".npy"): _array(archive, member, path) for member in members}


def read_mapped(path: Path) -> np.ndarray:
    """The array of an npy file, mapped.  Raises FileNotFoundError, Unreadable."""
    with naming(path, "is truncated or no npy file"), path.open("rb") as file:
        _check_header(file, path.stat().st_size)
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        return array


def check_members(archive: zipfile.ZipFile, path: Path) -> None:
    """Raise Unreadable if the members of a zip file unpack to more than its allowance.

    Readers of a member get no more bytes than its entry says.
    """
    members = archive.infolist()
    require_allowed(sum(member.file_size for member in members), path.stat().st_size, path)
    for member in members:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Unreadable(f"{path}: member {member.filename} is compressed in another way than npz files are")


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> np.ndarray:
    where = f"{path}: array {member.filename.removesuffix('.npy')}"
    with naming(where, "is damaged, or no plain array"), archive.open(member) as stream:
        _check_header(stream, member.file_size)
        stream.seek(0)
        array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
        if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
            letters = np.ravel(array).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
            if letters.max() > sys.maxunicode:
                raise ValueError("its text has letters that do not exist")
        return array


def _check_header(stream: IO[bytes], size: int) -> None:
    """Raise ValueError if the header of an npy stream of ``size`` bytes asks for objects or for another size."""
    shape, _, dtype = _HEADERS[np.lib.format.read_magic(stream)](stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not read")
    if math.prod(shape) * dtype.itemsize != size - stream.tell():
        raise ValueError(f"{dtype} of shape {shape} in {size - stream.tell()} bytes")
