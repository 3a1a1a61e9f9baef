"""Explicit vector instructions on short rows of numbers for CPU kernels.

A row has as many numbers as a degree has channels.  Compilers rarely vectorise such short loops over arrays that might
overlap, and slicing costs more than the work on a row.  An :func:`operation` is a Python function that emits the
instructions for eight numbers at a time; kernels call it with flat arrays and places in them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

LANES = 8  # numbers at a time
HUGE = 1 << 60  # nominal length of arrays made from addresses: kernels know the real one
PLACE, LANE = ir.IntType(64), ir.IntType(32)
FLAGS = ("contract",)  # a product and a sum become one instruction


@intrinsic
def at(typing: Any, address: Any, like: Any) -> Any:
    """The flat array at an address, with numbers as in the array ``like``."""
    assert isinstance(address, types.Integer)
    array = types.Array(like.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = context.get_data_type(like.dtype)
        size = context.get_constant(types.intp, context.get_abi_sizeof(number))
        made = context.make_array(array)(context, builder)
        data = builder.inttoptr(arguments[0], number.as_pointer())
        length = context.get_constant(types.intp, HUGE)
        populate_array(made, data=data, shape=[length], strides=[size], itemsize=size, meminfo=None)
        return made._getvalue()

    return array(address, like), generate


def operation(write: Callable[..., None]) -> Any:
    """A function for kernels from ``write(code, *arguments)``, which emits its instructions.

    ``write`` gets a pointer for an array, a place or a length for an integer, and numbers in the precision of the
    arrays.
    """

    def definition(typing: Any, *kinds: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = Code(context, builder, signature.args)
            write(code, *code.values(arguments))
            return context.get_dummy_value()

        return types.void(*kinds), generate

    _, *parameters = inspect.signature(write).parameters.values()
    typing = inspect.Parameter("typing", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    definition.__signature__ = inspect.Signature([typing, *plain])  # type: ignore[attr-defined]
    definition.__name__, definition.__doc__ = write.__name__, write.__doc__
    return intrinsic(definition)


class Code:
    """Emits the instructions of one operation."""

    def __init__(self, context: Any, builder: Any, kinds: Any) -> None:
        self.context, self.builder, self.kinds = context, builder, kinds
        dtype = next(kind.dtype for kind in kinds if isinstance(kind, types.Array))
        self.dtype, self.number = dtype, context.get_data_type(dtype)

    def values(self, arguments: Any) -> list[Any]:
        """The arguments for ``write``."""
        return [self._value(kind, value) for kind, value in zip(self.kinds, arguments, strict=True)]

    def _value(self, kind: Any, value: Any) -> Any:
        if isinstance(kind, types.Array):
            return self.context.make_array(kind)(self.context, self.builder, value).data
        to = self.dtype if isinstance(kind, types.Float) else types.int64
        return self.context.cast(self.builder, value, kind, to)

    def along(self, length: Any, body: Callable[[Lanes], None]) -> None:
        """``body(lanes)`` for every eight numbers of rows of this length, then for each remaining number."""
        whole = self.builder.and_(length, ir.Constant(PLACE, -LANES))
        zero = ir.Constant(PLACE, 0)
        for count, first, last in ((LANES, zero, whole), (1, whole, length)):
            step = ir.Constant(PLACE, count)
            with cgutils.for_range_slice(self.builder, first, last, step, PLACE) as (index, _):
                body(Lanes(self, count, index))

    def times(self, count: Any, body: Callable[[Any], None]) -> None:
        """``body(k)`` for k = 0 .. count - 1, a loop."""
        with cgutils.for_range(self.builder, count, intp=PLACE) as loop:
            body(loop.index)

    def one_of(self, value: Any, choices: tuple[int, ...], body: Callable[[int], None], other: Any) -> None:
        """``body(choice)`` with a constant where ``value`` is one of ``choices``; else ``other()``."""
        if not choices:
            other()
            return
        first, *rest = choices
        with self.builder.if_else(self.builder.icmp_signed("==", value, ir.Constant(PLACE, first))) as (
            then,
            otherwise,
        ):
            with then:
                body(first)
            with otherwise:
                self.one_of(value, tuple(rest), body, other)

    def whole(self, value: Any) -> Any:
        """An integer of the kernel, from itself or from a Python integer."""
        return ir.Constant(PLACE, value) if isinstance(value, int) else value

    def place(self, base: Any, row: Any, width: Any) -> Any:
        """Start of a row: base + row width."""
        return self.builder.add(base, self.builder.mul(self.whole(row), width))

    def get(self, pointer: Any, place: Any) -> Any:
        """One number."""
        return self.builder.load(self.builder.gep(pointer, [place]), align=_alignment(self.number))

    def add_to(self, pointer: Any, place: Any, value: Any) -> None:
        """Add one number to an element."""
        total = self.builder.fadd(self.get(pointer, place), value, flags=FLAGS)
        self.builder.store(total, self.builder.gep(pointer, [place]), align=_alignment(self.number))

    def total(self) -> Total:
        """A sum over rows, zero."""
        return Total(self)


class Lanes:
    """Eight numbers of each row, or one, from ``index`` on."""

    def __init__(self, code: Code, count: int, index: Any) -> None:
        self.builder, self.index, self.count = code.builder, index, count
        self.kind = ir.VectorType(code.number, LANES) if count == LANES else code.number
        self._alignment = _alignment(code.number)  # of the numbers themselves: rows begin anywhere

    def load(self, pointer: Any, place: Any) -> Any:
        """Numbers of the row that begins at this place."""
        return self.builder.load(self._address(pointer, place), align=self._alignment)

    def store(self, value: Any, pointer: Any, place: Any) -> None:
        """Write numbers of the row that begins at this place."""
        self.builder.store(value, self._address(pointer, place), align=self._alignment)

    def add_to(self, pointer: Any, place: Any, value: Any) -> None:
        """Add to numbers of the row that begins at this place."""
        self.store(self.add(self.load(pointer, place), value), pointer, place)

    def all(self, number: Any) -> Any:
        """One number in all lanes, of the kernel or a Python constant."""
        if isinstance(number, int | float):
            values = [float(number)] * LANES
            return ir.Constant(self.kind, values if self.count == LANES else float(number))
        if self.count == 1:
            return number
        empty = ir.Constant(self.kind, ir.Undefined)
        single = self.builder.insert_element(empty, number, ir.Constant(LANE, 0))
        return self.builder.shuffle_vector(single, empty, ir.Constant(ir.VectorType(LANE, LANES), None))

    def mul(self, *factors: Any) -> Any:
        """Product."""
        out = factors[0]
        for factor in factors[1:]:
            out = self.builder.fmul(out, factor, flags=FLAGS)
        return out

    def add(self, *terms: Any) -> Any:
        """Sum."""
        out = terms[0]
        for term in terms[1:]:
            out = self.builder.fadd(out, term, flags=FLAGS)
        return out

    def sub(self, a: Any, b: Any) -> Any:
        """Difference."""
        return self.builder.fsub(a, b, flags=FLAGS)

    def variable(self, value: Any) -> Any:
        """A variable for these lanes, with an initial value."""
        place = cgutils.alloca_once(self.builder, self.kind)
        self.builder.store(value, place)
        return place

    def value(self, variable: Any) -> Any:
        """Current value of a variable."""
        return self.builder.load(variable)

    def increase(self, variable: Any, value: Any) -> None:
        """Add to a variable."""
        self.builder.store(self.add(self.builder.load(variable), value), variable)

    def _address(self, pointer: Any, place: Any) -> Any:
        start = self.builder.gep(pointer, [self.builder.add(place, self.index)])
        return self.builder.bitcast(start, self.kind.as_pointer())


class Total:
    """Sum of the numbers of a row, in eight lanes until the end."""

    def __init__(self, code: Code) -> None:
        builder, number = code.builder, code.number
        self.builder = builder
        self._kinds = {LANES: ir.VectorType(number, LANES), 1: number}
        self._sums = {}
        for count, kind in self._kinds.items():  # allocated once per kernel, so cleared at every use
            self._sums[count] = cgutils.alloca_once(builder, kind)
            zeros = [ir.Constant(number, 0.0)] * LANES if count == LANES else 0.0
            builder.store(ir.Constant(kind, zeros), self._sums[count])

    def add(self, lanes: Lanes, value: Any) -> None:
        """Add the numbers of the lanes."""
        place = self._sums[lanes.count]
        self.builder.store(lanes.add(self.builder.load(place), value), place)

    def value(self) -> Any:
        """The sum over all."""
        wide = self.builder.load(self._sums[LANES])
        for half in (4, 2, 1):
            order = [(lane + half) % LANES for lane in range(LANES)]
            mask = ir.Constant(ir.VectorType(LANE, LANES), order)
            turned = self.builder.shuffle_vector(wide, ir.Constant(self._kinds[LANES], ir.Undefined), mask)
            wide = self.builder.fadd(wide, turned, flags=FLAGS)
        first = self.builder.extract_element(wide, ir.Constant(LANE, 0))
        return self.builder.fadd(self.builder.load(self._sums[1]), first, flags=FLAGS)


def _alignment(number: Any) -> int:
    return 4 if isinstance(number, ir.FloatType) else 8
