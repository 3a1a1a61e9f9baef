"""Equiformer (Liao and Smidt, ICLR 2023), evaluated in the edge frame.

The function is the published one for molecular dynamics data: SE(3) features (with ``parity``: E(3)), equivariant graph
attention with MLP logits and non-linear messages; also its dot-product and linear-message forms, and the two variants
of the DeNS paper without attention, with and without layer normalisation (the latter is close to SEGNN).  Tensor
products are computed as SO(2) contractions: see :mod:`denskit.geometry.so2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from denskit.batch import Batch
from denskit.geometry.edge_frame import EdgeFrames, edge_frames
from denskit.geometry.edge_pairs import edge_pairs, pair_of_edge
from denskit.models.base import Backbone, Features
from denskit.models.edge_chunks import at_edges, at_targets, chunks_of
from denskit.models.equiformer.config import EquiformerConfig
from denskit.models.equiformer.graph import EquiformerGraph
from denskit.models.equiformer.kernels import choose_kernels, fused_problem
from denskit.models.equiformer.layers import EdgeDegreeEmbedding, FeedForward, attention_of
from denskit.models.equiformer.norm import EquivariantLayerNorm, MergedLayerNorm, NoNorm
from denskit.models.execution import DEFAULT, Execution
from denskit.models.recompute import EdgeChunk
from denskit.nn.activation import scaled_silu
from denskit.nn.covalent_origins import CovalentOrigins
from denskit.nn.cutoff import PolynomialEnvelope
from denskit.nn.dropout import EquivariantDropout, StochasticDepth
from denskit.nn.force_encoding import ForceEncoding
from denskit.nn.radial import RADIAL_BASES
from denskit.nn.so3_linear import SO3Linear


@dataclass(frozen=True, kw_only=True)
class EquiformerFeatures(Features):
    """Features with Equiformer's graph, which vector heads attend over."""

    graph: EquiformerGraph


class Block(nn.Module):
    """Pre-norm transformer block: attention, then feed-forward, each with a residual."""

    def __init__(self, config: EquiformerConfig, channels_out: Sequence[int], last: bool) -> None:
        super().__init__()
        channels = config.channels
        self.norm_1 = _norm(config, channels)
        self.attention = attention_of(config, channels, channels)
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
    """``attention(x, graph, degrees)``, in chunks of edges where the graph has them."""
    return at_targets(attention, lambda part, edges: attention(part, edges, degrees), x, graph, len(degrees))


def _norm(config: EquiformerConfig, channels: Sequence[int], last: bool = False) -> nn.Module:
    """The norm of node features; ``last``: after the last attention, where energies must not see higher degrees."""
    if config.norm == "merged":
        return MergedLayerNorm(channels, scalars_apart=last)
    return EquivariantLayerNorm(channels) if config.norm == "layer" else NoNorm()


class EnergyHead(nn.Module):
    """Linear, SiLU, linear on the scalars: energies [N, 1] of atoms, over the root of the average number of atoms."""

    def __init__(self, config: EquiformerConfig) -> None:
        super().__init__()
        assert config.average_atoms is not None, "checked by Backbone"
        scalars, init = config.feature_channels[:1], config.initialisation
        self.hidden = SO3Linear(scalars, scalars, init=init)
        self.output = SO3Linear(scalars, [1], init=init)
        self.scale = config.average_atoms**-0.5

    def forward(self, features: EquiformerFeatures) -> Tensor:
        """Scaled energies [N, 1] of the atoms."""
        (hidden,) = self.hidden(features.nodes[:1])
        (energy,) = self.output([scaled_silu(hidden)])
        return energy[:, 0] * self.scale


class VectorHead(nn.Module):
    """One more equivariant graph attention with one output vector per atom: forces and noise.

    The variants without attention have it too: the paper gives all variants "an additional block of equivariant graph
    attention for noise prediction".
    """

    def __init__(self, config: EquiformerConfig) -> None:
        super().__init__()
        kind = "mlp" if config.attention == "none" else config.attention
        self.attention = attention_of(config, config.feature_channels, (0, 1), kind)

    def forward(self, features: EquiformerFeatures) -> Tensor:
        """Vectors [N, 3]."""
        (vector,) = attend(self.attention, features.nodes, features.graph, (1,))
        return vector[:, :, 0]


class MatrixHead(nn.Module):
    """A linear map of the degrees 0 and 2: the strain of a cell, as a mean over the atoms."""

    def __init__(self, config: EquiformerConfig) -> None:
        super().__init__()
        self.linear = nn.ModuleDict({str(l): nn.Linear(config.feature_channels[l], 1, bias=False) for l in (0, 2)})

    def forward(self, features: EquiformerFeatures) -> Tensor:
        """Coefficients [N, 6] of degrees 0 and 2 (m = -2..2)."""
        return torch.cat([self.linear[str(l)](features.nodes[l])[:, :, 0] for l in (0, 2)], 1)


class Equiformer(Backbone):
    """Equiformer as a backbone, with DeNS's force encoding when there is a noise head."""

    symmetry: Literal["SO(3)", "O(3)"] = "SO(3)"
    gauge_exact = True
    head_types: ClassVar = {"0": EnergyHead, "1": VectorHead, "0+2": MatrixHead}
    config: EquiformerConfig

    def __init__(self, config: EquiformerConfig, heads: dict[str, str], force_input_scale: float) -> None:
        super().__init__(config)
        self.symmetry = "O(3)" if config.parity else "SO(3)"
        channels, init = config.channels, config.initialisation
        # without norms in the blocks the final one remains; gradient forces see only its scalars
        self.symmetric_sites = config.norm == "merged" or (config.norm == "none" and config.forces == "gradient")
        self.atom_embedding = nn.Parameter(torch.randn(config.num_elements, channels[0]))
        self.atom_bias = nn.Parameter(torch.zeros(channels[0]))
        self.basis = RADIAL_BASES[config.radial_basis](config.num_basis, config.cutoff)
        self.origins = CovalentOrigins(config.num_elements) if config.basis_origin == "covalent_radii" else None
        self.envelope = PolynomialEnvelope(config.cutoff) if config.envelope else None
        self.edge_degree = EdgeDegreeEmbedding(config)
        self.force_encoding = None
        if "noise" in heads:
            self.force_encoding = ForceEncoding(
                channels, force_input_scale, init, mark=config.mark_corrupted, stress="strain" in heads
            )
        # degrees above 0 leave the last block only for a head that reads them
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
        """Why the fused kernels cannot run on a device type; None if they can."""
        return fused_problem(device_type)

    def choose_kernels(self, execution: Execution, device: torch.device) -> str:
        """The kernels to use; see :func:`denskit.models.equiformer.kernels.choose_kernels`."""
        return choose_kernels(execution.kernels, device)

    def forward(
        self,
        batch: Batch,
        force_input: Tensor | None = None,
        frames: EdgeFrames | None = None,
        l_out: int | None = None,
        execution: Execution = DEFAULT,
    ) -> EquiformerFeatures:
        """Features of atoms (see :meth:`Backbone.forward`)."""
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
        chunks = chunks_of(batch, execution.edge_chunk)
        pairs = None if chunks else edge_pairs(batch)
        if chunks and frames is None:
            frames, basis = self._edges_in_chunks(batch, chunks)
        else:
            frames = frames or self.frames_of(batch, self.config.l_max)
            edges = slice(None) if pairs is None else pairs[:, 0]
            length = frames.length if pairs is None else frames.length.index_select(0, pairs[:, 0])
            basis = self._basis(length, batch, edges)
        return EquiformerGraph(
            **self.edge_fields(batch, frames, basis, execution),
            chunks=chunks,
            pairs=pairs,
            pair=None if pairs is None else pair_of_edge(pairs),
        )

    def _basis(self, length: Tensor, batch: Batch, edges: Tensor | slice) -> Tensor:
        """Radial basis [e, num_basis] of some edges of the batch, of ``length`` [e] Å."""
        if self.origins is None:
            return self.basis(length)  # type: ignore[no-any-return]
        return self.basis(length, self.origins(batch.atomic_numbers, batch.built_edges.index[:, edges]))  # type: ignore[no-any-return]

    def _edges_in_chunks(self, batch: Batch, chunks: Sequence[EdgeChunk]) -> tuple[EdgeFrames, Tensor]:
        """Frames and radial basis, chunk by chunk: saves a few hundred activations per edge."""

        def function(chunk: EdgeChunk, vectors: Tensor) -> list[Tensor]:
            with torch.autocast(vectors.device.type, enabled=False):
                frames = edge_frames(vectors, self.config.l_max)
            return [frames.length, frames.direction, self._basis(frames.length, batch, chunk.edges), *frames.wigner]

        count = 3 + self.config.l_max + 1
        length, direction, basis, *wigner = at_edges(self.basis, function, self.edge_vectors(batch), chunks, count)
        return EdgeFrames(length=length, direction=direction, wigner=tuple(wigner)), basis
