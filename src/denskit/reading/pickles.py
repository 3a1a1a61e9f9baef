"""Pickles from outside: run by a small machine of our own, which knows the operations that data need and no others.

A pickle is a program.  Python's own machine lets it name functions, use tuples within tuples as keys of dicts (whose
hash takes for ever, or more stack than there is), and make room before it reads.  This one has fewer operations: no
sets, no ``copyreg``, nothing older than protocol 2.  A name can mean only what :class:`Machine`'s table says, exactly
as spelled; any other is refused before anything is called.  Keys are text and small integers.  Nothing walks through,
prints or compares lists, which a pickle can nest so that they share all parts and yet have 10^9 of them.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from denskit.reading.budget import Unreadable, naming, require_allowed

MOST_DIMENSIONS = 8  # of a tensor
# Names of number types in torch's pickles; numpy has no bfloat16, which stays as bytes.
STORAGES = {
    ("torch", "DoubleStorage"): "<f8",
    ("torch", "FloatStorage"): "<f4",
    ("torch", "HalfStorage"): "<f2",
    ("torch", "BFloat16Storage"): "V2",
    ("torch", "LongStorage"): "<i8",
    ("torch", "IntStorage"): "<i4",
    ("torch", "ShortStorage"): "<i2",
    ("torch", "CharStorage"): "<i1",
    ("torch", "ByteStorage"): "<u1",
    ("torch", "BoolStorage"): "|b1",
}
_LARGEST_INTEGER = 10  # bytes; torch's magic number has so many
_STOP, _MEMOIZE, _BYTE, _SHORT_TEXT, _GET, _PUT, _TUPLE_1 = b".\x94K\x8chq\x85"

Names = Mapping[tuple[str, str], Any]


class Refused(pickle.UnpicklingError):
    """A name that is not in the table."""


class Built:
    """Objects whose state a pickle may set, by :meth:`build`."""

    __slots__ = ()

    def build(self, state: Any) -> None:
        """Take the state."""
        raise NotImplementedError


class Machine:
    """Runs the pickles that follow one another in ``raw``.

    ``names``: (module, name) -> its meaning: a function (machine, *arguments), a class without arguments, a constant.
    ``size``: bytes of the file or record that ``raw`` comes from, which its allowance follows.
    """

    inside = ""  # said beside a name that is refused
    advice = "If you trust the file, rewrite it where it came from with torch tensors, numbers and text only"

    def __init__(self, raw: bytes, names: Names, where: str | Path, size: int = 0) -> None:
        self.raw, self.names, self.where, self.size = raw, names, where, size or len(raw)
        self.position = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.unread = 2 * len(raw)  # bytes of texts made bytes, and of streams within the stream: none is used again
        self.tensors = 0  # bytes of tensors, each counted as if it stood alone, in float64

    def load(self) -> Any:
        """The next pickle's value.  Raises Refused, and errors of any type for a damaged pickle."""
        self.stack, self.marks, self.memo = [], [], {}
        stack, memo = self.stack, self.memo
        raw, position, operations = self.raw, self.position, _OPERATIONS
        while (code := raw[position]) != _STOP:  # IndexError where it is cut off
            position += 1
            # the most frequent operations stand here, for speed
            if code == _MEMOIZE:
                memo[len(memo)] = stack[-1]
            elif code == _BYTE:
                stack.append(raw[position])
                position += 1
            elif code == _SHORT_TEXT:
                begin, position = position + 1, position + 1 + raw[position]
                stack.append(raw[begin:position].decode("utf-8", "surrogatepass"))
            elif code == _GET:
                stack.append(memo[raw[position]])
                position += 1
            elif code == _PUT:
                memo[raw[position]] = stack[-1]
                position += 1
            elif code == _TUPLE_1:
                stack[-1] = (stack[-1],)
            else:
                self.position = position
                operations[code](self)
                position = self.position
        self.position = position + 1
        return stack.pop()

    def persistent(self, name: Any) -> Any:
        """An object outside the pickle, by its name."""
        raise pickle.UnpicklingError("it asks for something outside itself")

    def read_inner(self, size: int) -> None:
        """Raise where streams within the stream are read again and again."""
        self.unread -= size
        if self.unread < 0:
            raise pickle.UnpicklingError("parts that are used again and again")

    def take(self, count: int) -> bytes:
        """The next bytes."""
        begin, self.position = self.position, self.position + count
        if self.position > len(self.raw):
            raise pickle.UnpicklingError("cut off, or with a size beyond the record's")
        return self.raw[begin : self.position]

    def number(self, width: int, *, signed: bool = False) -> int:
        """An integer of so many bytes."""
        return int.from_bytes(self.take(width), "little", signed=signed)

    def line(self) -> str:
        """Text up to the end of a line."""
        begin = self.position
        self.position = self.raw.index(b"\n", begin) + 1
        return self.raw[begin : self.position - 1].decode()

    def since_mark(self) -> list[Any]:
        """Pop all values since the last mark."""
        begin = self.marks.pop()
        items = self.stack[begin:]
        del self.stack[begin:]
        return items

    def find(self, module: Any, name: Any) -> None:
        """Push the meaning of a name.  Raises Refused."""
        if type(module) is not str or type(name) is not str:
            raise pickle.UnpicklingError("a name that is no text")
        if (module, name) not in self.names:
            raise Refused(f"{module:.99}.{name:.99}{self.inside}")
        self.stack.append(self.names[module, name])

    def tuple_of(self, count: int) -> None:
        """Make the last values one tuple."""
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def extend(self, items: list[Any]) -> None:
        """Append to a list."""
        if type(self.stack[-1]) is not list:
            raise pickle.UnpicklingError("items for something that is no list")
        self.stack[-1] += items

    def set_items(self, items: list[Any]) -> None:
        """Set a dict's keys, which alternate with their values."""
        target = self.stack[-1]
        if type(target) is not dict:
            raise pickle.UnpicklingError("keys for something that is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) is not str and (type(key) is not int or abs(key) >= 2**63):
                raise pickle.UnpicklingError(f"a key of a dict that is {kind(key)}; text and 64-bit integers are read")
            target[key] = value

    def call(self) -> None:
        """Call a function of the table."""
        arguments, function = self.stack.pop(), self.stack.pop()
        if type(function) is not FunctionType or type(arguments) is not tuple:
            raise pickle.UnpicklingError("a call of something that is no function")
        self.stack.append(function(self, *arguments))

    def make(self) -> None:
        """Make an object of a class of the table."""
        arguments, cls = self.stack.pop(), self.stack.pop()
        if not isinstance(cls, type) or type(arguments) is not tuple or arguments:
            raise pickle.UnpicklingError("an object of something that is no class")
        self.stack.append(cls())

    def build(self) -> None:
        """Give an object its state."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Built):
            target.build(state)
        elif type(target) is not dict:  # an ordered dict's attributes say nothing
            raise pickle.UnpicklingError("the pickle tries to change an object without state")

    def text(self, width: int) -> None:
        """Push a text behind its length."""
        self.stack.append(self.take(self.number(width)).decode("utf-8", "surrogatepass"))

    def large_integer(self) -> None:
        """Push an integer behind its length."""
        size = self.number(1)
        if size > _LARGEST_INTEGER:
            raise pickle.UnpicklingError(f"an integer of {size} bytes")
        self.stack.append(self.number(size, signed=True))

    def put(self) -> None:
        """Note the last value under a number."""
        self.memo[self.number(4)] = self.stack[-1]


def _unknown(machine: Machine) -> None:
    code = machine.raw[machine.position - 1]
    raise pickle.UnpicklingError(f"it has the operation 0x{code:02x}, which data do not need, or is no pickle")


_OPERATIONS: list[Callable[[Machine], Any]] = [_unknown] * 256
for _codes, _operation in {
    b"\x80": lambda m: m.take(1),  # protocol
    b"\x95": lambda m: m.take(8),  # frame
    b"0": lambda m: m.stack.pop(),
    b"N": lambda m: m.stack.append(None),
    b"\x88": lambda m: m.stack.append(True),
    b"\x89": lambda m: m.stack.append(False),
    b"M": lambda m: m.stack.append(m.number(2)),
    b"J": lambda m: m.stack.append(m.number(4, signed=True)),
    b"\x8a": Machine.large_integer,
    b"G": lambda m: m.stack.append(np.frombuffer(m.take(8), dtype=">f8").item()),
    b"X": lambda m: m.text(4),
    b"\x8d": lambda m: m.text(8),
    b"C": lambda m: m.stack.append(m.take(m.number(1))),
    b"B": lambda m: m.stack.append(m.take(m.number(4))),
    b"\x8e": lambda m: m.stack.append(m.take(m.number(8))),
    b"(": lambda m: m.marks.append(len(m.stack)),
    b")": lambda m: m.stack.append(()),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
    b"t": lambda m: m.stack.append(tuple(m.since_mark())),
    b"]": lambda m: m.stack.append([]),
    b"a": lambda m: m.extend([m.stack.pop()]),
    b"e": lambda m: m.extend(m.since_mark()),
    b"}": lambda m: m.stack.append({}),
    b"s": lambda m: m.set_items([m.stack.pop(-2), m.stack.pop()]),
    b"u": lambda m: m.set_items(m.since_mark()),
    b"r": Machine.put,
    b"j": lambda m: m.stack.append(m.memo[m.number(4)]),
    b"c": lambda m: m.find(m.line(), m.line()),
    b"\x93": lambda m: m.find(m.stack.pop(-2), m.stack.pop()),
    b"R": Machine.call,
    b"\x81": Machine.make,
    b"b": Machine.build,
    b"Q": lambda m: m.stack.append(m.persistent(m.stack.pop())),
}.items():
    _OPERATIONS[_codes[0]] = _operation


def run(machine: Machine) -> Any:
    """The value of a machine's next pickle; Unreadable, saying where, for a name that is refused and for damage."""
    with naming(machine.where, "is damaged, or no pickle of data"):
        try:
            return machine.load()
        except Refused as error:
            raise Unreadable(
                f"{machine.where}: the pickle asks for {error}, which data do not need. It was refused and nothing of "
                f"it was run. {machine.advice}"
            ) from None


def kind(value: Any) -> str:
    """A value's type, for messages; its contents are not printed."""
    return "an object" if isinstance(value, Built) else f"a {type(value).__name__}"


# --- meanings of names ------------------------------------------------------------------------------------------------


class _DType(Built):
    """A numpy dtype as a pickle describes it: its code, then as state its byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "<"

    def build(self, state: Any) -> None:
        self.order = ">" if state[1] == ">" else "<"


def _dtype(_: Machine, code: Any, *_flags: Any) -> _DType:
    if not isinstance(code, str) or not re.fullmatch(r"[iuf][1248]|b1", code):
        raise pickle.UnpicklingError("a numpy dtype that is no number's")
    return _DType(code)


def _scalar(_: Machine, dtype: Any, raw: bytes) -> Any:
    if not isinstance(dtype, _DType):
        raise pickle.UnpicklingError(f"a numpy number of type {kind(dtype)}")
    return np.frombuffer(raw, dtype=np.dtype(dtype.order + dtype.code), count=1)[0].item()


def _latin1(machine: Machine, text: str, encoding: str) -> bytes:
    """How pickles of protocol 2 write bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError("bytes in an encoding other than latin1")
    machine.read_inner(len(text))
    return text.encode("latin1")


def tensor(
    machine: Machine, storage: Any, offset: Any, shape: tuple[int, ...], stride: tuple[int, ...], *_unused: Any
) -> np.ndarray:
    """A tensor's view of its storage [n]; nothing outside the storage."""
    if not isinstance(storage, np.ndarray) or storage.ndim != 1:
        raise pickle.UnpicklingError(f"a tensor's storage is {kind(storage)}")
    if len(shape) != len(stride) or len(shape) > MOST_DIMENSIONS:
        raise pickle.UnpicklingError(f"a tensor of {len(shape)} dimensions and {len(stride)} strides")
    if not all(type(number) is int and number >= 0 for number in (offset, *shape, *stride)):
        raise pickle.UnpicklingError("a tensor's shape, strides or offset are not whole numbers")
    count = math.prod(shape)
    machine.tensors += 8 * count
    if machine.tensors > machine.size:
        require_allowed(machine.tensors, machine.size, machine.where)
    if count == 0:
        return np.zeros(shape, dtype=storage.dtype)
    if count <= len(storage) - offset and stride == _contiguous(shape):
        return storage[offset : offset + count].reshape(shape)
    if offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) >= len(storage):
        raise pickle.UnpicklingError(f"a tensor of shape {shape} outside its storage of {len(storage)} numbers")
    steps = tuple(step * storage.itemsize for step in stride)
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=storage.flags.writeable)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in numbers, of an array [shape] that lies row by row."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def storage_of(name: Any) -> tuple[str, str, int]:
    """Type, key and count of numbers, from the name under which torch keeps a storage outside of a pickle."""
    part, dtype, key, _device, count = name[:5]
    if part != "storage" or dtype not in STORAGES.values() or type(key) is not str or type(count) is not int:
        raise pickle.UnpicklingError("a tensor's storage is not described as torch does")
    return dtype, key, count


PLAIN: Names = {
    ("collections", "OrderedDict"): lambda _: {},  # of weights, or a tensor's backward hooks: none
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _latin1,
}
"""Numbers, texts and plain containers."""
