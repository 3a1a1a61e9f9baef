"""SO(2) linear layers on features in the edge frame, ordered by |m| (Passaro and Zitnick 2023, eSCN).

In the edge frame an equivariant map may mix all degrees of one order |m|: for m = 0 by any matrix, for m > 0 by pairs
(W_r, W_i) that act on (+m, -m) like a complex number: out(+m) = W_r in(+m) - W_i in(-m), out(-m) = W_r in(-m) +
W_i in(+m).  Features are order-major: :mod:`denskit.geometry.order_major`.

W_i tells left from right: a mirror in a plane that holds the edge changes the sign of the rows -m alone.  Without it
features of degree l change by (-1)^l under inversion, as spherical harmonics do, and scalars not at all: the symmetry
is O(3) instead of SO(3).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denskit.geometry.so2 import ranges_of
from denskit.nn.so3_linear import Initialisation, initialise


class SO2Linear(nn.Module):
    """A linear map of order-major features, with a bias and extra outputs on m = 0.

    Weights lie as published: ``weight_0`` [extra + (l_max + 1) C_out, (l_max + 1) C_in], ``weights[m - 1]``
    [2 n C_out, n C_in] with n = l_max + 1 - m, the real half above the imaginary one; with ``parity`` the real half
    alone.
    """

    def __init__(
        self,
        l_max: int,
        m_max: int,
        channels_in: int,
        channels_out: int,
        *,
        extra: int = 0,
        parity: bool = False,
        init: Initialisation,
    ) -> None:
        super().__init__()
        self.l_max, self.m_max, self.extra, self.parity = l_max, m_max, extra, parity
        self.channels_in, self.channels_out = channels_in, channels_out
        wide = (l_max + 1) * channels_in
        self.weight_0 = nn.Parameter(torch.empty(extra + (l_max + 1) * channels_out, wide))
        self.bias = nn.Parameter(torch.zeros(extra + (l_max + 1) * channels_out))
        initialise(self.weight_0, wide, init)
        self.weights = nn.ParameterList()
        for m in range(1, m_max + 1):
            degrees, halves = l_max + 1 - m, 1 if parity else 2
            weight = nn.Parameter(torch.empty(halves * degrees * channels_out, degrees * channels_in))
            # published: with normal weights only, the halving of the variance is lost
            initialise(weight, degrees * channels_in * (halves if init == "uniform" else 1), init)
            self.weights.append(weight)

    @property
    def num_factors(self) -> int:
        """One factor for each input row and channel, the same for +m and -m."""
        return sum((self.l_max + 1 - m) * self.channels_in for m in range(self.m_max + 1))

    def forward(
        self, x: Tensor, factors: Tensor | None = None, degrees: tuple[int, ...] | None = None, *, shared: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Map order-major features [E, K, C_in] to the rows of some degrees (default all), [E, K', C_out].

        ``factors`` [E, num_factors], ordered by |m|, then l, multiply the input features (radial functions); if they
        are ``shared`` by all orders, they are [E, (l_max + 1) C_in].  Returns the extra scalars [E, extra], too.
        """
        sizes = [self.l_max + 1 - m for m in range(self.m_max + 1)]
        by_order = list(x.split([size if m == 0 else 2 * size for m, size in enumerate(sizes)], 1))
        if factors is not None:
            per_degree = factors.unflatten(1, (-1, self.channels_in))  # a row for each factor's degree
            if shared:
                split = ranges_of(per_degree, [(m, self.l_max + 1) for m in range(self.m_max + 1)], 1)
            else:
                split = per_degree.split(sizes, 1)
            for m, (rows, factor) in enumerate(zip(by_order, split, strict=True)):
                by_order[m] = rows.unflatten(1, (1 if m == 0 else 2, sizes[m])) * factor[:, None]
        bias = self.bias if degrees is None else torch.cat(self._scalar_rows(self.bias, degrees))
        outputs, extra = [], x.new_zeros(x.shape[0], 0)
        for m, (rows, matrix) in enumerate(zip(by_order, self.matrices(degrees), strict=False)):
            if self.parity and m > 0:
                out = F.linear(rows.reshape(rows.shape[0], 2, matrix.shape[1]), matrix).flatten(1)  # len: no symbol
            else:
                out = F.linear(rows.flatten(1), matrix, bias if m == 0 else None)
            if m == 0:
                extra, out = out.split([self.extra, out.shape[1] - self.extra], 1)
            outputs.append(out.unflatten(1, (-1, self.channels_out)))
        return torch.cat(outputs, 1), extra

    def matrices(self, degrees: tuple[int, ...] | None = None) -> list[Tensor]:
        """The matrix of each order into the given degrees (default all).

        [outputs, signs * degrees * C_in]; with parity [outputs, degrees * C_in], for the rows of either sign.
        """
        wanted = range(self.l_max + 1) if degrees is None else degrees
        found = [self.weight_0 if degrees is None else torch.cat(self._scalar_rows(self.weight_0, degrees))]
        for m in range(1, min(self.m_max, max(wanted)) + 1):
            halves = self._halves(m, [l - m for l in wanted if l >= m])
            found.append(halves[0] if self.parity else _complex_matrix(*halves))
        return found

    def _scalar_rows(self, x: Tensor, degrees: tuple[int, ...]) -> list[Tensor]:
        starts = [self.extra + l * self.channels_out for l in degrees]
        return [x[: self.extra], *(x[start : start + self.channels_out] for start in starts)]

    def _halves(self, m: int, used: list[int]) -> tuple[Tensor, ...]:
        """W_r and, without parity, W_i, into some of the degrees from m."""
        halves = (self.weights[m - 1],) if self.parity else self.weights[m - 1].chunk(2)
        if len(used) == self.l_max + 1 - m:
            return halves
        c = self.channels_out
        return tuple(torch.cat([w[l * c : (l + 1) * c] for l in used]) for w in halves)


def _complex_matrix(real: Tensor, imaginary: Tensor) -> Tensor:
    """[[W_r, -W_i], [W_i, W_r]], acting on (+m, -m) side by side."""
    return torch.cat((torch.cat((real, -imaginary), 1), torch.cat((imaginary, real), 1)))
