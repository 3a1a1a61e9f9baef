"""Reads published structures, which are pickles, without trusting them and without torch_geometric.

A tensor's numbers lie in a pickle within the pickle, for which torch calls ``torch.storage._load_from_bytes``, itself
an unrestricted load.  :func:`_storage` takes its place.  It parses torch's old, non-zip stream, which may name number
types only: it permits less than ``torch.load(weights_only=True)``, agrees with it, and is many times as fast.
Arrays are views of the record, however many share a storage.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np

from denskit.reading.pickles import PLAIN, STORAGES, Built, Machine, Names, kind, run, storage_of, tensor

_OWN = (
    "Such files are read in the form of OC20 and OC22. Write structures of your own, as from dicts of numpy arrays, "
    "with ASE: ase.io.write('mine.extxyz', frames); denskit data convert makes shards of them"
)
_MAGIC = 0x1950A86A20F9469CFC6C  # the number that begins torch's non-zip streams
_PROTOCOL = 1001
# Such a stream of one storage, byte by byte as torch writes it; its groups: type and key of the storage, key again.
_USUAL = re.compile(
    rb"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19\.\x80\x02M\xe9\x03\.\x80\x02}q\x00\(X\x10\x00\x00\x00protocol_versionq"
    rb"\x01M\xe9\x03X\r\x00\x00\x00little_endianq\x02\x88X\n\x00\x00\x00type_sizesq\x03}q\x04\(X\x05\x00\x00\x00shortq\x05K"
    rb"\x02X\x03\x00\x00\x00intq\x06K\x04X\x04\x00\x00\x00longq\x07K\x04uu\.\x80\x02\(X\x07\x00\x00\x00storageq\x00c(torch\n\w+)"
    rb"\nq\x01(X.\x00\x00\x00\d+)q\x02X\x03\x00\x00\x00cpuq\x03(?:K.|M..|J....)Ntq\x04Q\.\x80\x02\]q\x00(X.\x00\x00\x00\d+)q\x01"
    rb"a\.",
    re.DOTALL,
)
_TYPES = {"\n".join(name).encode(): dtype for name, dtype in STORAGES.items()}


def load_attributes(raw: bytes, where: str) -> dict[str, Any]:
    """Attributes of one pickled torch_geometric ``Data``, of any version; tensors as numpy arrays.

    Raises ValueError, saying ``where``, for anything else: a name that is not on the list, a truncated record.
    """
    value = load_value(raw, where)
    if not isinstance(value, _Record):
        raise ValueError(f"{where} holds {kind(value)}; wanted a pickled torch_geometric Data object. {_OWN}")
    return _attributes(value, where)


def load_list(raw: bytes, where: str) -> list[dict[str, Any]]:
    """The same for a pickled list of ``Data``."""
    value = load_value(raw, where)
    if not isinstance(value, list | tuple) or not all(isinstance(item, _Record) for item in value):
        raise ValueError(f"{where} holds {kind(value)}; wanted a pickled list of torch_geometric Data objects. {_OWN}")
    return [_attributes(item, f"{where}, record {index}") for index, item in enumerate(value)]


def load_value(raw: bytes, where: str) -> Any:
    """Any pickle of numbers, text, lists, dicts, numpy scalars, tensors and ``Data``; see :func:`load_attributes`."""
    return run(_StructureMachine(raw, _NAMES, where))


class _Record(Built):
    """The pickled state of one of torch_geometric's objects."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def build(self, state: Any) -> None:
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise pickle.UnpicklingError(f"an object's state is {kind(state)}, not a dict of names")
        self.state = state


class _StructureMachine(Machine):
    advice = _OWN


class _StorageMachine(_StructureMachine):
    inside = " (inside a tensor)"

    def persistent(self, name: Any) -> tuple[str, str, int]:
        return storage_of(name)


def _storage(machine: Machine, raw: bytes) -> np.ndarray:
    """The numbers [n] of a storage that torch saved in its non-zip format: five pickles, a count, the numbers."""
    machine.read_inner(len(raw))
    usual = _USUAL.match(raw)
    if usual and usual[2] == usual[3] and usual[1] in _TYPES:  # many times as fast
        dtype, start = _TYPES[usual[1]], usual.end()
    else:
        dtype, start = _described(raw, machine.where)
    count, size = int.from_bytes(raw[start : start + 8], "little"), np.dtype(dtype).itemsize
    if len(raw) - start - 8 != count * size:
        raise pickle.UnpicklingError(
            f"a tensor's storage says {count} numbers of {size} bytes and has {len(raw) - start - 8} bytes"
        )
    return np.frombuffer(raw, dtype=dtype, offset=start + 8)


def _described(raw: bytes, where: str | Path) -> tuple[str, int]:
    """Type of a storage's numbers, and where their count stands, from the five pickles."""
    reader = _StorageMachine(raw, STORAGES, where)
    if reader.load() != _MAGIC or reader.load() != _PROTOCOL or not reader.load()["little_endian"]:
        raise pickle.UnpicklingError("a tensor's storage is not in torch's non-zip format, little endian")
    dtype, key, _ = reader.load()
    if reader.load() != [key]:
        raise pickle.UnpicklingError("a tensor's storage has several parts")
    return dtype, reader.position


_NAMES: Names = {
    **PLAIN,
    ("torch_geometric.data.data", "Data"): _Record,
    ("torch_geometric.data.storage", "GlobalStorage"): _Record,
    ("torch_geometric.data.data", "DataEdgeAttr"): "DataEdgeAttr",  # classes that objects mention without use
    ("torch_geometric.data.data", "DataTensorAttr"): "DataTensorAttr",
    ("torch._utils", "_rebuild_tensor_v2"): tensor,
    ("torch.storage", "_load_from_bytes"): _storage,
}


def _attributes(record: _Record, where: str) -> dict[str, Any]:
    """Numbers, texts and tensors of a ``Data``: since version 2.0 in ``_store``, before directly."""
    state = record.state
    if "_store" in state:
        store = state["_store"]
        state = store.state.get("_mapping", {}) if isinstance(store, _Record) else {}
    if not isinstance(state, dict) or not state or not all(isinstance(name, str) for name in state):
        raise ValueError(f"{where}: a torch_geometric object without the attributes that every version has")
    return {name: value for name, value in state.items() if isinstance(value, int | float | str | np.ndarray)}
