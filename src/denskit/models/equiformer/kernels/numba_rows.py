"""Operations on rows that CPU kernels share: copies, sums, and rotations of an edge's features by its matrices.

Arguments are pairs of a flat array and a place in it, then lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from denskit.models.equiformer.kernels.numba_kernel import kernel
from denskit.models.equiformer.kernels.numba_vectors import Code, Lanes, at, operation

UNROLLED = (1, 3, 5, 7)  # sizes of matrices that are written out: l = 0 to 3


@operation
def zero(code: Code, out: Any, o: Any, n: Any) -> None:
    """out[o:] = 0, n numbers."""
    code.along(n, lambda lanes: lanes.store(lanes.all(0.0), out, o))


@operation
def copy(code: Code, out: Any, o: Any, x: Any, i: Any, n: Any) -> None:
    """out[o:] = x[i:], n numbers."""
    code.along(n, lambda lanes: lanes.store(lanes.load(x, i), out, o))


@operation
def add(code: Code, out: Any, o: Any, x: Any, i: Any, n: Any) -> None:
    """out[o:] += x[i:], n numbers."""
    code.along(n, lambda lanes: lanes.add_to(out, o, lanes.load(x, i)))


@operation
def add_two(code: Code, out: Any, o: Any, x: Any, i: Any, y: Any, j: Any, n: Any) -> None:
    """out[o:] = x[i:] + y[j:], n numbers."""
    code.along(n, lambda lanes: lanes.store(lanes.add(lanes.load(x, i), lanes.load(y, j)), out, o))


@operation
def fill(code: Code, out: Any, o: Any, x: Any, i: Any, n: Any) -> None:
    """out[o:] = the number x[i], n times."""
    code.along(n, lambda lanes: lanes.store(lanes.all(code.get(x, i)), out, o))


@operation
def add_total(code: Code, out: Any, o: Any, x: Any, i: Any, n: Any) -> None:
    """out[o] += the sum of x[i:], n numbers."""
    total = code.total()
    code.along(n, lambda lanes: total.add(lanes, lanes.load(x, i)))
    code.add_to(out, o, total.value())


@operation
def rotate(
    code: Code, out: Any, o: Any, x: Any, i: Any, matrix: Any, d: Any, rows: Any, size: Any, n: Any
) -> None:  # fmt: skip
    """out[row] += sum_k D[row, k] x[k]; rows of n numbers, D the first ``rows`` rows of a square matrix."""

    def known(width: int) -> None:
        def body(lanes: Lanes) -> None:
            given = [lanes.load(x, code.place(i, k, n)) for k in range(width)]

            def row_of(row: Any) -> None:
                place, line = code.place(o, row, n), code.place(d, row, size)
                total = lanes.load(out, place)
                for k, value in enumerate(given):
                    total = lanes.add(total, lanes.mul(lanes.all(_element(code, matrix, line, k)), value))
                lanes.store(total, out, place)

            code.times(rows, row_of)

        code.along(n, body)

    def unknown() -> None:
        def pair(row: Any, k: Any) -> None:
            factor = _element(code, matrix, code.place(d, row, size), k)
            _add_row(code, out, code.place(o, row, n), factor, x, code.place(i, k, n), n)

        _pairs(code, rows, size, pair)

    code.one_of(size, UNROLLED, known, unknown)


@operation
def rotate_back(
    code: Code, out: Any, o: Any, x: Any, i: Any, matrix: Any, d: Any, rows: Any, size: Any, n: Any
) -> None:  # fmt: skip
    """out[k] += sum_row D[row, k] x[row]; see :func:`rotate`."""

    def known(width: int) -> None:
        def body(lanes: Lanes) -> None:
            places = [code.place(o, k, n) for k in range(width)]
            sums = [lanes.variable(lanes.load(out, place)) for place in places]

            def row_of(row: Any) -> None:
                value, line = lanes.load(x, code.place(i, row, n)), code.place(d, row, size)
                for k, total in enumerate(sums):
                    lanes.increase(total, lanes.mul(lanes.all(_element(code, matrix, line, k)), value))

            code.times(rows, row_of)
            for place, total in zip(places, sums, strict=True):
                lanes.store(lanes.value(total), out, place)

        code.along(n, body)

    def unknown() -> None:
        def pair(row: Any, k: Any) -> None:
            factor = _element(code, matrix, code.place(d, row, size), k)
            _add_row(code, out, code.place(o, k, n), factor, x, code.place(i, row, n), n)

        _pairs(code, rows, size, pair)

    code.one_of(size, UNROLLED, known, unknown)


@operation
def outer(
    code: Code, out: Any, d: Any, x: Any, i: Any, y: Any, j: Any, rows: Any, size: Any, n: Any
) -> None:  # fmt: skip
    """out[row, k] += x[row] . y[k]; rows of n numbers, out the first ``rows`` rows of a square matrix."""

    def known(width: int) -> None:
        def row_of(row: Any) -> None:
            sums = [code.total() for _ in range(width)]
            of = code.place(i, row, n)

            def body(lanes: Lanes) -> None:
                value = lanes.load(x, of)
                for k, total in enumerate(sums):
                    total.add(lanes, lanes.mul(value, lanes.load(y, code.place(j, k, n))))

            code.along(n, body)
            for k, total in enumerate(sums):
                code.add_to(out, _shifted(code, code.place(d, row, size), k), total.value())

        code.times(rows, row_of)

    def unknown() -> None:
        def pair(row: Any, k: Any) -> None:
            total = code.total()
            of, by = code.place(i, row, n), code.place(j, k, n)
            code.along(n, lambda lanes: total.add(lanes, lanes.mul(lanes.load(x, of), lanes.load(y, by))))
            code.add_to(out, _shifted(code, code.place(d, row, size), k), total.value())

        _pairs(code, rows, size, pair)

    code.one_of(size, UNROLLED, known, unknown)


@kernel
def clear_matrices(matrices, e, count, like):
    """Zero the rotation matrices of an edge, l = 0 to count - 1."""
    for l in range(count):
        size = (2 * l + 1) ** 2
        zero(at(matrices[l], like), e * size, size)


def _add_row(code: Code, out: Any, o: Any, factor: Any, x: Any, i: Any, n: Any) -> None:
    code.along(n, lambda lanes: lanes.add_to(out, o, lanes.mul(lanes.all(factor), lanes.load(x, i))))


def _pairs(code: Code, rows: Any, size: Any, body: Callable[[Any, Any], None]) -> None:
    code.times(rows, lambda row: code.times(size, lambda k: body(row, k)))


def _element(code: Code, matrix: Any, line: Any, k: Any) -> Any:
    return code.get(matrix, _shifted(code, line, k))


def _shifted(code: Code, place: Any, k: Any) -> Any:
    return code.builder.add(place, code.whole(k))
