"""Arithmetic on short rows of flat arrays, for use inside CPU kernels.

Rows are as long as a degree has channels.  Compilers hesitate to use vector instructions for loops so short over arrays
that might overlap, and slices would cost more than the rows they hold; so the vectors are written out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

LANES = 8  # numbers at a time
HUGE = 1 << 60  # the length that arrays made of addresses claim: kernels know where they end
INDEX = ir.IntType(32)

Body = Callable[[Any, list[Any]], None]


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


def _along(context: Any, builder: Any, signature: Any, arguments: Sequence[Any], body: Body) -> None:
    """Code that calls ``body(kind, pointers)`` for every eight numbers of the rows, and for each that is left.

    Arguments are (array, place) pairs and the length; kind is the type of eight numbers, or of one.
    """
    *pairs, length = [
        value if isinstance(kind, types.Array) else context.cast(builder, value, kind, types.int64)
        for kind, value in zip(signature.args, arguments, strict=True)
    ]
    starts = []
    for kind, array, place in zip(signature.args[:-1:2], pairs[::2], pairs[1::2], strict=True):
        starts.append(builder.gep(context.make_array(kind)(context, builder, array).data, [place]))
    number = context.get_data_type(signature.args[0].dtype)
    whole = builder.and_(length, ir.Constant(length.type, -LANES))
    parts = [(ir.VectorType(number, LANES), 0, whole, LANES), (number, whole, length, 1)]
    for kind, first, last, step in parts:
        begin = first if first is whole else ir.Constant(length.type, first)
        stride = ir.Constant(length.type, step)
        with cgutils.for_range_slice(builder, begin, last, stride, length.type) as (index, _):
            body(kind, [builder.bitcast(builder.gep(start, [index]), kind.as_pointer()) for start in starts])


def _alignment(kind: Any) -> int:
    """Of the numbers themselves: rows begin anywhere."""
    number = kind.element if isinstance(kind, ir.VectorType) else kind
    return 4 if isinstance(number, ir.FloatType) else 8


def _load(builder: Any, kind: Any, pointer: Any) -> Any:
    return builder.load(pointer, align=_alignment(kind))


def _spread(builder: Any, kind: Any, value: Any) -> Any:
    """A number, or eight times the same."""
    if not isinstance(kind, ir.VectorType):
        return value
    empty = ir.Constant(kind, ir.Undefined)
    single = builder.insert_element(empty, value, ir.Constant(INDEX, 0))
    return builder.shuffle_vector(single, empty, ir.Constant(ir.VectorType(INDEX, LANES), None))


def _product(builder: Any, *factors: Any) -> Any:
    out = factors[0]
    for factor in factors[1:]:
        out = builder.fmul(out, factor, flags=("contract",))
    return out


def _sum(builder: Any, a: Any, b: Any) -> Any:
    return builder.fadd(a, b, flags=("contract",))  # with a product: one instruction


def _set(builder: Any, factor: Any, *, adds: bool) -> Body:
    """Out = factor x y ..., or out += it; the first row is out."""

    def body(kind: Any, pointers: list[Any]) -> None:
        out, *others = pointers
        scale = [] if factor is None else [_spread(builder, kind, factor)]
        value = _product(builder, *scale, *(_load(builder, kind, other) for other in others))
        if adds:
            value = _sum(builder, _load(builder, kind, out), value)
        builder.store(value, out, align=_alignment(kind))

    return body


def _generator(*, adds: bool) -> Callable[..., Any]:
    """Code of an operation (out, o, a, x, i, ..., n)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, place, factor, *rows = arguments
        scale = context.cast(builder, factor, signature.args[2], signature.args[0].dtype)
        kinds = signature.args
        rows_only = signature.replace(args=(*kinds[:2], *kinds[3:]))
        _along(context, builder, rows_only, (out, place, *rows), _set(builder, scale, adds=adds))
        return context.get_dummy_value()

    return generate


@intrinsic
def add(typing: Any, out: Any, o: Any, x: Any, i: Any, n: Any) -> Any:
    """out[o:] += x[i:], n numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _along(context, builder, signature, arguments, _set(builder, None, adds=True))
        return context.get_dummy_value()

    return types.void(out, o, x, i, n), generate


@intrinsic
def scaled(typing: Any, out: Any, o: Any, a: Any, x: Any, i: Any, n: Any) -> Any:
    """out[o:] = a x[i:], n numbers."""
    return types.void(out, o, a, x, i, n), _generator(adds=False)


@intrinsic
def add_scaled(typing: Any, out: Any, o: Any, a: Any, x: Any, i: Any, n: Any) -> Any:
    """out[o:] += a x[i:], n numbers."""
    return types.void(out, o, a, x, i, n), _generator(adds=True)


@intrinsic
def product(typing: Any, out: Any, o: Any, a: Any, x: Any, i: Any, y: Any, j: Any, n: Any) -> Any:
    """out[o:] = a x[i:] y[j:], n numbers."""
    return types.void(out, o, a, x, i, y, j, n), _generator(adds=False)


@intrinsic
def add_product(typing: Any, out: Any, o: Any, a: Any, x: Any, i: Any, y: Any, j: Any, n: Any) -> Any:
    """out[o:] += a x[i:] y[j:], n numbers."""
    return types.void(out, o, a, x, i, y, j, n), _generator(adds=True)


@intrinsic
def add_triple(typing: Any, out: Any, o: Any, a: Any, x: Any, i: Any, y: Any, j: Any, z: Any, k: Any, n: Any) -> Any:
    """out[o:] += a x[i:] y[j:] z[k:], n numbers."""
    return types.void(out, o, a, x, i, y, j, z, k, n), _generator(adds=True)


@intrinsic
def add_quadruple(
    typing: Any, out: Any, o: Any, a: Any, x: Any, i: Any, y: Any, j: Any, z: Any, k: Any, w: Any, l: Any, n: Any
) -> Any:
    """out[o:] += a x[i:] y[j:] z[k:] w[l:], n numbers."""
    return types.void(out, o, a, x, i, y, j, z, k, w, l, n), _generator(adds=True)


@intrinsic
def dot(typing: Any, x: Any, i: Any, y: Any, j: Any, n: Any) -> Any:
    """x[i:] . y[j:], n numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = context.get_data_type(x.dtype)
        eight = ir.VectorType(number, LANES)
        sums = {
            eight: cgutils.alloca_once_value(builder, ir.Constant(eight, [ir.Constant(number, 0.0)] * LANES)),
            number: cgutils.alloca_once_value(builder, ir.Constant(number, 0.0)),
        }

        def body(kind: Any, pointers: list[Any]) -> None:
            part = _product(builder, *(_load(builder, kind, pointer) for pointer in pointers))
            builder.store(_sum(builder, builder.load(sums[kind]), part), sums[kind])

        for kind, place in sums.items():  # allocated once a kernel, so cleared at every use
            zeros = [ir.Constant(number, 0.0)] * LANES if kind is eight else 0.0
            builder.store(ir.Constant(kind, zeros), place)
        _along(context, builder, signature, arguments, body)
        total, wide = builder.load(sums[number]), builder.load(sums[eight])
        for lane in range(LANES):
            total = _sum(builder, total, builder.extract_element(wide, ir.Constant(INDEX, lane)))
        return total

    return x.dtype(x, i, y, j, n), generate


@intrinsic
def zero(typing: Any, out: Any, o: Any, n: Any) -> Any:
    """out[o:] = 0, n numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def body(kind: Any, pointers: list[Any]) -> None:
            number = kind.element if isinstance(kind, ir.VectorType) else kind
            zeros = [ir.Constant(number, 0.0)] * LANES if isinstance(kind, ir.VectorType) else 0.0
            builder.store(ir.Constant(kind, zeros), pointers[0], align=_alignment(kind))

        _along(context, builder, signature, arguments, body)
        return context.get_dummy_value()

    return types.void(out, o, n), generate
