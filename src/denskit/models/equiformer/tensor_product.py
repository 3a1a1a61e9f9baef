"""Linear layers after tensor products with an edge, in the edge frame: see :mod:`denskit.geometry.so2`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from denskit.geometry.so2 import CoupledBlock, CouplePlan, couple_plan, ranges_of, rows_of, spread
from denskit.nn.so3_linear import Initialisation, initialise


@cache
def _rows(l1: tuple[int, ...], channels: tuple[int, ...], m: int, device: torch.device) -> Tensor:
    """Positions of the channels of paths from degrees l1 among the channels of all degrees >= m."""
    starts = [sum(channels[m:degree]) for degree in range(len(channels))]
    with torch.inference_mode(False):
        return torch.cat([torch.arange(channels[degree]) + starts[degree] for degree in l1]).to(device)


class _PathLinear(nn.Module):
    """All paths from degrees 0..l_max with an edge of the same degrees into degrees 0..l_out, mixed by one matrix
    [channels of all paths into l3, C'_l3] for each l3; a bias on the scalars.  ``parity``: even paths alone."""

    def __init__(
        self, channels_in: Sequence[int], channels_out: Sequence[int], *, init: Initialisation, parity: bool = False
    ) -> None:
        super().__init__()
        self.parity = parity
        self.channels_in, self.channels_out = tuple(channels_in), tuple(channels_out)
        self.widths = self.plan(0).widths
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(width, c_out)) for width, c_out in zip(self.widths, channels_out, strict=True)
        )
        self.bias = nn.Parameter(torch.zeros(channels_out[0]))
        for weight, width in zip(self.weights, self.widths, strict=True):
            initialise(weight, width, init)

    def plan(self, m_max: int) -> CouplePlan:
        """The layout with orders up to m_max."""
        return couple_plan(self.channels_in, len(self.channels_out) - 1, m_max, self.parity)

    @property
    def num_path_weights(self) -> int:
        """One weight for each path and channel."""
        return sum(self.widths)


class DepthwiseTensorProductLinear(_PathLinear):
    """The linear layer after a depthwise tensor product with path weights of each edge.

    Equiformer (Liao and Smidt 2023) calls the two a separable fully connected tensor product.
    """

    def forward(self, coupled: Sequence[Tensor], m_max: int) -> list[Tensor]:
        """Mix the paths (:func:`denskit.models.equiformer.kernels.reference.couple` with ``plan(m_max)``).

        From [E, 1 or 2, width] to [E, 1 or 2, C'_l3] for each block of the plan.
        """
        blocks = self.plan(m_max).blocks
        out: list[Tensor] = []
        for l3, weight in enumerate(self.weights):
            mine = [(block, x) for block, x in zip(blocks, coupled, strict=True) if block.l3 == l3]
            matrices = ranges_of(weight, [(block.start, block.start + block.width) for block, _ in mine], 0)
            out += [self._mixed(x, matrix, block) for (block, x), matrix in zip(mine, matrices, strict=True)]
        return out

    def _mixed(self, x: Tensor, matrix: Tensor, block: CoupledBlock) -> Tensor:
        rows = x.flatten(0, 1)
        mixed = torch.addmm(self.bias, rows, matrix) if block.l3 == 0 else rows @ matrix
        return mixed.unflatten(0, x.shape[:2])


class SharedTensorProductLinear(_PathLinear):
    """Tensor product whose path weights are parameters, then a linear layer: together one SO(2) linear layer."""

    def __init__(
        self, channels_in: Sequence[int], channels_out: Sequence[int], *, init: Initialisation, parity: bool = False
    ) -> None:
        super().__init__(channels_in, channels_out, init=init, parity=parity)
        self.path_weights = nn.ParameterList(nn.Parameter(torch.empty(width)) for width in self.widths)
        for weight in self.path_weights:
            initialise(weight, 1, init)

    def forward(self, f: Sequence[Tensor], degrees: Sequence[int]) -> list[Tensor]:
        """Couple features grouped by order with the edge.

        From f[m] [E, 1 or 2, sum of C_l over l >= m], for each m <= max(degrees), to [E, 1 or 2, sum of C'_l over the
        ``degrees`` >= m], which are ascending and side by side.
        """
        scaled = {l3: self.path_weights[l3][:, None] * self.weights[l3] for l3 in degrees}
        plan, out = self.plan(max(degrees)), []
        for m in range(max(degrees) + 1):
            blocks = [block for block in plan.blocks if block.m == m and block.l3 in scaled]
            apart = m == 0 or self.parity  # then the rows +m and -m do not mix
            even = _paths_matrix(blocks, True, scaled, self.channels_in)
            odd = None if apart else _paths_matrix(blocks, False, scaled, self.channels_in)
            matrix = even if odd is None else torch.cat((torch.cat((even, -odd), 1), torch.cat((odd, even), 1)), 0)
            flat = f[m].flatten(0, 1) if apart else f[m].flatten(1)
            if m == 0 and 0 in scaled:  # the bias of the scalars is zero on all other columns
                bias = torch.cat((self.bias, matrix.new_zeros(matrix.shape[1] - len(self.bias))))
                mixed = torch.addmm(bias, flat, matrix)
            else:
                mixed = flat @ matrix
            out.append(mixed.reshape(f[m].shape[0], rows_of(m), even.shape[1]))
        return out


def _paths_matrix(
    blocks: Sequence[CoupledBlock], even: bool, scaled: dict[int, Tensor], channels_in: tuple[int, ...]
) -> Tensor:
    """Matrix of the even or odd paths of one order: together [[A, -B], [B, A]] on the concatenated pair (+m, -m)."""
    return torch.cat([_gathered(block, even, scaled[block.l3], channels_in) for block in blocks], 1)


def _gathered(block: CoupledBlock, even: bool, weight: Tensor, channels_in: tuple[int, ...]) -> Tensor:
    """Matrix [sum of C_l over l >= m, C'_l3]: even or odd paths from the same degree l1 added up."""
    out = weight.new_zeros(sum(channels_in[block.m :]), weight.shape[1])
    paths = [path for path in block.paths if path.even == even]
    if not paths:
        return out
    start, widths = block.start + paths[0].column, tuple(path.width for path in paths)
    coefficients = spread(tuple(path.coefficient for path in paths), widths, weight.device, weight.dtype)
    rows = _rows(tuple(path.l1 for path in paths), channels_in, block.m, weight.device)
    return out.index_add(0, rows, weight[start : start + sum(widths)] * coefficients[:, None])
