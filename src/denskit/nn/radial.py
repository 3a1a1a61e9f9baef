"""Radial bases: interatomic distances [E] in Å to features [E, num_basis].

Each is built as ``cls(num_basis, cutoff)`` and has finite values and second derivatives from distance 0 on (padding
edges).  Parameters and buffers have their published names.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from denskit.nn.cutoff import CosineCutoff, PolynomialEnvelope
from denskit.nn.weight_decay import NoWeightDecay

SERIES_BELOW = 0.1  # sin(u) / u by its series: the quotient's second derivative loses eps / u^2
PUBLISHED_PI = 3.14159  # the normalisation of Graphormer's Gaussian basis and of weights trained with it


class ExponentialNormalBasis(NoWeightDecay):
    """f(d) exp(-beta_k (exp(-5 (d - origin) / cutoff) - mu_k)^2), with f the cosine cutoff (PhysNet, arXiv 1902.08408,
    eq. 7, where all origins are 0).

    The means mu lie evenly between exp(-cutoff) and 1; beta = (2 (1 - exp(-cutoff)) / num_basis)^-2.  As in the
    published Equiformer the first mean is exp(-cutoff) with the cutoff in Å, although exp(-5 d / cutoff) ends at
    exp(-5): both agree at the published cutoff of 5 Å.  No parameter is trained.

    Origins (Å) of edges are ours; see :class:`denskit.nn.covalent_origins.CovalentOrigins`.
    """

    means: Tensor  # [num_basis]
    betas: Tensor  # [num_basis]

    def __init__(self, num_basis: int, cutoff: float) -> None:
        super().__init__()
        self.decay = 5.0 / cutoff
        self.cutoff_function = CosineCutoff(cutoff)
        start = math.exp(-cutoff)
        beta = (2.0 / num_basis * (1.0 - start)) ** -2
        self.register_buffer("means", torch.linspace(start, 1.0, num_basis))
        self.register_buffer("betas", torch.full((num_basis,), beta))

    def forward(self, distance: Tensor, origin: Tensor | None = None) -> Tensor:
        """Distances [E] and origins [E] (Å) to [E, num_basis]."""
        beyond = distance if origin is None else distance - origin
        exponent = -self.betas * (torch.exp(-self.decay * beyond.unsqueeze(-1)) - self.means) ** 2
        value: Tensor = self.cutoff_function(distance.unsqueeze(-1))
        return value * torch.exp(exponent)


class GaussianBasis(NoWeightDecay):
    """Normal densities of w d / cutoff + b with trained means and widths (Graphormer, arXiv 2203.04810, section 3).

    ``weight`` and ``bias`` are one number each for all pairs of elements; widths are |std| + 1e-5.  There is no cutoff
    function.
    """

    def __init__(self, num_basis: int, cutoff: float) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.mean = nn.Parameter(torch.empty(1, num_basis).uniform_(0.0, 1.0))
        self.std = nn.Parameter(torch.empty(1, num_basis).uniform_(1.0 / num_basis, 1.0))
        self.weight = nn.Parameter(torch.ones(1, 1))
        self.bias = nn.Parameter(torch.zeros(1, 1))

    def forward(self, distance: Tensor) -> Tensor:
        """Distances [E] (Å) to [E, num_basis]."""
        x = self.weight * (distance / self.cutoff).unsqueeze(-1) + self.bias
        width = self.std.abs() + 1e-5
        return torch.exp(-0.5 * ((x - self.mean) / width) ** 2) / (math.sqrt(2 * PUBLISHED_PI) * width)


class BesselBasis(NoWeightDecay):
    """sqrt(2 / cutoff^3) sin(w_k x) / x times a polynomial envelope, x = d / cutoff (DimeNet, arXiv 2003.03123, eq. 7).

    The frequencies w_k start at k pi and are trained.  The envelope has exponent 5, as in GemNet and the published
    Equiformer.
    """

    def __init__(self, num_basis: int, cutoff: float) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.norm = math.sqrt(2.0 / cutoff**3)
        self.envelope = PolynomialEnvelope(cutoff, exponent=5)
        self.frequencies = nn.Parameter(math.pi * torch.arange(1, num_basis + 1, dtype=torch.get_default_dtype()))

    def forward(self, distance: Tensor) -> Tensor:
        """Distances [E] (Å) to [E, num_basis]."""
        x = (distance / self.cutoff).unsqueeze(-1)
        envelope: Tensor = self.envelope(distance)
        return self.norm * envelope.unsqueeze(-1) * self.frequencies * _sine_quotient(self.frequencies * x)


class GaussianSmearing(nn.Module):
    """exp(-(d - mu_k)^2 / (2 s^2)), mu_k evenly from 0 to the cutoff, s = ``width`` spacings (SchNet, 1706.08566).

    EquiformerV2 uses 600 with width 2.  The spacing is taken from the grid: a loaded float32 grid keeps its width.
    """

    offset: Tensor  # [num_basis] Å

    def __init__(self, num_basis: int, cutoff: float, width: float = 2.0) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("offset", torch.linspace(0.0, cutoff, num_basis))

    def forward(self, distance: Tensor) -> Tensor:
        """Distances [E] (Å) to [E, num_basis]."""
        spread = self.width * (self.offset[1] - self.offset[0])
        return torch.exp(-0.5 * ((distance.unsqueeze(-1) - self.offset) / spread) ** 2)


def _sine_quotient(u: Tensor) -> Tensor:
    """sin(u) / u with all derivatives, also at u = 0."""
    small = u.abs() < SERIES_BELOW
    square = torch.where(small, u, torch.zeros_like(u)) ** 2
    series = 1 - square / 6 * (1 - square / 20 * (1 - square / 42 * (1 - square / 72)))
    away = torch.where(small, torch.ones_like(u), u)
    return torch.where(small, series, torch.sin(away) / away)


RADIAL_BASES: dict[str, type[ExponentialNormalBasis] | type[GaussianBasis] | type[BesselBasis]] = {
    "exponential_normal": ExponentialNormalBasis,
    "gaussian": GaussianBasis,
    "bessel": BesselBasis,
}
