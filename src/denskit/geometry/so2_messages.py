"""First and last step of an SO(2) message in chunks of edges: rotate and convolve; weigh, rotate back and sum.

Tensors of edges times rows times channels exist for one chunk of edges at a time.  The backward pass recomputes them,
which costs a few percent, since products with the large matrices are not repeated.  Under autocast products are in half
precision, sums in float32.  For gradient forces, which differentiate the frames, and for compilers use the plain forms;
both give the same numbers up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from denskit.geometry.operations import add_product, product_dtype, sum_dtype

VALUES = {"cpu": 2**20, "cuda": 2**26}  # features per chunk: efficient products within the caches


@dataclass(frozen=True)
class Order:
    """Rows of one |m|."""

    first: int  # row of the features
    signs: int  # 1 for m = 0, else 2
    size: int  # degrees
    factor: int  # first of its factors
    adds: bool  # an order before it has the same factors


def orders(l_max: int, m_max: int, *, shared: bool = False) -> list[Order]:
    """The orders |m| = 0..m_max of order-major features; ``shared``: one radial factor per degree for all orders."""
    found: list[Order] = []
    first = factor = 0
    for m in range(m_max + 1):
        order = Order(first, 1 if m == 0 else 2, l_max + 1 - m, m if shared else factor, shared and m > 0)
        found.append(order)
        first, factor = first + order.signs * order.size, factor + order.size
    return found


@dataclass(frozen=True)
class MessageEdges:
    """Constants of a message; not differentiated."""

    source: Tensor  # [E]
    target: Tensor  # [E]
    matrix: Tensor  # [E, K, R] packed node features (R rows) to order-major edge features (K rows); transposed: back
    num_atoms: int

    def chunks(self, channels: int) -> Iterator[slice]:
        """Slices of edges with at most VALUES features of so many channels."""
        values = VALUES.get(self.source.device.type, VALUES["cuda"])
        size = max(1, values // (self.matrix.shape[1] * channels))
        return (slice(start, start + size) for start in range(0, len(self.source), size))


class _RotateAndConvolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        edges: MessageEdges,
        layout: list[Order],
        x: Tensor,
        hidden: Tensor,
        radial: Tensor,
        offset: Tensor,
        bias: Tensor,
        *matrices: Tensor,
    ) -> Tensor:
        ctx.edges, ctx.layout = edges, layout
        ctx.save_for_backward(x, hidden, radial, offset, *matrices)
        columns = _columns(layout, matrices, 2 * x.shape[2])
        out = x.new_empty(len(hidden), columns[-1].stop)
        for part in edges.chunks(x.shape[2]):
            rotated, factors = _inputs(edges, part, x, hidden, radial, offset)
            for order, matrix, column in zip(layout, matrices, columns, strict=True):
                rows, product = out[part, column], _product(order, rotated, factors)
                if rows.shape[1] == len(matrix):
                    torch.mm(product.flatten(1), matrix.T, out=rows)
                else:
                    rows.copy_((product.view(-1, matrix.shape[1]) @ matrix.T).view(rows.shape))
            out[part, columns[0]] += bias
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        edges: MessageEdges = ctx.edges
        x, hidden, radial, offset, *matrices = ctx.saved_tensors
        grad = grad.contiguous()
        summed = sum_dtype(x)
        grad_x, grad_hidden = torch.zeros_like(x, dtype=summed), torch.empty_like(hidden)
        grad_radial, grad_offset = torch.zeros_like(radial, dtype=summed), torch.zeros_like(offset, dtype=summed)
        grads = [torch.zeros_like(matrix, dtype=summed) for matrix in matrices]
        columns = _columns(ctx.layout, matrices, 2 * x.shape[2])
        for part in edges.chunks(x.shape[2]):
            rotated, factors = _inputs(edges, part, x, hidden, radial, offset)
            grad_rotated = [torch.empty_like(end) for end in rotated]
            grad_factors = torch.empty_like(factors)
            for order, matrix, grad_matrix, column in zip(ctx.layout, matrices, grads, columns, strict=True):
                rows = grad[part, column].reshape(-1, len(matrix))
                add_product(grad_matrix, rows.T, _product(order, rotated, factors).view(-1, matrix.shape[1]))
                _product_backward(order, rows @ matrix, rotated, factors, grad_rotated, grad_factors)
            grad_factors = grad_factors.flatten(1)
            add_product(grad_radial, grad_factors.T, hidden[part])
            grad_offset += grad_factors.sum(0)
            torch.mm(grad_factors, radial, out=grad_hidden[part])
            for end, index in zip(grad_rotated, (edges.source, edges.target), strict=True):
                grad_x.index_add_(0, index[part], (edges.matrix[part].mT @ end).to(summed))
        grad_bias = grad[:, : len(matrices[0])].sum(0)
        return (None, None, grad_x, grad_hidden, grad_radial, grad_offset, grad_bias, *grads)


def _columns(layout: Sequence[Order], matrices: Sequence[Tensor], width: int) -> list[slice]:
    """Of the outputs of each order; a matrix for one sign acts on both in turn.  ``width``: inputs of one degree."""
    found: list[slice] = []
    for order, matrix in zip(layout, matrices, strict=True):
        start = found[-1].stop if found else 0
        turns = order.signs * order.size * width // matrix.shape[1]
        found.append(slice(start, start + turns * len(matrix)))
    return found


def _inputs(
    edges: MessageEdges, part: slice, x: Tensor, hidden: Tensor, radial: Tensor, offset: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Features of both ends in the frames [e, K, C] each, and the radial factors [e, degrees and orders, 2, C]."""
    matrix = edges.matrix[part]
    rotated = [torch.bmm(matrix, x.index_select(0, index[part])) for index in (edges.source, edges.target)]
    factors = torch.addmm(offset, hidden[part], radial.T)
    return rotated, factors.view(len(factors), -1, 2, x.shape[-1])


def _views(order: Order, rotated: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of one order [e, signs, size, C] and the factors [e, 1, size, 2, C] that belong to them."""
    rows = rotated[:, order.first : order.first + order.signs * order.size]
    return rows.unflatten(1, (order.signs, order.size)), factors[:, None, order.factor : order.factor + order.size]


def _product(order: Order, rotated: Sequence[Tensor], factors: Tensor) -> Tensor:
    """Factors times features, both ends side by side: [e, signs, size, 2, C]."""
    edges, _, channels = rotated[0].shape
    out = rotated[0].new_empty(edges, order.signs, order.size, 2, channels)
    for end, features in enumerate(rotated):
        rows, factor = _views(order, features, factors)
        torch.mul(rows, factor[..., end, :], out=out[..., end, :])
    return out


def _product_backward(
    order: Order,
    grad: Tensor,
    rotated: Sequence[Tensor],
    factors: Tensor,
    grad_rotated: Sequence[Tensor],
    grad_factors: Tensor,
) -> None:
    """Fill the rows of one order of the gradients of features and factors."""
    edges, _, channels = rotated[0].shape
    grad = grad.view(edges, order.signs, order.size, 2, channels)
    for end, features in enumerate(rotated):
        rows, factor = _views(order, features, factors)
        grad_rows, grad_factor = _views(order, grad_rotated[end], grad_factors)
        torch.mul(grad[..., end, :], factor[..., end, :], out=grad_rows)
        if order.adds:
            grad_factor[..., end, :] += (grad[..., end, :] * rows).sum(1, keepdim=True)
        else:
            torch.sum(grad[..., end, :] * rows, 1, keepdim=True, out=grad_factor[..., end, :])


def rotate_and_convolve(
    edges: MessageEdges,
    layout: list[Order],
    x: Tensor,
    hidden: Tensor,
    radial: Tensor,
    offset: Tensor,
    bias: Tensor,
    matrices: Sequence[Tensor],
) -> Tensor:
    """Turn the features of both ends into the edge frame, multiply by radial factors, mix each order.

    Args:
        edges: with the matrix into the frame.
        layout: :func:`orders`.
        x: [N, R, C] packed node features.
        hidden: [E, H], the last hidden layer of a radial function, and radial [F, H], offset [F] its output layer: one
            factor for each order, degree, end and channel.
        bias: of the first matrix.
        matrices: one for each |m|, [outputs, signs * degrees * 2 * C], or [outputs, degrees * 2 * C] for the rows of
            either sign.

    Returns:
        [E, sum of outputs].  Differentiable once, in all tensors but those of ``edges``.
    """
    dtype = product_dtype(x)
    edges = replace(edges, matrix=edges.matrix.to(dtype))
    inputs = [tensor.to(dtype) for tensor in (x, hidden, radial, offset, bias, *matrices)]
    with torch.autocast(x.device.type, enabled=False):
        return _RotateAndConvolve.apply(edges, layout, *inputs)  # type: ignore[no-any-return]


class _WeighAndSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, edges: MessageEdges, values: Tensor, weights: Tensor) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(values, weights)
        summed = sum_dtype(values)
        out = values.new_zeros(edges.num_atoms, edges.matrix.shape[2], values.shape[2], dtype=summed)
        for part in edges.chunks(values.shape[2]):
            weighted = _by_head(values[part], weights[part]) * weights[part][:, None, :, None]
            rotated = torch.bmm(edges.matrix[part].mT, weighted.flatten(2))
            out.index_add_(0, edges.target[part], rotated.to(summed))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        edges: MessageEdges = ctx.edges
        values, weights = ctx.saved_tensors
        grad = grad.to(values.dtype)
        grad_values, grad_weights = torch.empty_like(values), torch.empty_like(weights)
        for part in edges.chunks(values.shape[2]):
            rotated = torch.bmm(edges.matrix[part], grad.index_select(0, edges.target[part]))
            rotated = _by_head(rotated, weights[part])
            torch.mul(rotated, weights[part][:, None, :, None], out=_by_head(grad_values[part], weights[part]))
            torch.sum(rotated * _by_head(values[part], weights[part]), (1, 3), out=grad_weights[part])
        return None, grad_values, grad_weights


def _by_head(values: Tensor, weights: Tensor) -> Tensor:
    return values.unflatten(2, (weights.shape[1], -1))


def weigh_and_sum(edges: MessageEdges, values: Tensor, weights: Tensor) -> Tensor:
    """Weight values [E, K, H C] in the edge frames by [E, H], rotate them back, sum them at the targets: [N, R, H C].

    The transpose of ``edges.matrix`` rotates back.  Differentiable once, in values and weights; sums are never in half
    precision.
    """
    dtype = product_dtype(edges.matrix)
    edges = replace(edges, matrix=edges.matrix.to(dtype))
    with torch.autocast(values.device.type, enabled=False):
        return _WeighAndSum.apply(edges, values.contiguous().to(dtype), weights.to(dtype))  # type: ignore[no-any-return]
