"""Equiformer for MD17 written with e3nn: the yardstick for the speed of :mod:`denskit.models.equiformer`.

The same function as Equiformer with graph attention and non-linear messages (Liao & Smidt 2023, arXiv:2206.11990), with
the force encoding and the noise head of DeNS (Liao et al. 2024, arXiv:2403.09549), as an e3nn user writes it: spherical
harmonics on the edges, ``o3.TensorProduct`` per path, ``o3.Linear``.  Parameters carry the published names, so that
published weights load directly.  It must be a fair opponent: gathers are ``index_select``, sums are ``index_add``,
linear layers are ``o3.Linear`` (the published code multiplies by a tensor of ones), gates and attention weights
broadcast.  One thing that e3nn >= 0.5 does differently from the 0.4.4 of the published weights is undone without cost:
the sign of some Wigner 3j symbols (:data:`denskit_bench.baseline_layers.FLIPPED_3J`).

Letters: N atoms, B systems, E edges, D components of irreps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import e3nn
import torch
from e3nn import o3
from e3nn.math import normalize2mom
from e3nn.o3 import Irreps
from torch import Tensor, nn
from torch.nn import functional

from denskit.batch import Batch
from denskit_bench.baseline_layers import (
    DepthwiseProduct,
    EquivariantLayerNorm,
    ExponentialNormalBasis,
    Gate,
    PlainLinear,
    RadialProfile,
    SeparableProduct,
)

MAX_ATOM_TYPE = 64
AVERAGE_NODES = 18.03065905448718  # of QM9, which the published MD17 models use as constants
AVERAGE_DEGREE = 15.57930850982666
JitMode = Literal["eager", "script"]


@dataclass(frozen=True, kw_only=True)
class BaselineConfig:
    """Sizes of the network; irreps in e3nn's notation, all of even parity (the published MD17 models are SE(3))."""

    node: str  # embedding, pre-attention and block features
    feature: str  # output of the last block
    head: str  # one attention head
    feed_forward: str  # hidden features of the feed-forward networks
    l_max: int  # of the spherical harmonics on edges
    layers: int = 6
    heads: int = 4
    basis: int = 32
    radial: tuple[int, ...] = (64, 64)
    cutoff: float = 5.0  # Å
    dens: bool = True  # force encoding and noise head


def published_config(l_max: Literal[2, 3], dens: bool = True) -> BaselineConfig:
    """The MD17 models of the DeNS paper (appendix, hyper-parameters on MD17).

    Without DeNS the last block keeps scalars only, as published.
    """
    widths = {2: (4, 2, 1), 3: (4, 2, 2, 1)}[l_max]

    def irreps(factor: int, keep: int = l_max + 1) -> str:
        return "+".join(f"{factor * width}x{degree}e" for degree, width in enumerate(widths[:keep]))

    feature = irreps(128) if dens else irreps(128, keep=1)
    return BaselineConfig(
        node=irreps(32), feature=feature, head=irreps(8), feed_forward=irreps(96), l_max=l_max, dens=dens
    )


@contextmanager
def _building(mode: JitMode) -> Iterator[None]:
    """Build e3nn modules in a jit mode and with float64 constants (e3nn stores them in the default dtype)."""
    jit_before, dtype_before = e3nn.get_optimization_defaults()["jit_mode"], torch.get_default_dtype()
    e3nn.set_optimization_defaults(jit_mode=mode)
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        e3nn.set_optimization_defaults(jit_mode=jit_before)
        torch.set_default_dtype(dtype_before)


@dataclass(frozen=True)
class Edges:
    """What every layer needs of the graph."""

    source: Tensor  # [E]
    target: Tensor  # [E]
    harmonics: Tensor  # [E, (l_max + 1)^2]
    basis: Tensor  # [E, basis]


class GraphAttention(nn.Module):
    """Attention by a small network on messages, with non-linear messages (Equiformer, equations 4 to 6)."""

    def __init__(self, config: BaselineConfig, irreps: Irreps, out: Irreps) -> None:
        super().__init__()
        node, harmonics = Irreps(config.node), Irreps.spherical_harmonics(config.l_max, p=1)
        values = Irreps([(mul * config.heads, ir) for mul, ir in Irreps(config.head)])
        self.heads, self.value_sizes = config.heads, [mul_ir.dim for mul_ir in values]
        scalars = values.count("0e")
        self.merge_src = PlainLinear(irreps, node)
        self.merge_dst = PlainLinear(irreps, node, bias=False)
        self.sep_act = SeparableProduct(node, harmonics, node, [config.basis, *config.radial])
        self.sep_alpha = PlainLinear(self.sep_act.dtp.irreps_out, Irreps([(scalars, "0e")]))
        self.sep_value = SeparableProduct(node, harmonics, values, None)
        self.alpha_act = normalize2mom(_smooth_leaky_relu)
        self.alpha_dot = nn.Parameter(torch.empty(1, config.heads, scalars // config.heads))
        nn.init.xavier_uniform_(self.alpha_dot)
        self.proj = PlainLinear(values, out)

    def forward(self, x: Tensor, edges: Edges) -> Tensor:
        """Attend from every atom to its neighbours: features [N, D] to [N, D_out]."""
        message = self.merge_src(x).index_select(0, edges.source) + self.merge_dst(x).index_select(0, edges.target)
        message = self.sep_act.dtp(message, edges.harmonics, self.sep_act.dtp_rad(edges.basis))
        logits = self.alpha_act(self.sep_alpha(message)).reshape(len(message), self.heads, -1)
        alpha = _softmax((logits * self.alpha_dot).sum(-1), edges.target, len(x))
        value = self.sep_act.gate(self.sep_act.lin(message))
        value = self.sep_value.lin(self.sep_value.dtp(value, edges.harmonics))
        weighted = [
            (part.reshape(len(part), self.heads, -1) * alpha.unsqueeze(-1)).reshape(len(part), -1)
            for part in value.split(self.value_sizes, dim=-1)
        ]
        messages = torch.cat(weighted, dim=-1)
        return self.proj(messages.new_zeros(len(x), messages.shape[-1]).index_add(0, edges.target, messages))


def _smooth_leaky_relu(x: Tensor) -> Tensor:
    """Leaky ReLU of slope 0.2 with the kink smoothed: 0.6 x + 0.4 x (2 sigmoid(x) - 1)."""
    return x * (0.2 + 0.8 * torch.sigmoid(x))


def _softmax(logits: Tensor, target: Tensor, num_atoms: int) -> Tensor:
    """Softmax [E, heads] over the edges that end in the same atom."""
    index = target.unsqueeze(-1).expand_as(logits)
    highest = logits.new_full((num_atoms, logits.shape[-1]), -math.inf)
    highest = highest.scatter_reduce(0, index, logits.detach(), "amax")
    weights = (logits - highest.index_select(0, target)).exp()
    total = weights.new_zeros(highest.shape).index_add(0, target, weights)
    return weights / (total.index_select(0, target) + 1e-16)


class FeedForward(nn.Module):
    """Two equivariant linear layers with a gate between them."""

    def __init__(self, irreps: Irreps, hidden: Irreps, out: Irreps) -> None:
        super().__init__()
        gate = Gate(hidden)
        self.fctp_1 = PlainLinear(irreps, gate.irreps_in)
        self.fctp_2 = PlainLinear(hidden, out)
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        """Features [N, D] to [N, D_out]."""
        return self.fctp_2(self.gate(self.fctp_1(x)))


class Block(nn.Module):
    """Pre-norm attention and feed-forward network, each added to its input."""

    def __init__(self, config: BaselineConfig, out: Irreps) -> None:
        super().__init__()
        node = Irreps(config.node)
        self.norm_1 = EquivariantLayerNorm(node)
        self.ga = GraphAttention(config, node, node)
        self.norm_2 = EquivariantLayerNorm(node)
        self.ffn = FeedForward(node, Irreps(config.feed_forward), out)
        self.ffn_shortcut = PlainLinear(node, out) if out != node else None

    def forward(self, x: Tensor, edges: Edges) -> Tensor:
        """Features [N, D] to [N, D_out]."""
        x = x + self.ga(self.norm_1(x), edges)
        shortcut = x if self.ffn_shortcut is None else self.ffn_shortcut(x)
        return shortcut + self.ffn(self.norm_2(x))


class AtomEmbedding(nn.Module):
    """A row of weights per element; zero for degrees above 0."""

    def __init__(self, node: Irreps) -> None:
        super().__init__()
        self.atom_type_lin = PlainLinear(Irreps([(MAX_ATOM_TYPE, "0e")]), node)

    def forward(self, atomic_numbers: Tensor, dtype: torch.dtype) -> Tensor:
        """Features [N, D] of atomic numbers [N] (1 to 63)."""
        return self.atom_type_lin(functional.one_hot(atomic_numbers, MAX_ATOM_TYPE).to(dtype))


class EdgeDegreeEmbedding(nn.Module):
    """Each atom's surroundings: a constant feature times the edge harmonics, summed over edges."""

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__()
        node = Irreps(config.node)
        self.exp = PlainLinear(Irreps("1x0e"), node)
        self.dw = DepthwiseProduct(node, Irreps.spherical_harmonics(config.l_max, p=1), internal_weights=False)
        self.rad = RadialProfile([config.basis, *config.radial, self.dw.tp.weight_numel])
        self.proj = PlainLinear(self.dw.irreps_out, node)

    def forward(self, edges: Edges, num_atoms: int) -> Tensor:
        """Features [N, D], divided by the root of the average degree."""
        constant = self.exp(edges.basis.new_ones(1, 1)).expand(len(edges.basis), -1)
        messages = self.proj(self.dw(constant, edges.harmonics, self.rad(edges.basis)))
        total = messages.new_zeros(num_atoms, messages.shape[-1]).index_add(0, edges.target, messages)
        return total / math.sqrt(AVERAGE_DEGREE)


class EquiformerE3NN(nn.Module):
    """Published Equiformer for MD17, with or without DeNS.

    Built in e3nn's jit mode ``jit``: TorchScript removes the unused outer products that e3nn's generated code leaves.
    """

    def __init__(self, config: BaselineConfig, *, dtype: torch.dtype = torch.float32, jit: JitMode = "script") -> None:
        super().__init__()
        node, feature = Irreps(config.node), Irreps(config.feature)
        self.config = config
        self.harmonics = Irreps.spherical_harmonics(config.l_max, p=1)
        with _building(jit):
            self.atom_embed = AtomEmbedding(node)
            self.rbf = ExponentialNormalBasis(config.basis, config.cutoff)
            self.edge_deg_embed = EdgeDegreeEmbedding(config)
            outputs = [node] * (config.layers - 1) + [feature]
            self.blocks = nn.ModuleList(Block(config, out) for out in outputs)
            self.norm = EquivariantLayerNorm(feature)
            scalars = Irreps([(feature.count("0e"), "0e")])
            silu = normalize2mom(functional.silu)
            head = nn.Sequential(PlainLinear(feature, scalars), silu, PlainLinear(scalars, Irreps("1x0e")))
            self.energy_head = head
            if config.dens:
                self.force_embed = PlainLinear(self.harmonics, node)
                self.denoising_pos_head = GraphAttention(config, feature, Irreps("1x1e"))
        self.to(dtype)

    def forward(
        self, batch: Batch, force_input: Tensor | None = None, *, noise: bool = False, create_graph: bool = False
    ) -> dict[str, Tensor]:
        """Energy [B], forces [N, 3] = -dE/dr and, with ``noise``, the output [N, 3] of the noise head.

        ``force_input`` [N, 3] is encoded as published (zero on atoms that were not corrupted); the bias of the
        encoding is added without it too.  ``create_graph`` keeps the graph of the forces for a training step.
        """
        positions = batch.positions.detach().requires_grad_()
        source, target = batch.built_edges.index
        vectors = positions.index_select(0, source) - positions.index_select(0, target)
        harmonics = o3.spherical_harmonics(self.harmonics, vectors, normalize=True, normalization="component")
        edges = Edges(source, target, harmonics, self.rbf(vectors.norm(dim=1)))
        x = self.atom_embed(batch.atomic_numbers, positions.dtype) + self.edge_deg_embed(edges, len(positions))
        if self.config.dens:
            x = x + self._encode_forces(positions.new_zeros(1, 3) if force_input is None else force_input)
        for block in self.blocks:
            x = block(x, edges)
        x = self.norm(x)
        atoms = self.energy_head(x).squeeze(-1) / math.sqrt(AVERAGE_NODES)
        energy = atoms.new_zeros(batch.num_systems).index_add(0, batch.system_index, atoms)
        (gradient,) = torch.autograd.grad(
            energy.sum(), positions, create_graph=create_graph, retain_graph=noise or create_graph
        )
        out = {"energy": energy, "forces": -gradient}
        if noise:
            out["noise"] = self.denoising_pos_head(x, edges)
        return out

    def _encode_forces(self, forces: Tensor) -> Tensor:
        harmonics = o3.spherical_harmonics(self.harmonics, forces, normalize=True, normalization="component")
        return self.force_embed(harmonics * (forces.norm(dim=1, keepdim=True) / math.sqrt(3.0)))

    def published_state(self) -> dict[str, Tensor]:
        """The weights under their published names, without e3nn's constants."""
        return {name: value for name, value in self.state_dict().items() if value.numel() and _is_weight(name)}

    def load_published(self, weights: dict[str, Tensor]) -> None:
        """Load a published state dict.

        Raises:
            ValueError: names differ from this model's; empty tensors and e3nn's output masks do not count.
        """
        renamed = {
            (f"energy_{name}" if name.startswith("head.") else name): value
            for name, value in weights.items()
            if value.numel() and _is_weight(name)
        }
        own = self.published_state().keys()
        if own != renamed.keys():
            raise ValueError(
                f"published weights do not fit: missing {sorted(own - renamed.keys())[:5]}, "
                f"unexpected {sorted(renamed.keys() - own)[:5]}; check degree, layers and DeNS of the configuration"
            )
        self.load_state_dict(renamed, strict=False)


def _is_weight(name: str) -> bool:
    return "_compiled_" not in name and not name.endswith("output_mask")
