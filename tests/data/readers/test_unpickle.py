"""The restricted unpickler: published objects of every age, and attacks, none of which may run."""

from __future__ import annotations

import codecs
import io
import os
import pickle
import pickletools
import subprocess
import tracemalloc
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.published import Data, new_object, old_object, pickled, s2ef, torch_geometric
from denskit.data.readers import unpickle
from denskit.data.readers.unpickle import load_attributes, load_list, load_value

DTYPES = (
    torch.float64, torch.float32, torch.float16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


class Call:
    """Pickles as a call of ``function`` with ``arguments``."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("make", [new_object, old_object])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_objects_of_every_age_are_read(make: Any, protocol: int) -> None:
    wanted = s2ef()
    found = load_attributes(pickled(make(wanted), protocol), "here")
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.numpy().dtype
            np.testing.assert_array_equal(found[name], value.numpy())
        else:
            assert found[name] == value


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_type_and_layout(dtype: torch.dtype) -> None:
    base = torch.arange(24).reshape(4, 6).to(dtype)
    tensors = [
        base,
        base.T,
        base[1:3, 2:],
        base[:, 3],
        base[2, 3],
        base[:0],
        base[::2, ::3],
        torch.zeros(0, dtype=dtype),
    ]
    found = load_value(pickle.dumps(tensors), "here")
    for wanted, got in zip(tensors, found, strict=True):
        assert got.dtype == wanted.numpy().dtype and got.shape == tuple(wanted.shape)
        np.testing.assert_array_equal(got, wanted.numpy())
        assert not got.flags.writeable or got.size == 0  # a view of the record


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_storages_are_read_as_torch_reads_them() -> None:
    for dtype in DTYPES:
        stream = io.BytesIO()
        torch.save(torch.arange(5).to(dtype).storage(), stream, _use_new_zipfile_serialization=False)
        theirs = torch.load(io.BytesIO(stream.getvalue()), weights_only=True)
        ours = load_value(pickle.dumps(Call(torch.storage._load_from_bytes, stream.getvalue())), "here")
        np.testing.assert_array_equal(ours, np.array(theirs.tolist()))


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("value", [np.float64(-1.25), np.float32(0.1), np.int64(2**40), np.int32(-3), np.bool_(True)])
def test_numpy_numbers(value: Any, protocol: int) -> None:
    assert load_value(pickle.dumps(value, protocol), "here") == value.item()


def test_numpy_numbers_by_the_old_name_of_their_module() -> None:
    raw = pickle.dumps(np.float64(2.5), 2)
    old = raw.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"numpy.core.multiarray" in old
    assert load_value(old, "here") == 2.5


def test_real_objects(data_dir: Path) -> None:
    path = data_dir / "oc22_s2ef_train16.pkl"
    objects = load_list(path.read_bytes(), str(path))
    assert len(objects) == 16
    assert objects[0]["pos"].shape == (109, 3)
    assert objects[0]["y"] == -566.62288864


# --- attacks ---------------------------------------------------------------------------------------------------------


def _touch(path: Path) -> list[tuple[str, Any]]:
    """Ways to run something that makes the file ``path``, by the name that has to be refused."""
    command = f"touch {path}"
    code = f"open({str(path)!r}, 'w').close()"
    return [
        (f"{os.system.__module__}.system", Call(os.system, command)),
        ("builtins.exec", Call(exec, code)),
        ("builtins.eval", Call(eval, code)),
        ("subprocess.Popen", Call(subprocess.Popen, ["touch", str(path)])),
        ("builtins.getattr", Call(getattr, "text", "join")),
        ("io.open", Call(open, str(path), "w")),
        ("torch.serialization.load", Call(torch.load, str(path))),
    ]


ATTACKS = [name for name, _ in _touch(Path("x"))]


def nested(attack: Any) -> bytes:
    """A torch stream whose first part is the attack: torch.storage._load_from_bytes would run it."""
    return pickle.dumps(attack, protocol=4)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("place", ["top", "in a list", "state", "store", "nested", "reference", "hooks"])
def test_attacks_are_refused_by_name_and_not_run(name: str, place: str, tmp_path: Path) -> None:
    victim = tmp_path / "touched"
    attack = dict(_touch(victim))[name]
    with torch_geometric():
        old, new = old_object(s2ef()), new_object(s2ef())
        old.__dict__["pos"] = attack
        new.__dict__["_store"].__dict__["_mapping"]["pos"] = attack
        values = {
            "top": attack,
            "in a list": [s2ef(), attack],
            "state": old,
            "store": new,
            "nested": Call(torch.storage._load_from_bytes, nested(attack)),
            "reference": {"random1": attack},
            "hooks": Call(torch._utils._rebuild_tensor_v2, attack, 0, (1,), (1,), False, OrderedDict()),
        }
        raw = pickle.dumps(values[place], protocol=4)
    with pytest.raises(ValueError, match=r"here: the pickle asks for .*nothing of it was run") as refused:
        load_value(raw, "here")
    assert name in str(refused.value)
    assert not victim.exists()


def test_the_attacks_would_work(tmp_path: Path) -> None:
    """What the tests above refuse does run elsewhere, so that they can fail."""
    first, second = tmp_path / "first", tmp_path / "second"
    pickle.loads(pickle.dumps(dict(_touch(first))["builtins.exec"]))
    with pytest.raises(RuntimeError):  # after it has run the attack
        pickle.loads(pickle.dumps(Call(torch.storage._load_from_bytes, nested(dict(_touch(second))["builtins.exec"]))))
    assert first.exists() and second.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch_geometric.data.data", "BaseData"),  # a neighbour of what is allowed
        ("torch_geometric.data", "Data"),
        ("torch_geometric.data.data.Data", "__init__"),
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ("torch._utils", "_rebuild_parameter"),
        ("torch.storage", "_load_from_bytes_"),
        ("collections", "OrderedDict.fromkeys"),
        ("numpy", "load"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("_codecs", "decode"),
        ("torch", "FloatStorage"),  # inside a tensor only
    ],
)
def test_only_exact_names_are_known(module: str, name: str) -> None:
    raw = b"\x80\x04" + _text(module) + _text(name) + b"\x93."
    with pytest.raises(ValueError, match="asks for") as refused:
        load_value(raw, "here")
    assert f"{module}.{name}" in str(refused.value)


def _text(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


@pytest.mark.parametrize("function", ["_load_from_bytes", "_rebuild_tensor_v2", "OrderedDict", "Data"])
def test_a_pickle_cannot_change_what_it_may_call(function: str) -> None:
    """BUILD on a function sets its attributes, for every later record; here it fails."""
    module = next(place for place, name in unpickle._NAMES if name == function)
    value = unpickle._NAMES[module, function]
    for state in ({"call": 1}, (None, {"__defaults__": (1,)}), (None, {"_function": 2})):
        raw = b"\x80\x04" + _text(module) + _text(function) + b"\x93" + pickle.dumps(state, 4)[2:-1] + b"b."
        raw = raw.replace(pickle.dumps(state, 4)[2:11], b"", 1) if pickle.dumps(state, 4)[2] == 0x95 else raw
        assert any(op.name == "BUILD" for op, _, _ in pickletools.genops(raw))
        with pytest.raises(ValueError, match="here is damaged"):
            load_value(raw, "here")
    assert unpickle._NAMES[module, function] is value
    assert load_attributes(pickled(new_object(s2ef())), "here")["natoms"] == 4


def test_a_storage_cannot_claim_more_than_it_has() -> None:
    stream = io.BytesIO()
    torch.save(torch.arange(300).storage(), stream, _use_new_zipfile_serialization=False)
    raw = stream.getvalue()
    size = (300).to_bytes(8, "little")
    assert raw.count(size) == 1
    huge = raw.replace(size, (2**40).to_bytes(8, "little"))
    for wrong in (huge, raw[:-1], raw + b"\0", raw[:-2408]):
        with pytest.raises(ValueError, match="here is damaged"):
            load_value(pickle.dumps(Call(torch.storage._load_from_bytes, wrong)), "here")


@pytest.mark.parametrize(
    ("offset", "shape", "stride"),
    [(0, (6,), (1,)), (-1, (2,), (1,)), (1, (5,), (1,)), (0, (2, 2), (4, 1)), (0, (2**40,), (0,)), (0, (2,), (-1,)),
     (0, (2, 2), (1,)), (0, (2.0,), (1,)), (True, (1,), (1,))],
)  # fmt: skip
def test_a_tensor_cannot_reach_outside_its_storage(offset: Any, shape: Any, stride: Any) -> None:
    storage = torch.arange(5).storage()
    call = Call(torch._utils._rebuild_tensor_v2, storage, offset, shape, stride, False, OrderedDict())
    with pytest.raises(ValueError, match="here is damaged|here has .* and would take over"):
        load_value(pickle.dumps(call), "here")


def _traced(raw: bytes) -> int:
    """Bytes that reading a record allocated at most, whatever becomes of it."""
    tracemalloc.start()
    try:
        with suppress(ValueError):
            load_value(raw, "here")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x04Nr\x00\x00\x00\x04.",  # a place in the memo: Python makes room up to there, here for 1 GB
        b"Np60000000\n.",
        b"\x80\x05\x96" + (2**30).to_bytes(8, "little") + b".",  # a bytearray, made before it is read
        b"\x80\x04\x8e" + (2**30).to_bytes(8, "little") + b".",
    ],
    ids=["memo", "memo in words", "bytearray", "bytes"],
)
def test_a_size_beyond_the_record_allocates_nothing(raw: bytes) -> None:
    assert _traced(raw) < 1e6


def test_a_storage_shared_by_many_tensors_is_held_once() -> None:
    stream = io.BytesIO()
    torch.save(torch.arange(10_000).storage(), stream, _use_new_zipfile_serialization=False)
    storage = Call(torch.storage._load_from_bytes, stream.getvalue())
    many = [Call(torch._utils._rebuild_tensor_v2, storage, k, (9_000,), (1,), False, OrderedDict()) for k in range(500)]
    raw = pickle.dumps(many)
    assert [array[0] for array in load_value(raw, "here")] == list(range(500))
    assert _traced(raw) < 3e6  # 36 MB as copies


def test_a_text_used_as_bytes_again_and_again_is_refused() -> None:
    text = "t" * 10_000
    raw = pickle.dumps([Call(codecs.encode, text, "latin1") for _ in range(500)], 2)
    with pytest.raises(ValueError, match="again and again"):
        load_value(raw, "here")
    assert load_value(pickle.dumps([b"one" * 1000, b"two\xff" * 1000], 2), "here") == [b"one" * 1000, b"two\xff" * 1000]


def _endless() -> list[Any]:
    """10^30 numbers in 300 places."""
    value: list[Any] = [1.0] * 10
    for _ in range(29):
        value = [value] * 10
    return value


def test_lists_that_share_their_parts_are_never_walked_through() -> None:
    storage, build = torch.arange(5).storage(), torch._utils._rebuild_tensor_v2
    wrong = [
        Call(build, storage, 0, _endless(), (1,), False, OrderedDict()),
        Call(build, storage, _endless(), (1,), (1,), False, OrderedDict()),
        Call(codecs.encode, "text", _endless()),
        Call(np.dtype, _endless(), False, True),
    ]
    for value in wrong:
        with pytest.raises(ValueError, match="here is damaged") as refused:
            load_value(pickle.dumps(value), "here")
        assert len(str(refused.value)) < 200
    attributes = load_attributes(pickled(new_object({**s2ef(), "pos": _endless()})), "here")
    assert "pos" not in attributes


def test_own_records_are_told_what_to_write() -> None:
    for own in ({"pos": np.zeros((2, 3))}, {"pos": torch.zeros(2, 3)}):
        with pytest.raises(ValueError, match=r"in the form of OC20 .* ase\.io\.write\('mine\.extxyz', frames\)"):
            load_attributes(pickle.dumps(own), "here")


@pytest.mark.parametrize("value", [{"pos": 1}, [1, 2], 3, "text", None, [new_object(s2ef()), 4]])
def test_what_is_no_object_is_named(value: Any) -> None:
    raw = pickled(value)
    with pytest.raises(ValueError, match="here holds a"):
        load_attributes(raw, "here")
    with pytest.raises(ValueError, match="here holds a"):
        load_list(raw, "here")


def test_objects_without_attributes_are_named() -> None:
    empty = Data()
    odd = new_object(s2ef())
    odd.__dict__["_store"] = 4
    for wrong in (empty, odd):
        with pytest.raises(ValueError, match="without the attributes"):
            load_attributes(pickled(wrong), "here")


WHOLE = pickled(new_object(s2ef(fid=7)))  # once: storages are named by addresses, so no two pickles are of one length


@settings(max_examples=150)
@given(data=st.data())
def test_damage_raises_only_what_it_should(data: st.DataObject) -> None:
    """Cut or changed bytes give a structure or a ValueError: never another error, never a call."""
    raw = bytearray(WHOLE)
    position = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw = raw[:position]
    else:
        raw[position] = data.draw(st.integers(0, 255))
    with suppress(ValueError):
        load_attributes(bytes(raw), "here")
