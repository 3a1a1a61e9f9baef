"""Files made to kill, hang or swell whoever reads them, or to run code; each is a few bytes to a few megabytes."""

from __future__ import annotations

import io
import json
import lzma
import os
import pickle
import tempfile
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.readers.test_ase_databases import ENDLESS, with_loop, with_view
from data.readers.test_unpickle import Call
from fuzz.child import Files
from fuzz.formats import FORMATS
from fuzz.mutations import lmdb_of, with_header, zipped

SWOLLEN = 700 << 20  # bytes that a small file unpacks to


# --- pickles ----------------------------------------------------------------------------------------------------------


def pickles() -> dict[str, bytes]:
    """Pickles that every reader of pickles must refuse, or survive."""
    deep, key = 100_000, 300_000
    build, numbers = torch._utils._rebuild_tensor_v2, torch.zeros(1).storage()
    return {
        "deep tuple as key": b"\x80\x04})" + b"\x85" * key + b"Ns.",
        "wide tuple as key": b"\x80\x04})" + b"2\x86" * 60 + b"Ns.",
        "wide tuple as key, by the memo": b"\x80\x04})q\x00" + b"h\x00\x86q\x00" * 60 + b"Ns.",
        "deep tuple in a set": b"\x80\x04\x8f()" + b"\x85" * key + b"\x90.",
        "wide tuple in a frozenset": b"\x80\x04()" + b"2\x86" * 60 + b"\x91.",
        "deep tuple": b"\x80\x04)" + b"\x85" * deep + b".",
        "deep list": b"\x80\x04" + b"]" * deep + b"a" * (deep - 1) + b".",
        "deep dict": b"\x80\x04}" + b"K\x00}" * deep + b"s" * deep + b".",
        "deep object": _deep_object(deep),
        "keys of one hash": b"\x80\x04}(" + b"".join(_integer(k * (2**61 - 1)) for k in range(1, 100_000)) + b"u.",
        "huge integer": b"\x80\x04\x8b" + (2**30).to_bytes(4, "little") + b"\xff" * 100 + b".",
        "huge integer as key": b"\x80\x04}" + _long(10**6) + b"q\x00NsN" + b"}h\x00Ns" * 10**5 + b".",
        "huge place": b"\x80\x04Nr\xff\xff\xff\x7f.",
        "huge text": b"\x80\x04\x8d" + (2**40).to_bytes(8, "little") + b".",
        "shared lists": pickle.dumps(_shared(), 2),
        "code": pickle.dumps(Call(os.system, "touch ran"), 2),
        "many dimensions": pickle.dumps(Call(build, numbers, 0, (1,) * 100_000, (1,) * 100_000, False, OrderedDict())),
        "huge name": b"\x80\x02c" + b"a" * 10**6 + b"\nb\n.",
        "huge view": pickle.dumps(Call(build, numbers, 0, (2**40,), (0,), False, OrderedDict())),
        "inner stream again and again": _inner_again(),
    }  # fmt: skip


def _integer(number: int) -> bytes:
    return b"\x8a\x0a" + number.to_bytes(10, "little", signed=True) + b"N"


def _long(size: int) -> bytes:
    return b"\x8b" + size.to_bytes(4, "little") + b"\x7f" * size


def _deep_object(depth: int) -> bytes:
    """Objects whose state holds the next one."""
    name = b"\x8c\x19torch_geometric.data.data\x8c\x04Data\x93q\x00"
    return b"\x80\x04" + name + b"h\x00)\x81}X\x01\x00\x00\x00a" * depth + b"N" + b"sb" * depth + b"."


def _shared() -> list[Any]:
    value: list[Any] = [1.0, 2.0]
    for _ in range(60):
        value = [value, value]
    return value


def _inner_again() -> bytes:
    """A stream of a tensor's numbers, slow to parse, named 2,000 times."""
    stream = io.BytesIO()
    torch.save(torch.arange(3).storage(), stream, _use_new_zipfile_serialization=False)
    slow = stream.getvalue().replace(b"}q\x00(X\x10", b"]" * 10**6 + b"}q\x00(X\x10", 1)
    name = b"\x8c\rtorch.storage\x8c\x10_load_from_bytes\x93q\x00"
    begin = b"\x80\x04" + name + b"B" + len(slow).to_bytes(4, "little") + slow + b"q\x01"
    return begin + b"h\x00h\x01\x85R" * 2000 + b"."


def _in_record(raw: bytes) -> Files:
    return {"a.lmdb": lmdb_of({b"0": raw, b"length": pickle.dumps(1)})}


def _in_torch_file(name: str, raw: bytes) -> Files:
    with zipfile.ZipFile(io.BytesIO(FORMATS["last"].seed()["last.pt"])) as archive:
        held = {member: archive.read(member) for member in archive.namelist()}
    return {name: zipped({member: raw if member.endswith("data.pkl") else held[member] for member in held})}


def _of_pickles() -> Iterator[tuple[str, str, Callable[[], Files]]]:
    for name, raw in pickles().items():
        yield "lmdb", f"record: {name}", lambda raw=raw: _in_record(raw)
        yield "published", f"checkpoint: {name}", lambda raw=raw: _in_torch_file("a.pt", raw)
        if name in ("code", "deep tuple as key", "wide tuple as key"):  # the others go the same ways
            yield "pickled", f"list: {name}", lambda raw=raw: {"a.pkl": raw}
            yield "references", f"references: {name}", lambda raw=raw: {"systems.pkl": raw}
            yield "last", f"last.pt: {name}", lambda raw=raw: _in_torch_file("last.pt", raw)


def _shared_settings() -> Files:
    """A whole checkpoint whose configuration has 2^60 parts."""
    from models.test_published import state_of
    from models.test_published_open_catalyst import checkpoint

    stream = io.BytesIO()
    torch.save(checkpoint(state_of(), {"name": "equiformer", "num_layers": _shared()}), stream)
    return {"a.pt": stream.getvalue()}


def _expanded() -> Files:
    stream = io.BytesIO()
    torch.save({"state_dict": {"weight": torch.zeros(1).expand(2**31)}}, stream)
    return {"a.pt": stream.getvalue()}


# --- small files that unpack to very much -----------------------------------------------------------------------------


def _zip_bomb(member: str, begin: bytes, others: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in others.items():
            archive.writestr(name, content)
        with archive.open(member, "w") as file:
            file.write(begin)
            for _ in range(SWOLLEN >> 20):
                file.write(bytes(1 << 20))
    return stream.getvalue()


def _npy(shape: tuple[int, ...], descr: str = "<f8") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"shape": shape, "fortran_order": False, "descr": descr})
    return stream.getvalue()


def _npz_bomb() -> Files:
    return {"a.npz": _zip_bomb("R.npy", _npy((SWOLLEN // 216, 9, 3)), {"z.npy": _npy((9,), "|u1") + b"\6" * 9})}


def _torch_bomb() -> Files:
    held = _in_torch_file("a.pt", b"\x80\x02N.")["a.pt"]
    with zipfile.ZipFile(io.BytesIO(held)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    return {"a.pt": _zip_bomb("archive/data/0", b"", {"archive/data.pkl": _named_storage(SWOLLEN), **members})}


def _named_storage(count: int) -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return ("storage", torch.ByteStorage, "0", "cpu", count) if value == "numbers" else None

    stream = io.BytesIO()
    Pickler(stream, 2).dump("numbers")
    return stream.getvalue()


def _rows(text: bytes) -> Files:
    one = json.dumps(2).encode()
    return {"a.aselmdb": lmdb_of({b"nextid": zlib.compress(one), b"1": zlib.compress(text, 1)})}


def _xz(text: bytes, times: int = 1) -> bytes:
    return lzma.compress(text, preset=0) * times  # streams behind each other are one file


_COMMENT = b'Lattice="7 0 0 0 7 0 0 0 7" Properties=species:S:1:pos:R:3:move_mask:L:1:forces:R:3 energy=-1'
_ATOM = b"\nCu 0 0 0 F 0 0 0\n"


def _raw(frames: bytes, text: bytes = b"random1,frame1,0.5\n", times: int = 1) -> Files:
    return {"0.extxyz.xz": _xz(frames, times), "0.txt.xz": _xz(text)}


# --- documents --------------------------------------------------------------------------------------------------------

DEEP = b"[" * 200_000 + b"]" * 200_000


def _model(**changes: Any) -> Files:
    """A model file with other settings."""
    raw = FORMATS["model"].seed()["a.safetensors"]
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    about = json.loads(header["__metadata__"]["denskit"])
    about["model"] = changes.pop("whole", about["model"]) | changes.pop("model", {})
    header["__metadata__"]["denskit"] = json.dumps(about | changes)
    return {"a.safetensors": with_header(raw, json.dumps(header).encode())}


def _deep_model() -> Files:
    raw = FORMATS["model"].seed()["a.safetensors"]
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    header["__metadata__"]["denskit"] = DEEP.decode()
    return {"a.safetensors": with_header(raw, json.dumps(header).encode())}


def _shard(change: Callable[[dict[str, Any]], Any]) -> Files:
    """A shard with a changed header."""
    raw = FORMATS["shards"].seed()["shard-00000.safetensors"]
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    change(header)
    return {"shard-00000.safetensors": with_header(raw, json.dumps(header).encode())}


def _split(**changes: Any) -> Files:
    return {"splits.json": json.dumps(json.loads(FORMATS["splits"].seed()["splits.json"]) | changes).encode()}


def _poscar(atoms: int) -> Files:
    return {"POSCAR": f"H\n1.0\n8 0 0\n0 8 0\n0 0 8\nH\n{atoms}\nDirect\n0 0 0\n".encode()}


def _database(make: Callable[[Path], Path]) -> Files:
    with tempfile.TemporaryDirectory() as folder:
        return {"a.db": make(Path(folder) / "a.db").read_bytes()}


def _endless(path: Path) -> Path:
    return with_view(path, f"{ENDLESS} SELECT {{columns}} FROM old, n")


def laughs(levels: int = 40) -> bytes:
    """A YAML text with 10^levels parts."""
    lines = [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, levels)]
    return "\n".join(["a0: &a0 [1]", *lines, f"model: {{num_layers: *a{levels - 1}}}"]).encode()


def _merges(levels: int = 40) -> bytes:
    lines = [f"a{k}: &a{k} {{<<: [{', '.join([f'*a{k - 1}'] * 10)}]}}" for k in range(1, levels)]
    return "\n".join(["a0: &a0 {x: 1}", *lines]).encode()


def _yamls() -> dict[str, bytes]:
    return {
        "laughs": laughs(),
        "merges": _merges(),
        "recursion": b"model: &a [*a]\n",
        "deep": b"model: " + DEEP[:100_000] + DEEP[-100_000:],
        "deep blocks": b"\n".join(b" " * k + b"a:" for k in range(700)),
        "deep keys": b"? " * 100_000,
        "not UTF-8": b"model: {name: \xff\xfe}\n",
        "long": b"model: [" + b"1, " * 500_000 + b"]\n",
        "open": b"model: " + b"[" * 250_000,
        "base sixty": b"model: {num_layers: 1" + b":59" * 60_000 + b"}\n",
        "interpolation": b"model: {num_layers: '" + b"${" * 5000 + b"'}\n",
        "a list": b"- 1\n",
        "objects": b"model: !!python/object/apply:os.system ['touch ran']\n",
    }


def _documents() -> Iterator[tuple[str, str, Callable[[], Files]]]:
    for name, text in _yamls().items():
        yield "yaml", f"run.yaml: {name}", lambda text=text: {"run.yaml": text}
        yield "yaml", f"model.yaml: {name}", lambda text=text: {"model.yaml": text}
    for kind, name in (("splits", "splits.json"), ("references", "linear.json"), ("shards", "index.json")):
        yield kind, f"{name}: deep", lambda name=name: {name: DEEP}
        yield kind, f"{name}: long integer", lambda name=name: {name: b"9" * 100_000}


def _others() -> Iterator[tuple[str, str, Callable[[], Files]]]:
    yield "npz", "a member swells", _npz_bomb
    yield "npz", "a huge shape", lambda: {"a.npz": zipped({"R.npy": _npy((10**12, 9, 3)), "z.npy": _npy((9,))})}
    yield "npz", "no numbers", lambda: {"a.npz": zipped({"R.npy": _npy((10**15,), "|U0"), "z.npy": _npy((9,))})}
    yield "npz", "a deep header", lambda: {"a.npz": zipped({"R.npy": b"\x93NUMPY\1\0\x10\x27" + b"(" * 10_000})}
    yield "published", "a storage swells", _torch_bomb
    yield "published", "an expanded tensor", _expanded
    yield "published", "settings that share parts", _shared_settings
    yield "aselmdb", "a row swells", lambda: _rows(b"[" + b"[]," * (40 << 20) + b"1]")
    yield "aselmdb", "a deep row", lambda: _rows(DEEP)
    yield "aselmdb", "a huge nextid", lambda: {"a.aselmdb": lmdb_of({b"nextid": zlib.compress(b"9" * 4000)})}
    yield "raw", "a frame of 10^12 atoms", lambda: _raw(b"999999999999\n" + _COMMENT + _ATOM)
    yield "raw", "a long word", lambda: _raw(b"1\n" + b"a" * 300_000 + _ATOM)
    yield "raw", "a line swells", lambda: _raw(b"a" * (10 << 20), times=SWOLLEN // (10 << 20))
    yield "raw", "lines swell", lambda: _raw(b"1" * 8 + b"\n" * (10 << 20), times=10)
    yield "raw", "the text swells", lambda: {**_raw(b""), "0.txt.xz": _xz(b"ab\n" * (3 << 20), times=20)}
    yield "extxyz", "a frame of 10^12 atoms", lambda: {"0.extxyz": b"999999999999\n" + _COMMENT + _ATOM}
    yield "extxyz", "a long word", lambda: {"0.extxyz": b"1\n" + b"a" * 300_000 + _ATOM}
    yield "extxyz", "10^9 columns", lambda: {"0.extxyz": b"1\nProperties=species:S:1:pos:R:999999999" + _ATOM}
    yield "extxyz", "deep JSON", lambda: {"0.extxyz": b'1\na="_JSON ' + DEEP + b'"' + _ATOM}
    yield "poscar", "10^9 atoms", lambda: _poscar(10**9)
    yield "poscar", "10^15 atoms", lambda: _poscar(10**15)
    yield "database", "endless rows", lambda: _database(_endless)
    yield "database", "a loop of pages", lambda: _database(with_loop)
    yield "model", "10^6 layers", lambda: _model(model={"num_layers": 10**6})
    yield "model", "10^5 channels", lambda: _model(model={"channels": [10**5, 10**5]})
    yield "model", "10^10 channels", lambda: _model(model={"ffn_channels": [10**10, 10**10]})
    yield "model", "many hidden layers", lambda: _model(model={"radial_hidden": [1000] * 10_000})
    yield "model", "a fine grid", lambda: _model(whole={"name": "equiformer_v2", "grid_resolution": 10**6})
    yield "model", "many points", lambda: _model(whole={"name": "escn", "num_sphere_samples": 10**9})
    yield "model", "a list for a name", lambda: _model(model={"name": ["equiformer"]})
    yield "model", "a list of settings", lambda: _model(scaling=[1, 2], heads=3)
    yield "model", "unknown elements", lambda: _model(scaling={"elements": [10**30], "references": {"Qq": "x"}})
    yield "model", "deep JSON", _deep_model
    yield "shards", "offsets that are not whole", lambda: _shard(lambda h: h["cell"].update(data_offsets=[0.0, 360.0]))
    yield "shards", "no sid", lambda: _shard(lambda h: h.pop("sid"))
    yield "shards", "an empty shape", lambda: _shard(lambda h: h["cell"].update(shape=[]))
    yield "shards", "a huge shape", lambda: _shard(lambda h: h["cell"].update(shape=[2**62, 4]))
    yield "shards", "empty sizes", lambda: {"sizes.npy": b""}
    yield "shards", "huge sizes", lambda: {"sizes.npy": _npy((10**12,), "<i4")}
    yield "shards", "sizes in a zip", lambda: {"sizes.npy": zipped({"a.npy": _npy((5,))})}
    yield "splits", "integers beyond 2^63", lambda: _split(train=[2**63, 10**30])
    yield "splits", "no list", lambda: _split(train={"a": 1}, sha256=[1])


ATTACKS = {f"{kind}: {name}": (kind, make) for kind, name, make in (*_of_pickles(), *_documents(), *_others())}
