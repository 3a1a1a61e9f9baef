"""Linear maps of equivariant features.

Features of a set of N atoms are a list over degrees: ``x[l]  # [N, 2l+1, C_l]``, channels last, m = -l..l.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

Initialisation = Literal["normal", "uniform"]


def initialise(weight: Tensor, fan_in: int, kind: Initialisation) -> None:
    """Fill a weight with N(0, 1 / fan_in), or uniformly in ±1 / sqrt(fan_in) (the paper's appendix on MD17)."""
    with torch.no_grad():
        if kind == "normal":
            weight.normal_(std=fan_in**-0.5)
        else:
            weight.uniform_(-(fan_in**-0.5), fan_in**-0.5)


class SO3Linear(nn.Module):
    """One matrix per degree, shared by all orders m; a bias on the scalars only (Equiformer's ``Linear``).

    Degrees absent from either side (0 channels, or beyond the shorter list) are skipped.
    """

    def __init__(
        self,
        channels_in: Sequence[int],
        channels_out: Sequence[int],
        *,
        bias: bool = True,
        init: Initialisation = "normal",
    ) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(c_in, c_out)) for c_in, c_out in zip(channels_in, channels_out, strict=False)
        )
        self.bias = nn.Parameter(torch.zeros(channels_out[0])) if bias else None
        for weight in self.weights:
            if weight.numel():
                initialise(weight, len(weight), init)

    def forward(self, x: Sequence[Tensor], degrees: Sequence[int] | None = None) -> list[Tensor]:
        """Map features of the given degrees (default 0, 1, ...), each [N, 2l+1, C_l] to [N, 2l+1, C'_l].

        Of default degrees, those beyond the shorter of x and the weights are dropped.
        """
        used = range(min(len(x), len(self.weights))) if degrees is None else degrees
        out = [x_l @ self.weights[l] for x_l, l in zip(x, used, strict=degrees is not None)]
        if self.bias is not None and used[0] == 0:
            out[0] = out[0] + self.bias
        return out
