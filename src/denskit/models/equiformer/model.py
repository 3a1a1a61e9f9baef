"""Equiformer (Liao and Smidt, ICLR 2023), evaluated in the edge frame.

The function is the published one for molecular dynamics data (SE(3) features, equivariant graph attention with an MLP
for the attention logits and non-linear messages), its dot-product and linear-message forms, and the two variants of
the DeNS paper: without attention, and without attention and layer normalisation (close to SEGNN).  What differs is how
it is computed: see :mod:`denskit.geometry.so2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from denskit.batch import Batch
from denskit.geometry.edge_frame import EdgeFrames, edge_frames
from denskit.geometry.edge_pairs import edge_pairs, pair_of_edge
from denskit.models.base import Backbone, Features
from denskit.models.edge_chunks import at_edges, at_targets, groups_of
from denskit.models.equiformer.config import EquiformerConfig
from denskit.models.equiformer.graph import EquiformerGraph
from denskit.models.equiformer.kernels import choose_kernels, fused_problem
from denskit.models.equiformer.layers import ATTENTIONS, EdgeDegreeEmbedding, FeedForward
from denskit.models.equiformer.norm import EquivariantLayerNorm, MergedLayerNorm, NoNorm
from denskit.models.execution import DEFAULT, Execution
from denskit.models.recompute import EdgeGroup
from denskit.nn.activation import scaled_silu
from denskit.nn.cutoff import PolynomialEnvelope
from denskit.nn.dropout import EquivariantDropout, StochasticDepth
from denskit.nn.force_encoding import ForceEncoding
from denskit.nn.radial import RADIAL_BASES
from denskit.nn.so3_linear import Initialisation, SO3Linear


@dataclass(frozen=True, kw_only=True)
class EquiformerFeatures(Features):
    """Features with Equiformer's graph, which the vector heads attend over."""

    graph: EquiformerGraph


class Block(nn.Module):
    """Pre-norm transformer block: attention, then feed-forward, each with a residual."""

    def __init__(self, config: EquiformerConfig, channels_out: Sequence[int], last: bool) -> None:
        super().__init__()
        channels = config.channels
        self.norm_1 = _norm(config, channels)
        self.attention = _attention(config, channels, channels)
        self.norm_2 = _norm(config, channels, last)
        self.feed_forward = FeedForward(
            channels, config.ffn_channels, channels_out, config.initialisation, config.projection_dropout
        )
        changes = tuple(channels_out) != tuple(channels)
        self.shortcut = SO3Linear(channels, channels_out, init=config.initialisation) if changes else None
        self.stochastic_depth = StochasticDepth(config.stochastic_depth)

    def forward(self, x: Sequence[Tensor], graph: EquiformerGraph, batch: Batch, l_out: int) -> list[Tensor]:
        """x[l] [N, 2l+1, C_l] for all degrees to out[l] for l <= l_out."""
        depth = (batch.system_index, batch.num_systems)
        update = self.stochastic_depth(attend(self.attention, self.norm_1(x), graph, range(l_out + 1)), *depth)
        x = [a + b for a, b in zip(x, update, strict=False)]
        update = self.stochastic_depth(self.feed_forward(self.norm_2(x)), *depth)
        residual = x if self.shortcut is None else self.shortcut(x)
        return [a + b for a, b in zip(residual, update, strict=False)]


def attend(attention: nn.Module, x: Sequence[Tensor], graph: EquiformerGraph, degrees: Sequence[int]) -> list[Tensor]:
    """``attention(x, graph, degrees)``, in groups where the graph has them."""
    return at_targets(attention, lambda part, edges: attention(part, edges, degrees), x, graph, len(degrees))


def _norm(config: EquiformerConfig, channels: Sequence[int], last: bool = False) -> nn.Module:
    """The norm of node features; after the last attention energies must not depend on higher degrees."""
    if config.norm == "merged":
        return MergedLayerNorm(channels, scalars_apart=last)
    return EquivariantLayerNorm(channels) if config.norm == "layer" else NoNorm()


def _attention(
    config: EquiformerConfig, channels_in: Sequence[int], channels_out: Sequence[int], kind: str | None = None
) -> nn.Module:
    return ATTENTIONS[kind or config.attention, config.messages](config, tuple(channels_in), tuple(channels_out))


class EnergyHead(nn.Module):
    """Linear, SiLU, linear on the scalars: [N, 1] energies of atoms."""

    def __init__(self, num_channels: int, init: Initialisation, average_atoms: float) -> None:
        super().__init__()
        self.hidden = SO3Linear([num_channels], [num_channels], init=init)
        self.output = SO3Linear([num_channels], [1], init=init)
        self.scale = average_atoms**-0.5

    def forward(self, features: EquiformerFeatures) -> Tensor:
        """Scaled energies [N, 1] of the atoms."""
        (hidden,) = self.hidden(features.nodes[:1])
        (energy,) = self.output([scaled_silu(hidden)])
        return energy[:, 0] * self.scale


class VectorHead(nn.Module):
    """One more equivariant graph attention, to a single vector an atom: [N, 3] (the paper's noise head).

    It attends also in the variant without attention: the paper gives all variants "an additional block of equivariant
    graph attention for noise prediction".
    """

    def __init__(self, config: EquiformerConfig) -> None:
        super().__init__()
        kind = "mlp" if config.attention == "none" else config.attention
        self.attention = _attention(config, config.feature_channels, (0, 1), kind)

    def forward(self, features: EquiformerFeatures) -> Tensor:
        """Vectors [N, 3]."""
        (vector,) = attend(self.attention, features.nodes, features.graph, (1,))
        return vector[:, :, 0]


class Equiformer(Backbone):
    """Equiformer as a backbone: node features from a batch, with DeNS's force encoding when a head asks for noise."""

    symmetry = "SO(3)"
    gauge_exact = True
    config: EquiformerConfig

    def __init__(self, config: EquiformerConfig, heads: dict[str, str], force_scale: float) -> None:
        super().__init__(config)
        if config.average_degree is None or config.average_atoms is None:
            raise ValueError("average_degree and average_atoms are measured when training starts; give numbers here")
        channels, init = config.channels, config.initialisation
        self.smooth = config.envelope and config.max_neighbors is None
        # without norms in the blocks the final one remains; forces by gradient see only its scalars
        self.symmetric_sites = config.norm == "merged" or (config.norm == "none" and config.forces == "gradient")
        self.atom_embedding = nn.Parameter(torch.randn(config.num_elements, channels[0]))
        self.atom_bias = nn.Parameter(torch.zeros(channels[0]))
        self.basis = RADIAL_BASES[config.radial_basis](config.num_basis, config.cutoff)
        self.envelope = PolynomialEnvelope(config.cutoff) if config.envelope else None
        self.edge_degree = EdgeDegreeEmbedding(config)
        self.force_encoding = ForceEncoding(channels, force_scale, init) if "noise" in heads else None
        # degrees above 0 survive the last block only where a head reads them
        keeps_vectors = any(irreps != "0" for irreps in heads.values())
        self.feature_channels = config.feature_channels if keeps_vectors else config.feature_channels[:1]
        outputs = [channels] * (config.num_layers - 1) + [self.feature_channels]
        self.blocks = nn.ModuleList(
            Block(config, out, last=number == config.num_layers) for number, out in enumerate(outputs, start=1)
        )
        # the published variant without layer norm keeps the final one
        final = config.model_copy(update={"norm": "layer"}) if config.norm == "none" else config
        self.norm = _norm(final, self.feature_channels, last=True)
        self.output_dropout = EquivariantDropout(config.output_dropout)

    @classmethod
    def kernels_problem(cls, device_type: str) -> str | None:
        """Why the fused kernels cannot run on a kind of device; None where they can."""
        return fused_problem(device_type)

    def choose_kernels(self, execution: Execution, device: torch.device) -> str:
        """The kernels to use; see :func:`denskit.models.equiformer.kernels.choose_kernels`."""
        return choose_kernels(execution.kernels, device)

    def make_head(self, irreps: str) -> nn.Module:
        """A head on the features: "0" energies of atoms, "1" a vector an atom."""
        if irreps == "0":
            assert self.config.average_atoms is not None, "checked by __init__"
            return EnergyHead(self.feature_channels[0], self.config.initialisation, self.config.average_atoms)
        if irreps == "1":
            return VectorHead(self.config)
        raise ValueError(f"Equiformer has heads '0' and '1', not '{irreps}'")

    def forward(
        self,
        batch: Batch,
        force_input: Tensor | None = None,
        frames: EdgeFrames | None = None,
        l_out: int | None = None,
        execution: Execution = DEFAULT,
    ) -> EquiformerFeatures:
        """Features of the atoms of a batch whose neighbours are built.

        Args:
            batch: with edges.
            force_input: [N, 3] eV/Å, forces of corrupted atoms and zero elsewhere; None at inference.
            frames: edge frames to use instead of our own (tests).
            l_out: the highest degree wanted; default all that there are.
            execution: how to compute.
        """
        graph = self._graph(batch, frames, execution)
        scalars = self.atom_embedding[batch.atomic_numbers] + self.atom_bias
        x = at_targets(self.edge_degree, lambda _, part: self.edge_degree(part), [], graph, self.config.l_max + 1)
        x[0] = x[0] + scalars[:, None]
        if force_input is not None:
            assert self.force_encoding is not None, "this model has no noise head, so no force encoding"
            x = [a + b for a, b in zip(x, self.force_encoding(force_input), strict=True)]
        top = len(self.feature_channels) - 1 if l_out is None else l_out
        for block in self.blocks[:-1]:
            x = self.run_block(block, x, graph, batch, self.config.l_max)
        x = self.run_block(self.blocks[-1], x, graph, batch, top)
        return EquiformerFeatures(nodes=self.output_dropout(self.norm(x)), graph=graph, batch=batch)

    def _graph(self, batch: Batch, frames: EdgeFrames | None, execution: Execution) -> EquiformerGraph:
        groups = groups_of(batch, execution.edge_chunk)
        pairs = None if groups else edge_pairs(batch)
        if groups and frames is None:
            frames, basis, weight = self._edges_in_groups(batch, groups)
        else:
            frames = frames or self.frames_of(batch, self.config.l_max)
            basis = self.basis(frames.length if pairs is None else frames.length.index_select(0, pairs[:, 0]))
            weight = self.edge_weight(batch, frames.length, self.envelope)
        source, target = batch.built_edges.index
        return EquiformerGraph(
            frames=frames,
            basis=basis,
            source=source,
            target=target,
            weight=weight,
            enveloped=self.envelope is not None,
            num_atoms=batch.num_atoms,
            execution=execution,
            groups=groups,
            pairs=pairs,
            pair=None if pairs is None else pair_of_edge(pairs),
        )

    def _edges_in_groups(self, batch: Batch, groups: Sequence[EdgeGroup]) -> tuple[EdgeFrames, Tensor, Tensor | None]:
        """Frames, radial basis and weights of the edges, which keep a few hundred numbers an edge less."""

        def function(_: EdgeGroup, vectors: Tensor) -> list[Tensor]:
            with torch.autocast(vectors.device.type, enabled=False):
                frames = edge_frames(vectors, self.config.l_max)
            return [frames.length, frames.direction, self.basis(frames.length), *frames.wigner]

        count = 3 + self.config.l_max + 1
        length, direction, basis, *wigner = at_edges(self.basis, function, self.edge_vectors(batch), groups, count)
        frames = EdgeFrames(length=length, direction=direction, wigner=tuple(wigner))
        return frames, basis, self.edge_weight(batch, length, self.envelope)
