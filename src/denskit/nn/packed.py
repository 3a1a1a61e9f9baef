"""Layers on packed features: one tensor [N, (l_max + 1)^2, C] with rows l * l + l + m; the three published norms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import isqrt
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denskit.nn.so3_linear import Initialisation, initialise
from denskit.nn.weight_decay import NoWeightDecay

EPS = 1e-5


def orders_of(x: Tensor) -> list[int]:
    """Numbers of orders 2l + 1 of all degrees in packed features [N, (l_max + 1)^2, C]."""
    return [2 * l + 1 for l in range(isqrt(x.shape[1]))]


class PackedLinear(nn.Module):
    """One matrix [C_out, C_in] for each degree, shared by its orders; a bias on the scalars."""

    def __init__(self, l_max: int, channels_in: int, channels_out: int, init: Initialisation) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(l_max + 1, channels_out, channels_in))
        self.bias = nn.Parameter(torch.zeros(channels_out))
        initialise(self.weight, channels_in, init)

    def forward(
        self,
        x: Tensor,
        degrees: Sequence[int] | None = None,
        *,
        before: Tensor | None = None,
        after: Tensor | None = None,
    ) -> Tensor:
        """Map rows [N, sum of 2l + 1, C_in] of the given degrees (default: those of x), in their order.

        ``before`` [C_in, C] and ``after`` [C', C_out] are linear maps of channels around this one, merged with it.
        """
        used = range(isqrt(x.shape[1])) if degrees is None else degrees
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if before is not None:
            weight = weight @ before
        if after is not None:
            weight, bias = after @ weight, after @ bias
        parts = []
        for l, part in zip(used, x.split([2 * l + 1 for l in used], 1), strict=True):
            parts.append(F.linear(part, weight[l], bias if l == 0 else None))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class PackedNorm(NoWeightDecay, ABC):
    """A norm with one weight for each degree and channel and a bias on the scalars; x may have fewer degrees."""

    def __init__(self, l_max: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(l_max + 1, channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    @abstractmethod
    def inverse_scale(self, x: Tensor, orders: list[int]) -> list[Tensor]:
        """1 / scale [N, 1, 1] of each degree of x, whose scalars have mean 0."""

    def forward(self, x: Tensor) -> Tensor:
        """Packed features [N, (l_max + 1)^2, C] to the same shape, in the precision of the weights."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.weight.dtype)
            orders = orders_of(x)
            if self.bias is not None:
                scalars = x[:, :1]
                centred = scalars - scalars.mean(-1, keepdim=True)
                x = centred if len(orders) == 1 else torch.cat((centred, x[:, 1:]), 1)
            parts = []
            for l, (part, inverse) in enumerate(zip(x.split(orders, 1), self.inverse_scale(x, orders), strict=True)):
                scaled = part * (inverse * self.weight[l])
                parts.append(scaled + self.bias if l == 0 and self.bias is not None else scaled)
            return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _mean_square(x: Tensor) -> Tensor:
    return x.square().mean((1, 2), keepdim=True)


class LayerNorm(PackedNorm):
    """Each degree by its own scale (published as ``layer_norm``)."""

    def inverse_scale(self, x: Tensor, orders: list[int]) -> list[Tensor]:
        """One root mean square per degree."""
        return [(_mean_square(part) + EPS).rsqrt() for part in x.split(orders, 1)]


class SeparableLayerNorm(PackedNorm):
    """Scalars by their own scale, higher degrees by one scale with equal weights (``layer_norm_sh``)."""

    def inverse_scale(self, x: Tensor, orders: list[int]) -> list[Tensor]:
        """One for the scalars, one for the rest."""
        squares = [_mean_square(part) for part in x.split(orders, 1)]
        scalars = (squares[0] + EPS).rsqrt()
        if len(squares) == 1:
            return [scalars]
        rest = (torch.stack(squares[1:]).mean(0) + EPS).rsqrt()
        return [scalars] + [rest] * (len(squares) - 1)


class RMSNorm(PackedNorm):
    """All degrees by one scale with equal weights (``rms_norm_sh``)."""

    def inverse_scale(self, x: Tensor, orders: list[int]) -> list[Tensor]:
        """One for all."""
        squares = torch.stack([_mean_square(part) for part in x.split(orders, 1)])
        return [(squares.mean(0) + EPS).rsqrt()] * len(orders)


class PlainRMSNorm(RMSNorm):
    """The same without centring and bias (``merge_rms_norm`` of EquiformerV3)."""

    def __init__(self, l_max: int, channels: int) -> None:
        super().__init__(l_max, channels)
        self.bias = None  # type: ignore[assignment]


PackedNormName = Literal["layer_norm", "separable_layer_norm", "rms_norm"]
PACKED_NORMS: dict[PackedNormName, type[PackedNorm]] = {
    "layer_norm": LayerNorm,
    "separable_layer_norm": SeparableLayerNorm,
    "rms_norm": RMSNorm,
}
