"""Pickles as torch_geometric wrote them, of its old and new versions, without torch_geometric; files made of them."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import lmdb
import numpy as np
import torch


class Data:
    """Stands for torch_geometric.data.data.Data: pickling writes only names and states."""


class GlobalStorage:
    """Stands for torch_geometric.data.storage.GlobalStorage."""


class DataEdgeAttr:
    pass


class DataTensorAttr:
    pass


PLACES = {
    "torch_geometric.data.data": (Data, DataEdgeAttr, DataTensorAttr),
    "torch_geometric.data.storage": (GlobalStorage,),
}


@contextmanager
def torch_geometric() -> Iterator[None]:
    """While this lasts, the classes above pickle under their published names."""
    parents = ("torch_geometric", "torch_geometric.data")
    modules = {name: ModuleType(name) for name in (*parents, *PLACES)}
    for name, classes in PLACES.items():
        for cls in classes:
            cls.__module__ = name
            setattr(modules[name], cls.__name__, cls)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


def new_object(attributes: dict[str, Any]) -> Data:
    """As torch_geometric >= 2 keeps attributes: in a store that knows its parent."""
    data, store = Data(), GlobalStorage()
    store.__dict__.update(_mapping=dict(attributes), _parent=data)
    data.__dict__.update(_edge_attr_cls=DataEdgeAttr, _tensor_attr_cls=DataTensorAttr, _store=store)
    return data


def old_object(attributes: dict[str, Any]) -> Data:
    """As torch_geometric 1 did: directly, with None for its own attributes that are not used."""
    data = Data()
    unused = dict.fromkeys(("x", "edge_index", "edge_attr", "y", "pos", "normal", "face"))
    data.__dict__.update(unused | attributes)
    return data


def pickled(value: Any, protocol: int = 4) -> bytes:
    with torch_geometric():
        return pickle.dumps(value, protocol=protocol)


def s2ef(record: int = 0, **changes: Any) -> dict[str, Any]:
    """Attributes of a small S2EF structure; ``changes`` replace some, None removes them."""
    rng = np.random.default_rng(record)
    n = 4 + record % 3
    attributes: dict[str, Any] = {
        "pos": torch.from_numpy(rng.uniform(0, 8, size=(n, 3))).float(),
        "cell": (torch.eye(3) * 8.0 + 0.1 * torch.from_numpy(rng.normal(size=(3, 3))).float())[None],
        "atomic_numbers": torch.tensor([29.0, 29.0, 8.0, 1.0, 6.0, 1.0][:n]),
        "natoms": n,
        "tags": torch.tensor([0, 1, 2, 2, 2, 2][:n]),
        "fixed": torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.0][:n]),
        "y": float(rng.normal()),
        "force": torch.from_numpy(rng.normal(size=(n, 3))).float(),
        "sid": 1000 + record // 4,
        "fid": record % 4,
    }
    return {name: value for name, value in (attributes | changes).items() if value is not None}


def write_lmdb(path: Path, records: Sequence[bytes], *, length: int | None = None, size: int = 2**24) -> Path:
    """Records under "0", "1", ...; ``length`` is written where it is given."""
    with lmdb.open(str(path), subdir=False, map_size=size, lock=False) as file, file.begin(write=True) as transaction:
        for index, record in enumerate(records):
            transaction.put(str(index).encode(), record)
        if length is not None:
            transaction.put(b"length", pickle.dumps(length))
    return path


def write_s2ef(path: Path, count: int, first: int = 0) -> Path:
    """An LMDB of ``count`` structures, numbered from ``first``."""
    records = [pickled(new_object(s2ef(first + index))) for index in range(count)]
    return write_lmdb(path, records, length=count)
