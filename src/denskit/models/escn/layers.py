"""The layers of eSCN: edge embedding, SO(2) convolution of messages, update on the sphere, sampled heads."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denskit.geometry.harmonics import spherical_harmonics
from denskit.models.base import Features
from denskit.models.escn.config import ESCNConfig
from denskit.models.graph import EdgeGraph
from denskit.nn.s2_activation import cast_grid, s2_silu
from denskit.nn.so3_linear import initialise

SMALL = 0.001  # published: bound of initial element embeddings and force encodings, and factor of energies


@dataclass(frozen=True, kw_only=True)
class ESCNGraph(EdgeGraph):
    """Edges with packed rotations and the elements at both ends."""

    rotation: Tensor  # [E, K, (l_max + 1)^2], packed node features to order-major edge features
    source_element: Tensor  # [E]
    target_element: Tensor  # [E]


@dataclass(frozen=True, kw_only=True)
class ESCNFeatures(Features):
    """Features with their values at points of the sphere, the input of the heads."""

    samples: Tensor  # [N, P, C]
    points: Tensor  # [P, 3]


class EdgeEmbedding(nn.Module):
    """Invariant features of an edge from its length and the elements at its ends (Passaro and Zitnick 2023)."""

    def __init__(self, config: ESCNConfig) -> None:
        super().__init__()
        self.distance = nn.Linear(config.num_basis, config.edge_channels)
        self.source = nn.Embedding(config.num_elements, config.edge_channels)
        self.target = nn.Embedding(config.num_elements, config.edge_channels)
        self.hidden = nn.Linear(config.edge_channels, config.edge_channels)
        for embedding in (self.source, self.target):
            nn.init.uniform_(embedding.weight, -SMALL, SMALL)

    def forward(self, graph: ESCNGraph) -> Tensor:
        """Embeddings [E, C_edge]."""
        elements = self.source(graph.source_element) + self.target(graph.target_element)
        embedded = F.silu(elements + self.distance(graph.basis))
        return F.silu(self.hidden(embedded))


class MessageConvolution(nn.Module):
    """eSCN's SO(2) convolution: for each order a linear layer, a factor of the edge on its outputs, a linear layer.

    Source and target have their own layers, whose outputs are added.  For m > 0 the real layers act on +m and -m alike
    and the imaginary ones like the unit i: out(+m) = R(+m) - I(-m), out(-m) = R(-m) + I(+m) (Passaro and Zitnick 2023,
    section 3.2).  Hidden features of one order are ordered as (source, target) x (real, imaginary) x H.
    """

    def __init__(self, config: ESCNConfig) -> None:
        super().__init__()
        self.l_max, self.m_max = config.l_max, config.m_max
        self.channels, self.hidden = config.channels, config.hidden_channels
        self.factors = nn.Linear(config.edge_channels, 2 * (1 + 2 * config.m_max) * config.hidden_channels)
        self.inner = nn.ParameterList()  # per order [2, parts * H, width], for source and target
        self.outer = nn.ParameterList()  # per order [width, parts * 2 * H], real then imaginary, each source and target
        for m in range(config.m_max + 1):
            width, parts = (config.l_max + 1 - m) * config.channels, 1 if m == 0 else 2
            inner = nn.Parameter(torch.empty(2, parts * config.hidden_channels, width))
            outer = nn.Parameter(torch.empty(width, parts * 2 * config.hidden_channels))
            initialise(inner, width, "uniform")
            initialise(outer, config.hidden_channels, "uniform")
            self.inner.append(inner)
            self.outer.append(outer)

    def forward(self, source: Tensor, target: Tensor, embedding: Tensor) -> Tensor:
        """Order-major features [E, K, C] of the two ends, in the edge's frame, to messages [E, K, C]."""
        edges, channels = source.shape[0], self.channels
        factors = F.silu(self.factors(embedding))
        signs = [1 if m == 0 else 2 for m in range(self.m_max + 1)]
        degrees = [self.l_max + 1 - m for m in range(self.m_max + 1)]
        rows = [sign * count for sign, count in zip(signs, degrees, strict=True)]
        # split instead of slices: the backward of a slice allocates the whole tensor
        orders = zip(source.split(rows, 1), target.split(rows, 1), strict=True)
        parts = factors.split([2 * sign * self.hidden for sign in signs], -1)
        out = []
        for m, (ends, factor) in enumerate(zip(orders, parts, strict=True)):
            flat = [end.reshape(edges, signs[m], degrees[m] * channels) for end in ends]
            hidden = torch.cat([F.linear(end, weight) for end, weight in zip(flat, self.inner[m], strict=True)], -1)
            hidden = hidden * factor[:, None]
            if m > 0:
                hidden = _real_and_rotated(hidden, self.hidden)
            out.append(F.linear(hidden, self.outer[m]).reshape(edges, rows[m], channels))
        return torch.cat(out, 1)


def _real_and_rotated(hidden: Tensor, size: int) -> Tensor:
    """Hidden features [E, 2, 4H] of rows (+m, -m), imaginary halves times i, in the order of the outer layer."""
    real, imaginary = hidden.unflatten(-1, (2, 2, size)).unbind(-2)  # [E, 2, 2, H], the third axis source and target
    rotated = torch.stack((-imaginary[:, 1], imaginary[:, 0]), 1)
    return torch.cat((real.flatten(2), rotated.flatten(2)), -1)


class SphereUpdate(nn.Module):
    """Linear, SiLU, linear, SiLU, linear at each point of a grid, on an atom's features and its summed messages.

    The outer two linear layers have no bias and commute with the grid matrices, so they act on the coefficients, which
    are fewer than the points.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Linear(2 * channels, channels, bias=False)
        self.second = nn.Linear(channels, channels, bias=False)
        self.third = nn.Linear(channels, channels, bias=False)

    def forward(self, x: Tensor, to_grid: Tensor, from_grid: Tensor) -> Tensor:
        """Features and messages side by side, [N, (l_max + 1)^2, 2C], to an update [N, (l_max + 1)^2, C]."""
        updated: Tensor = self.third(s2_silu(self.first(x), to_grid, from_grid, self.second.weight))
        return updated


class Layer(nn.Module):
    """Messages along the edges, their sum at the atoms, and the update of the atoms; the caller adds the residual."""

    def __init__(self, config: ESCNConfig) -> None:
        super().__init__()
        self.l_max, self.m_max = config.l_max, config.m_max
        self.edge_embedding = EdgeEmbedding(config)
        self.convolution = MessageConvolution(config)
        self.update = SphereUpdate(config.channels)

    def forward(self, x: Tensor, graph: ESCNGraph) -> Tensor:
        """Packed features [N, (l_max + 1)^2, C] to the update of the graph's targets, which come first among atoms."""
        source, target = graph.rotation @ x[graph.source], graph.rotation @ x[graph.target]
        messages = self.convolution(source, target, self.edge_embedding(graph))
        messages = s2_silu(messages, *_grid(self.l_max, self.m_max, True, messages))
        if graph.weight is not None:
            messages = messages * graph.weight[:, None, None]
        summed = graph.sum_over_edges((graph.rotation.mT @ messages).to(x.dtype))
        both = torch.cat((x[: graph.num_atoms], summed), -1)
        updated: Tensor = self.update(both, *_grid(self.l_max, self.l_max, False, x))
        return updated


def _grid(l_max: int, m_max: int, by_order: bool, like: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices to the published grid and back, for messages (by order) or for atoms."""
    resolution = (2 * (l_max + 1), 2 * m_max + (3 if m_max == l_max else 1))
    return cast_grid(l_max, m_max, resolution, "integral", by_order, like.dtype, like.device)


def sphere_points(count: int) -> Tensor:
    """Points [count, 3] (float64) on a golden spiral, each times its quadrature weight.

    As published for SCN and eSCN: the weight of a point p is 1 / sum exp(-|p - q|^2 / 0.15) over all points q,
    normalised to mean 1.  The lengths of the points are therefore only near 1.
    """
    index = torch.arange(count, dtype=torch.float64)
    longitude = 2 * pi * index / ((1 + 5**0.5) / 2)
    z = 1 - 2 * (index + 0.5) / count
    across = (1 - z**2).sqrt()
    points = torch.stack((across * longitude.cos(), across * longitude.sin(), z), 1)
    density = torch.exp(-torch.cdist(points, points).square() / 0.15).sum(1)
    weights = 1 / density
    return points * (weights / weights.mean())[:, None]


def sphere_harmonics(points: Tensor, l_max: int) -> Tensor:
    """Solid harmonics |p|^l Y_l(p) [P, (l_max + 1)^2] of points [P, 3], Y of unit norm on the sphere."""
    length = points.norm(dim=1, keepdim=True)
    values = spherical_harmonics(points / length, l_max)
    return torch.cat([y * length**l for l, y in enumerate(values)], 1) / (4 * pi) ** 0.5


class SampledHead(nn.Module):
    """An MLP at each sampled point of the sphere: its mean is an energy, its mean times the points a vector.

    The points are few and fixed in space: vectors rotate with the structure up to a sampling error, and the force on an
    atom without neighbours is small but not zero (Passaro and Zitnick 2023, section 3.3).
    """

    def __init__(self, config: ESCNConfig, vector: bool) -> None:
        super().__init__()
        channels, self.vector = config.channels, vector
        self.first = nn.Linear(channels, channels)
        self.second = nn.Linear(channels, channels)
        self.third = nn.Linear(channels, 1, bias=False)

    def forward(self, features: Features) -> Tensor:
        """Energies [N, 1] or vectors [N, 3]."""
        assert isinstance(features, ESCNFeatures)
        with torch.autocast(features.samples.device.type, enabled=False):  # means over the sphere cancel almost to 0
            samples = features.samples.to(self.first.weight.dtype)
            values = self.third(F.silu(self.second(F.silu(self.first(samples)))))[:, :, 0]  # [N, P]
            if self.vector:
                return values @ features.points / len(features.points)
            return values.mean(1, keepdim=True) * SMALL
