"""Files of ``torch.save``: what ours reads is what torch reads, and nothing of them runs."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from data.readers.test_unpickle import Call
from denskit.reading.torch_files import read_torch
from fuzz.mutations import zipped

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


def _saved(path: Path, value: Any) -> Path:
    torch.save(value, path)
    return path


def _same(one: Any, other: Any) -> None:
    if isinstance(one, Tensor):
        assert isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            _same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            _same(a, b)
    else:
        assert one == other


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_type_and_layout(dtype: torch.dtype, tmp_path: Path) -> None:
    base = torch.arange(24).reshape(4, 6).to(dtype)
    tensors = [base, base.T, base[1:3, 2:], base[:, 3], base[2, 3], base[:0], base[::2, ::3], base[0].expand(3, 6)]
    found = read_torch(_saved(tmp_path / "a.pt", tensors))
    _same(tensors, found)
    found[0].fill_(1)  # memory of its own


def test_a_training_and_its_numbers(tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    content = {
        "state_dict": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "ema": [network[0].weight],
        "best": np.float64(0.5),
        "count": np.int64(7),
        "sizes": torch.Size([2, 3]),
        "ordered": OrderedDict(a=1, b=None),
        "text": "é" * 300,
        "raw": b"\x00\xff",
        "large": [2**31, -(2**62), -1.5, True],
    }
    path = _saved(tmp_path / "a.pt", content)
    found = read_torch(path)
    _same({**content, "ema": [network[0].weight.detach()]}, found)
    optimizer.load_state_dict(found["optimizer"])
    del content["best"], content["count"]  # which torch's loader refuses
    again = _saved(tmp_path / "b.pt", content)
    _same(torch.load(again, weights_only=True), read_torch(again))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_of_every_protocol(protocol: int, tmp_path: Path) -> None:
    value = {"a": [[torch.ones(k), (k, "two", 3.0, 2**40), b"three"] for k in range(100)]}
    torch.save(value, tmp_path / "a.pt", pickle_protocol=protocol)
    _same(value, read_torch(tmp_path / "a.pt"))


def test_storages_are_shared_and_read_once(tmp_path: Path) -> None:
    base = torch.zeros(100_000)
    found = read_torch(_saved(tmp_path / "a.pt", [base[k:] for k in range(50)]))
    found[0][60] = 1
    assert float(found[49][11]) == 1


@pytest.mark.parametrize("function", [os.system, os.remove, torch.load, np.load, torch.nn.Linear])
def test_code_is_refused_by_name(function: Any, tmp_path: Path) -> None:
    name = f"{function.__module__}.{function.__qualname__}"
    path = _saved(tmp_path / "a.pt", {"state_dict": [1, {"x": Call(function, "touch ran", "a")}]})
    with pytest.raises(ValueError, match=rf"a.pt: the pickle asks for {name}, which .* nothing of it was run"):
        read_torch(path)


def test_numbers_of_numpy_do_not_open_a_way_to_code(tmp_path: Path) -> None:
    """The scalar's constructor takes objects for a dtype of objects; what they are made of is refused all the same."""
    proof = tmp_path / "proof"
    scalar = Call(np._core.multiarray.scalar, np.dtype("O"), Call(os.mkdir, str(proof)))  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"a\.pt is damaged.*numpy dtype that is no number's"):
        read_torch(_saved(tmp_path / "a.pt", {"x": scalar}))
    assert not proof.exists()


def _without(path: Path, ending: str, content: bytes | None = None) -> Path:
    """The file with a member changed or gone."""
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist() if not name.endswith(ending)}
        changed = {} if content is None else {name: content for name in archive.namelist() if name.endswith(ending)}
    path.write_bytes(zipped(held | changed))
    return path


@pytest.mark.parametrize(
    ("ending", "content", "message"),
    [
        ("data.pkl", None, "there is no data.pkl"),
        ("data/0", None, "no .*data/0"),
        ("data/0", b"123", "storage 0 says 5 numbers of <f4 and has 3 bytes"),
        ("byteorder", b"big", "not little-endian"),
        ("data.pkl", pickle.dumps({1: 2})[:-2], "cut off|IndexError"),
        ("data.pkl", b"text", "or no pickle"),
    ],
)
def test_damage_is_named(ending: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    path = _saved(tmp_path / "a.pt", torch.ones(5))
    with pytest.raises(ValueError, match=rf"a.pt is damaged.*({message})"):
        read_torch(_without(path, ending, content))


def test_older_and_other_files_are_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    torch.save(torch.ones(2), stream, _use_new_zipfile_serialization=False)
    (tmp_path / "a.pt").write_bytes(stream.getvalue())
    with pytest.raises(ValueError, match="a.pt is damaged, or no file of torch.save"):
        read_torch(tmp_path / "a.pt")
    with pytest.raises(FileNotFoundError):
        read_torch(tmp_path / "absent.pt")
