"""Functions of the distance that vanish at the cutoff."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class CosineCutoff(nn.Module):
    """(1 + cos(pi d / cutoff)) / 2 below the cutoff, 0 from there on (Behler and Parrinello, PRL 98, 146401, eq. 4).

    Value and slope vanish at the cutoff, the curvature jumps: use :class:`PolynomialEnvelope` for differentiable
    forces.
    """

    def __init__(self, cutoff: float) -> None:
        super().__init__()
        self.cutoff = cutoff

    def forward(self, distance: Tensor) -> Tensor:
        """Distances of any shape (Å) to values of the same shape."""
        value = 0.5 * (torch.cos(distance * math.pi / self.cutoff) + 1.0)
        return torch.where(distance < self.cutoff, value, torch.zeros_like(value))


class PolynomialEnvelope(nn.Module):
    """1 at distance 0; value, slope and curvature 0 at the cutoff; exactly 0 beyond (DimeNet, arXiv 2003.03123, eq. 8).

    With x = d / cutoff and exponent p the published polynomial is
    1 - (p+1)(p+2)/2 x^p + p(p+2) x^(p+1) - p(p+1)/2 x^(p+2).  It equals (1-x)^3 sum_{k<p} (k+1)(k+2)/2 x^k, the form
    used here: it is never negative and keeps full relative precision near the cutoff, where the other one cancels.
    """

    def __init__(self, cutoff: float, exponent: int = 6) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.exponent = exponent

    def forward(self, distance: Tensor) -> Tensor:
        """Distances of any shape (Å) to values of the same shape in [0, 1]."""
        x = (distance / self.cutoff).clamp(max=1.0)
        series = torch.zeros_like(x)
        for k in reversed(range(self.exponent)):  # Horner
            series = series * x + (k + 1) * (k + 2) / 2
        return (1.0 - x) ** 3 * series
