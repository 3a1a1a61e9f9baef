"""Ways to damage a file: its bytes, its words, the values of its JSON, and all of these inside what holds it."""

from __future__ import annotations

import io
import json
import lzma
import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import torch

Rng = np.random.Generator
Mutation = Callable[[bytes, Rng], bytes]

_NUMBERS = [
    0, 1, -1, 2, 7, 127, 255, 256, 65535, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**30,
    0.5, -2.5, 1e-320, 1e30, 1e308, float("nan"), float("inf"), -float("inf"),
]  # fmt: skip
_WORDS = ["", "x", "nan", "inf", "-1", "1e400", "999999999999", "[]", "{}", '"', "=", "*a", "&a", "<<", "T", "é\0\n"]


def damage(raw: bytes, rng: Rng) -> bytes:
    """Some bytes changed, cut, inserted, moved or repeated."""
    out = bytearray(raw)
    for _ in range(int(rng.integers(1, 4))):
        begin = int(rng.integers(0, len(out) + 1))
        end = min(len(out), begin + int(2 ** rng.uniform(0, 12)))
        kind = rng.integers(0, 8)
        if kind == 0 and begin < len(out):
            out[begin] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:
            out[begin:end] = rng.bytes(end - begin)
        elif kind == 2:
            del out[begin:]
        elif kind == 3:
            del out[begin:end]
        elif kind == 4:
            out[begin:begin] = rng.bytes(int(rng.integers(1, 20)))
        elif kind == 5:
            out[begin:begin] = out[begin:end] * int(rng.integers(1, 4))
        elif kind == 6:
            width = int(rng.choice([1, 2, 4, 8]))
            number = int(rng.choice([0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1]))
            out[begin : begin + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")
        else:
            out[begin:end] = bytes(end - begin)
    return bytes(out)


def words(raw: bytes, rng: Rng) -> bytes:
    """Some words or lines of a text changed."""
    text = raw.decode("utf-8", "replace")
    for _ in range(int(rng.integers(1, 4))):
        parts = re.split(r"(\n)" if rng.random() < 0.3 else r"([\s=:,\"']+)", text)
        place = int(rng.integers(0, len(parts)))
        kind = rng.integers(0, 5)
        if kind == 0:
            parts[place] = str(rng.choice(_WORDS))
        elif kind == 1:
            parts[place] = str(_NUMBERS[int(rng.integers(0, len(_NUMBERS)))])
        elif kind == 2:
            del parts[place : place + int(rng.integers(1, 4))]
        elif kind == 3:
            parts[place:place] = parts[place : place + int(rng.integers(1, 6))]
        else:
            parts[place] = parts[place] * int(rng.choice([2, 50, 20_000 if len(parts[place]) < 10 else 3]))
        text = "".join(parts)
    return text.encode("utf-8", "surrogateescape")


def values(raw: bytes, rng: Rng) -> bytes:
    """Some values of a JSON text replaced by others."""
    document = json.loads(raw)
    for _ in range(int(rng.integers(1, 3))):
        document = _replaced(document, rng)
    return json.dumps(document).encode()


def _replaced(value: Any, rng: Rng, most: int = 900) -> Any:
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = keys[int(rng.integers(0, len(keys)))]
        if rng.random() < 0.1:
            del value[key]
        else:
            value[key] = _replaced(value[key], rng, most)
        return value
    deep: Any = 1
    for _ in range(int(rng.choice([2, 70, most]))):
        deep = [deep]
    other = [None, True, {}, [], [[]], {"a": 1}, "", "x", deep, [value, value], {"x": value}, [1, "x", None]]
    number = _NUMBERS[int(rng.integers(0, len(_NUMBERS)))]
    return number if rng.random() < 0.5 else other[int(rng.integers(0, len(other)))]


def contents(raw: bytes, rng: Rng) -> bytes:
    """Some values of a file of ``torch.save`` replaced by others."""
    document = torch.load(io.BytesIO(raw), weights_only=False)
    for _ in range(int(rng.integers(1, 3))):
        document = _replaced(document, rng, most=90)  # which torch can still save
    stream = io.BytesIO()
    torch.save(document, stream)
    return stream.getvalue()


def arrays(raw: bytes, rng: Rng) -> bytes:
    """The arrays of an npz file, some of another type, shape or content."""
    with np.load(io.BytesIO(raw), allow_pickle=False) as file:
        held = {name: file[name] for name in file.files}
    name = str(rng.choice(list(held)))
    array, kind = held[name], rng.integers(0, 7)
    if kind == 0:
        del held[name]
    elif kind == 1:
        held[name] = np.atleast_1d(array)[:0]
    elif kind == 2 and array.dtype.kind in "fiub":
        held[name] = array.astype(rng.choice(["f2", "f4", "i8", "u1", "U8", "S3", "c16", "?", ">f8"]))
    elif kind == 3:
        held[name] = array.reshape(-1)[: int(rng.integers(0, array.size + 1))]
    elif kind == 4 and array.size and array.dtype.kind in "fiu":
        changed = array.copy().reshape(-1)
        with np.errstate(all="ignore"):
            changed[int(rng.integers(0, array.size))] = np.array(rng.choice([0, -1, 2.0**62, np.nan, 1e300])).astype(
                array.dtype
            )
        held[name] = changed.reshape(array.shape)
    elif kind == 5:
        held[name] = array[None]
    else:
        held[name] = np.array(rng.choice(_WORDS))
    stream = io.BytesIO()
    np.savez(stream, **held)
    return stream.getvalue()


# --- inside what holds them -------------------------------------------------------------------------------------------


def in_xz(inner: Mutation) -> Mutation:
    """The text in an xz file."""
    return lambda raw, rng: lzma.compress(inner(lzma.decompress(raw), rng), preset=0)


def in_zlib(inner: Mutation) -> Mutation:
    """A row of an ASE database."""
    return lambda raw, rng: zlib.compress(inner(zlib.decompress(raw), rng))


def in_zip(inner: Mutation, ending: str) -> Mutation:
    """One member of a zip file."""

    def mutate(raw: bytes, rng: Rng) -> bytes:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            held = {name: archive.read(name) for name in archive.namelist()}
        name = str(rng.choice([name for name in held if name.endswith(ending)]))
        return zipped(
            {**held, name: inner(held[name], rng)}, int(rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
        )

    return mutate


def zipped(held: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in held.items():
            archive.writestr(name, content)
    return stream.getvalue()


def in_lmdb(inner: Mutation) -> Mutation:
    """One value of an LMDB file."""

    def mutate(raw: bytes, rng: Rng) -> bytes:
        held = records(raw)
        key = list(held)[int(rng.integers(0, len(held)))]
        return lmdb_of({**held, key: inner(held[key], rng)})

    return mutate


def records(raw: bytes) -> dict[bytes, bytes]:
    """All keys of an LMDB file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.lmdb"
        path.write_bytes(raw)
        with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as file, file.begin() as transaction:
            return dict(transaction.cursor())


def lmdb_of(held: dict[bytes, bytes]) -> bytes:
    """An LMDB file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.lmdb"
        with (
            lmdb.open(str(path), subdir=False, map_size=2**28, lock=False) as file,
            file.begin(write=True) as transaction,
        ):
            for key, value in held.items():
                transaction.put(key, value)
        return path.read_bytes()


def in_safetensors(inner: Mutation) -> Mutation:
    """The header of a safetensors file."""

    def mutate(raw: bytes, rng: Rng) -> bytes:
        end = 8 + int.from_bytes(raw[:8], "little")
        return with_header(raw, inner(raw[8:end].rstrip(), rng))

    return mutate


def with_header(raw: bytes, header: bytes) -> bytes:
    """A safetensors file with another header."""
    return len(header).to_bytes(8, "little") + header + raw[8 + int.from_bytes(raw[:8], "little") :]


def in_model_header(inner: Mutation) -> Mutation:
    """The JSON text with which a model file describes its model."""

    def mutate(raw: bytes, rng: Rng) -> bytes:
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        about = header["__metadata__"]
        about["denskit"] = inner(about["denskit"].encode(), rng).decode("utf-8", "replace")
        return with_header(raw, json.dumps(header).encode())

    return mutate
