"""Equivariant layers of the e3nn baseline: linear, depthwise tensor product, gate, layer norm, radial functions.

Irreps are all of even parity and sorted by degree; features [..., D] are flat in e3nn's layout (channel, then order m).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from e3nn import o3
from e3nn.math import normalize2mom
from e3nn.o3 import Irreps
from e3nn.o3._linear import _codegen_linear
from torch import Tensor, nn
from torch.nn import functional

FLIPPED_3J = frozenset({(1, 2, 2), (2, 1, 2), (2, 2, 1), (1, 3, 3), (3, 1, 3), (3, 3, 1)})


class PlainLinear(nn.Module):
    """``o3.Linear`` without path normalisation, with a bias on scalars: the published ``LinearRS``."""

    def __init__(self, irreps_in: Irreps, irreps_out: Irreps, bias: bool = True) -> None:
        super().__init__()
        irreps_in, irreps_out = irreps_in.simplify(), irreps_out.simplify()
        self.tp = o3.Linear(irreps_in, irreps_out)
        instructions = [instruction._replace(path_weight=1.0) for instruction in self.tp.instructions]
        graph, _, _ = _codegen_linear(irreps_in, irreps_out, instructions, shared_weights=True, optimize_einsums=True)
        self.tp._codegen_register({"_compiled_main": graph})
        with torch.no_grad():
            for instruction, view in zip(instructions, self.tp.weight_views(), strict=True):
                view /= math.sqrt(instruction.path_shape[0])
        self.scalars = irreps_out[0].dim if irreps_out[0].ir.l == 0 else 0
        self.bias = nn.ParameterList([nn.Parameter(torch.zeros(self.scalars))] if bias and self.scalars else [])

    def forward(self, x: Tensor) -> Tensor:
        """Map features [..., D_in] to [..., D_out]."""
        out = self.tp(x)
        if len(self.bias):
            out.narrow(-1, 0, self.scalars).add_(self.bias[0])
        return out


class DepthwiseProduct(nn.Module):
    """Every path l1 x l2 -> l3 <= l_max of node features with edge harmonics, channel by channel ('uvu')."""

    def __init__(self, irreps: Irreps, harmonics: Irreps, internal_weights: bool) -> None:
        super().__init__()
        paths = [
            (i, j, mul, ir_out)
            for i, (mul, ir) in enumerate(irreps)
            for j, (_, ir_edge) in enumerate(harmonics)
            for ir_out in ir * ir_edge
            if ir_out.l <= harmonics.lmax
        ]
        order = sorted(range(len(paths)), key=lambda path: (paths[path][3].l, path))
        outputs = Irreps([(paths[path][2], paths[path][3]) for path in order])
        instructions = [
            (i, j, position, "uvu", True) for (i, j, _, _), position in zip(paths, _inverse(order), strict=True)
        ]
        self.tp = o3.TensorProduct(
            irreps, harmonics, outputs, instructions,
            internal_weights=internal_weights, shared_weights=internal_weights, path_normalization="none",
        )  # fmt: skip
        _restore_3j_signs(self.tp)
        self.irreps_out = outputs.simplify()

    def forward(self, x: Tensor, harmonics: Tensor, weight: Tensor | None = None) -> Tensor:
        """Features [E, D] times harmonics [E, (l_max + 1)^2], path weights [E, weights] unless they are internal."""
        return self.tp(x, harmonics, weight)


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _restore_3j_signs(product: o3.TensorProduct) -> None:
    """Give the compiled product the signs that e3nn 0.4.4 used, by negating its constants."""
    compiled = product._compiled_main_left_right
    for name, constant in list(compiled.named_buffers()):
        if tuple(int(l) for l in name.removeprefix("_w3j_").split("_")) in FLIPPED_3J:
            setattr(compiled, name, -constant)


class Gate(nn.Module):
    """SiLU on scalars, sigmoid gates on the rest, both with e3nn's second-moment constants (published ``Gate``)."""

    def __init__(self, irreps: Irreps) -> None:
        super().__init__()
        scalars = [(mul, ir) for mul, ir in irreps if ir.l == 0]
        self.gated = [(mul, ir) for mul, ir in irreps if ir.l > 0]
        gates = sum(mul for mul, _ in self.gated)
        self.scalars = sum(mul for mul, _ in scalars)
        self.irreps_in = Irreps([(self.scalars + gates, "0e"), *self.gated])
        self.sizes = [self.scalars, gates, *(mul * ir.dim for mul, ir in self.gated)]
        self.silu = normalize2mom(functional.silu)
        self.sigmoid = normalize2mom(torch.sigmoid)

    def forward(self, x: Tensor) -> Tensor:
        """Gate features [N, D_in] of ``irreps_in``."""
        scalars, gates, *gated = x.split(self.sizes, dim=-1)
        gate_parts = self.sigmoid(gates).split([mul for mul, _ in self.gated], dim=-1)
        out = [self.silu(scalars)]
        for (mul, ir), part, gate in zip(self.gated, gated, gate_parts, strict=True):
            out.append((part.reshape(-1, mul, ir.dim) * gate.unsqueeze(-1)).reshape(len(x), -1))
        return torch.cat(out, dim=-1)


class EquivariantLayerNorm(nn.Module):
    """Layer norm over the channels of each degree; only scalars are centred and shifted (eps 1e-5)."""

    def __init__(self, irreps: Irreps, eps: float = 1e-5) -> None:
        super().__init__()
        self.irreps, self.eps = irreps, eps
        self.affine_weight = nn.Parameter(torch.ones(irreps.num_irreps))
        self.affine_bias = nn.Parameter(torch.zeros(irreps.count("0e")))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise features [N, D]."""
        out = []
        parts = x.split([mul_ir.dim for mul_ir in self.irreps], dim=-1)
        weights = self.affine_weight.split([mul for mul, _ in self.irreps])
        for (mul, ir), part, weight in zip(self.irreps, parts, weights, strict=True):
            field = part.reshape(-1, mul, ir.dim)
            if ir.l == 0:
                field = field - field.mean(dim=1, keepdim=True)
            scale = (field.square().mean(dim=(1, 2)).unsqueeze(-1) + self.eps).rsqrt() * weight
            field = field * scale.unsqueeze(-1)
            if ir.l == 0:
                field = field + self.affine_bias.unsqueeze(-1)
            out.append(field.reshape(len(x), -1))
        return torch.cat(out, dim=-1)


class RadialProfile(nn.Module):
    """Weights of every path from the radial basis: linear, layer norm, SiLU, twice; linear with an offset."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes[:-1]):
            layers += [nn.Linear(before, after), nn.LayerNorm(after), nn.SiLU()]
        self.net = nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1], bias=False))
        self.offset = nn.Parameter(torch.empty(sizes[-1]).uniform_(-1, 1) / math.sqrt(sizes[-2]))

    def forward(self, basis: Tensor) -> Tensor:
        """Path weights [E, sizes[-1]] from the basis [E, sizes[0]]."""
        last = self.net[-1]
        assert isinstance(last, nn.Linear)
        return functional.linear(self.net[:-1](basis), last.weight, self.offset)


class SeparableProduct(nn.Module):
    """Depthwise product followed by a linear layer, with a radial profile and a gate where the published module has."""

    def __init__(self, irreps: Irreps, harmonics: Irreps, out: Irreps, radial: Sequence[int] | None) -> None:
        super().__init__()
        self.dtp = DepthwiseProduct(irreps, harmonics, internal_weights=radial is None)
        if radial is None:
            self.lin = PlainLinear(self.dtp.irreps_out, out)
        else:
            self.dtp_rad = RadialProfile([*radial, self.dtp.tp.weight_numel])
            self.gate = Gate(out)
            self.lin = PlainLinear(self.dtp.irreps_out, self.gate.irreps_in)


class ExponentialNormalBasis(nn.Module):
    """Exponential-normal radial basis under a cosine cutoff (PhysNet, arXiv:1902.08408)."""

    means: Tensor
    betas: Tensor

    def __init__(self, size: int, cutoff: float) -> None:
        super().__init__()
        start = math.exp(-cutoff)
        self.cutoff = cutoff
        self.register_buffer("means", torch.linspace(start, 1.0, size))
        self.register_buffer("betas", torch.full((size,), (2 / size * (1 - start)) ** -2))

    def forward(self, distances: Tensor) -> Tensor:
        """Basis [E, size] of distances [E] (Å); zero beyond the cutoff."""
        r = distances.unsqueeze(-1)
        envelope = 0.5 * (torch.cos(r * (math.pi / self.cutoff)) + 1.0) * (r < self.cutoff)
        return envelope * torch.exp(-self.betas * (torch.exp(-r * (5.0 / self.cutoff)) - self.means).square())
