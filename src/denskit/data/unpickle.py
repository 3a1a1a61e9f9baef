"""Published structures are pickles.  This reads them without trusting them, and without torch_geometric.

A pickle names functions, and loading it calls them with arguments of its choice.  Here a name can mean only what
``_NAMES`` says, exactly as spelled; any other name is refused before anything is called.  What the names mean are our
own few functions, which build numpy arrays and dicts and cannot be changed by the pickle.

Nor can a small record fill the memory.  Arrays are views of the record, however many share a storage; sizes and places
in the memo are compared with the record's size before anything is allocated; and nothing walks through, or prints,
lists and tuples, which a pickle can nest so that they share all parts and yet have 10^9 of them.

A tensor's numbers lie in a pickle within the pickle, for which torch calls ``torch.storage._load_from_bytes``, itself
an unrestricted load.  :func:`_storage` takes its place.  It parses torch's old, non-zip stream and knows the names of
number types only, so it permits less than ``torch.load(weights_only=True)``, which it agrees with, and is many times as
fast.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MAX_RECORD = 2**30  # bytes; a structure of 1,000 atoms with stored edges has about 3 MB
_MAGIC = 0x1950A86A20F9469CFC6C  # the number that begins torch's non-zip streams
_PROTOCOL = 1001
_STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "|b1",
}


def load_attributes(raw: bytes, where: str) -> dict[str, Any]:
    """Attributes of one pickled torch_geometric ``Data``, of any version; tensors as numpy arrays.

    Raises ValueError, saying ``where``, for anything else: a name that is not on the list, a truncated record.
    """
    value = load_value(raw, where)
    if not isinstance(value, _Record):
        raise ValueError(f"{where} holds {_kind(value)}; wanted a pickled torch_geometric Data object")
    return _attributes(value, where)


def load_list(raw: bytes, where: str) -> list[dict[str, Any]]:
    """The same for a pickled list of ``Data``."""
    value = load_value(raw, where)
    if not isinstance(value, list | tuple) or not all(isinstance(item, _Record) for item in value):
        raise ValueError(f"{where} holds {_kind(value)}; wanted a pickled list of torch_geometric Data objects")
    return [_attributes(item, f"{where}, record {index}") for index, item in enumerate(value)]


def load_value(raw: bytes, where: str) -> Any:
    """Any pickle of numbers, text, lists, dicts, numpy scalars, tensors and ``Data``; see :func:`load_attributes`."""
    if len(raw) > MAX_RECORD:
        raise ValueError(f"{where} has {len(raw)} bytes; records above {MAX_RECORD} are refused")
    try:
        return _Unpickler(raw).load_next()
    except _Refused as error:
        raise ValueError(
            f"{where}: the pickle asks for {error}, which structures do not need. It was refused and nothing of it was "
            "run. If you trust the file, rewrite it where it came from with torch tensors, numbers and text only"
        ) from None
    except Exception as error:  # a damaged pickle can make the machine that reads it raise nearly anything
        raise ValueError(f"{where} is damaged, or no pickle of structures ({type(error).__name__}: {error})") from None


def read_pickle(path: Path) -> bytes:
    """A whole file, unless it is larger than any pickle that is read.  Raises ValueError."""
    if path.stat().st_size > MAX_RECORD:
        raise ValueError(f"{path} has {path.stat().st_size} bytes; pickles above {MAX_RECORD} are refused")
    return path.read_bytes()


class _Refused(pickle.UnpicklingError):
    """A name that is not on the list."""


class _Record:
    """What the pickle gave as the state of one of torch_geometric's objects."""

    __slots__ = ("state",)
    state: dict[str, Any]

    def __new__(cls) -> _Record:
        record = super().__new__(cls)
        record.state = {}
        return record

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise pickle.UnpicklingError(f"an object's state is {_kind(state)}, not a dict of names")
        self.state = state


class _Call:
    """A function that a pickle may call; a pickle cannot change it, as it could a plain function's attributes."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("the pickle tries to change a function")


class _Unpickler(pickle.Unpickler):
    """Reads the pickles that follow one another in ``raw``."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.stream = raw, io.BytesIO(raw)
        self._text_left = len(raw)
        super().__init__(self.stream)

    def load_next(self) -> Any:
        """The next pickle's value."""
        _check_sizes(self.raw, self.stream.tell())
        return self.load()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return _Call(self._latin1)
        meaning = _NAMES.get((module, name))
        if meaning is None:
            raise _Refused(f"{module}.{name}")
        return meaning

    def _latin1(self, text: str, encoding: str) -> bytes:
        """How pickles of protocol 2 write bytes; all of them together are no more than the record."""
        if encoding != "latin1":
            raise pickle.UnpicklingError("bytes in an encoding other than latin1")
        self._text_left -= len(text)
        if self._text_left < 0:
            raise pickle.UnpicklingError("texts that are used again and again as bytes")
        return text.encode("latin1")


class _StorageUnpickler(_Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise _Refused(f"{module}.{name} (inside a tensor)")

    def persistent_load(self, pid: Any) -> Any:
        kind, dtype, key, _device, count = pid[:5]
        if kind != "storage" or dtype not in _STORAGES.values() or type(key) is not str or type(count) is not int:
            raise pickle.UnpicklingError("a tensor's storage is not described as torch does")
        return dtype, key, count


# What follows an opcode, by its code: so many bytes; lines; or a count of bytes of some width, then so many.
_FOLLOWING = [0] * 256
for _opcode in pickletools.opcodes:
    _FOLLOWING[ord(_opcode.code)] = _opcode.arg.n if _opcode.arg else 0
_COUNT_WIDTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_STOP, _PUT, _LONG_BINPUT, _TWO_LINES = ord("."), ord("p"), ord("r"), b"ci"  # GLOBAL, INST


def _check_sizes(raw: bytes, start: int) -> None:
    """Raise where the pickle at ``start`` would allocate more than the record's size: for a place in the memo, up to
    which the standard library makes room, or for a text longer than what is left."""
    position, end, following, place = start, len(raw), _FOLLOWING, 0
    while position < end and (code := raw[position]) != _STOP:
        position += 1
        size = following[code]
        if size >= 0:
            if code == _LONG_BINPUT:
                place = int.from_bytes(raw[position : position + 4], "little")
            position += size
        elif size != pickletools.UP_TO_NEWLINE:
            width = _COUNT_WIDTHS[size]
            position += width + int.from_bytes(raw[position : position + width], "little")
        else:
            begin = position
            position = _after_lines(raw, begin, 2 if code in _TWO_LINES else 1)
            if code == _PUT:
                place = int(raw[begin:position])
        if place > end:
            break
    if place > end or position >= end:
        raise pickle.UnpicklingError("cut off, or with a size beyond the record's")


def _after_lines(raw: bytes, position: int, count: int) -> int:
    """Where the line after ``count`` lines begins; the end where they are cut off."""
    for _ in range(count):
        position = raw.find(b"\n", position) + 1 or len(raw)
    return position


def _storage(raw: bytes) -> np.ndarray:
    """The numbers [n] of a storage that torch saved in its non-zip format: five pickles, a count, the numbers."""
    reader = _StorageUnpickler(raw)
    if reader.load_next() != _MAGIC or reader.load_next() != _PROTOCOL or not reader.load_next()["little_endian"]:
        raise pickle.UnpicklingError("a tensor's storage is not in torch's non-zip format, little endian")
    dtype, key, count = reader.load_next()
    if reader.load_next() != [key]:
        raise pickle.UnpicklingError("a tensor's storage has several parts")
    start = reader.stream.tell() + 8
    stored = int.from_bytes(raw[start - 8 : start], "little")
    size = np.dtype(dtype).itemsize
    if count != stored or len(raw) - start != count * size:
        raise pickle.UnpicklingError(
            f"a tensor's storage says {count} and {stored} numbers of {size} bytes and has {len(raw) - start} bytes"
        )
    return np.frombuffer(raw, dtype=dtype, offset=start)


def _tensor(
    storage: np.ndarray, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_unused: Any
) -> np.ndarray:
    """A tensor's view of its storage, read-only; nothing outside the storage, nothing larger than it."""
    whole = (offset, *shape, *stride)
    if len(shape) != len(stride) or not all(type(number) is int and number >= 0 for number in whole):
        raise pickle.UnpicklingError("a tensor's shape, strides or offset are not whole numbers")
    count = math.prod(shape)
    if count == 0:
        return np.zeros(shape, dtype=storage.dtype)
    if count <= len(storage) - offset and stride == _contiguous(shape):
        return storage[offset : offset + count].reshape(shape)
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if count > len(storage) or last >= len(storage):
        raise pickle.UnpicklingError(f"a tensor of shape {shape} outside its storage of {len(storage)} numbers")
    steps = tuple(step * storage.itemsize for step in stride)
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=False)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in numbers, of an array [shape] that lies row by row."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class _DType:
    """A numpy dtype as a pickle describes it: its code, then as state its byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any, *_flags: Any) -> None:
        if not isinstance(code, str) or not re.fullmatch(r"[iuf][1248]|b1", code):
            raise pickle.UnpicklingError("a numpy dtype that is no number's")
        self.code, self.order = code, "<"

    def __setstate__(self, state: Any) -> None:
        self.order = ">" if state[1] == ">" else "<"


def _scalar(dtype: Any, raw: bytes) -> Any:
    if not isinstance(dtype, _DType):
        raise pickle.UnpicklingError(f"a numpy number of type {_kind(dtype)}")
    return np.frombuffer(raw, dtype=np.dtype(dtype.order + dtype.code), count=1)[0].item()


def _empty_dict() -> dict[Any, Any]:
    return {}


_NAMES: dict[tuple[str, str], Any] = {
    ("torch_geometric.data.data", "Data"): _Record,
    ("torch_geometric.data.storage", "GlobalStorage"): _Record,
    ("torch_geometric.data.data", "DataEdgeAttr"): "DataEdgeAttr",  # classes that an object merely mentions
    ("torch_geometric.data.data", "DataTensorAttr"): "DataTensorAttr",
    ("torch._utils", "_rebuild_tensor_v2"): _Call(_tensor),
    ("torch.storage", "_load_from_bytes"): _Call(_storage),
    ("collections", "OrderedDict"): _Call(_empty_dict),  # a tensor's backward hooks: none
    ("numpy.core.multiarray", "scalar"): _Call(_scalar),
    ("numpy._core.multiarray", "scalar"): _Call(_scalar),
    ("numpy", "dtype"): _Call(_DType),
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


def _kind(value: Any) -> str:
    return "an object" if isinstance(value, _Record) else f"a {type(value).__name__}"
