"""eSCN, the equivariant spherical channel network (Passaro and Zitnick, ICML 2023), with DeNS.

The function is the published one.  Its nonlinearities act on samples of functions on the sphere: those of the messages
on a coarse grid in the edge's frame, those of the heads at 128 points fixed in space.  Neither commutes exactly with
rotations, so eSCN is equivariant up to sampling errors, and a gradient force jumps where an edge's frame does: it is a
model for direct forces.  The points belong to the weights and lie in the model file.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from denskit.batch import Batch
from denskit.geometry.edge_frame import EdgeFrames
from denskit.geometry.so2_linear import pack_wigner
from denskit.models.base import Backbone, ModelConfig
from denskit.models.divided import at_targets, groups_of
from denskit.models.escn_layers import (
    SMALL,
    ESCNFeatures,
    ESCNGraph,
    Layer,
    SampledHead,
    sphere_harmonics,
    sphere_points,
)
from denskit.nn.execution import DEFAULT, Execution
from denskit.nn.force_encoding import ForceEncoding
from denskit.nn.radial import GaussianSmearing


class ESCNConfig(ModelConfig):
    """eSCN; the defaults are the paper's model for OC20."""

    name: Literal["escn"] = "escn"
    cutoff: float = Field(12.0, gt=0, description="Å, radius of the neighbourhood")
    max_neighbors: int | None = Field(20, ge=1, description="keep only the nearest neighbours of each atom; not smooth")
    num_elements: int = Field(90, ge=1, le=119, description="atomic numbers 0 .. num_elements - 1 have an embedding")
    forces: Literal["gradient", "direct"] = Field(
        "direct", description="forces from -dE/dr or from a head of their own"
    )
    num_layers: int = Field(12, ge=1, description="message-passing layers")
    l_max: int = Field(6, ge=1, le=6, description="highest degree of the features")
    m_max: int = Field(2, ge=0, description="highest order of the messages in the edge frame")
    channels: int = Field(128, ge=1, description="channels of each degree")
    hidden_channels: int = Field(256, ge=1, description="channels inside the SO(2) convolutions")
    edge_channels: int = Field(128, ge=1, description="invariant channels of an edge")
    num_basis: int = Field(600, ge=2, description="Gaussians between 0 and the cutoff that a distance is expanded in")
    basis_width: float = Field(2.0, gt=0, description="width of the Gaussians in units of their spacing")
    num_sphere_samples: int = Field(
        128, ge=2, le=10_000, description="points of the sphere at which the heads read the features"
    )

    @model_validator(mode="after")
    def _orders_of_degrees(self) -> ESCNConfig:
        if self.m_max > self.l_max:
            raise ValueError(f"m_max={self.m_max} is above l_max={self.l_max}: no degree has such an order")
        return self


class ESCN(Backbone):
    """eSCN as a backbone: node features from a batch, with DeNS's force encoding when a head asks for noise."""

    symmetry = "SO(3)"
    gauge_exact = False
    config: ESCNConfig
    sphere_points: Tensor  # [P, 3]
    sphere_harmonics: Tensor  # [P, (l_max + 1)^2]

    def __init__(self, config: ESCNConfig, heads: dict[str, str], force_scale: float) -> None:
        super().__init__(config)
        channels = config.channels
        self.atom_embedding = nn.Embedding(config.num_elements, channels)
        self.basis = GaussianSmearing(config.num_basis, config.cutoff, config.basis_width)
        self.force_encoding = None
        if "noise" in heads:
            self.force_encoding = ForceEncoding([channels] * (config.l_max + 1), force_scale)
            for weight in self.force_encoding.linear.weights:
                nn.init.uniform_(weight, -SMALL, SMALL)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        points = sphere_points(config.num_sphere_samples)
        default = torch.get_default_dtype()
        self.register_buffer("sphere_points", points.to(default))
        self.register_buffer("sphere_harmonics", sphere_harmonics(points, config.l_max).to(default))

    def make_head(self, irreps: str) -> nn.Module:
        """A head on the features: "0" energies of atoms, "1" a vector an atom (forces, noise)."""
        if irreps not in ("0", "1"):
            raise ValueError(f"eSCN has heads '0' and '1', not '{irreps}'")
        return SampledHead(self.config.channels, vector=irreps == "1")

    def forward(
        self,
        batch: Batch,
        force_input: Tensor | None = None,
        frames: EdgeFrames | None = None,
        l_out: int | None = None,
        execution: Execution = DEFAULT,
    ) -> ESCNFeatures:
        """Features of the atoms of a batch whose neighbours are built.

        Args:
            batch: with edges.
            force_input: [N, 3] eV/Å, forces of corrupted atoms and zero elsewhere; None at inference.
            frames: edge frames to use instead of our own (tests).
            l_out: of no effect: each head reads samples of all degrees.
            execution: how to compute.
        """
        graph = self._graph(batch, frames, execution)
        scalars = self.atom_embedding(batch.atomic_numbers)[:, None]
        x = F.pad(scalars, (0, 0, 0, (self.config.l_max + 1) ** 2 - 1))  # [N, (l_max + 1)^2, C]
        if force_input is not None:
            assert self.force_encoding is not None, "this model has no noise head, so no force encoding"
            x = x + torch.cat(self.force_encoding(force_input), 1)
        for k, layer in enumerate(self.layers):
            if graph.groups:
                (update,) = at_targets(layer, lambda part, edges, layer=layer: [layer(*part, edges)], [x], graph, 1)
            else:
                update = self.run_block(layer, x, graph)
            x = update if k == 0 else x + update  # published: the first layer has no residual
        nodes = list(x.split([2 * l + 1 for l in range(self.config.l_max + 1)], 1))
        samples = self.sphere_harmonics @ x
        return ESCNFeatures(nodes=nodes, graph=graph, batch=batch, samples=samples, points=self.sphere_points)

    def _graph(self, batch: Batch, frames: EdgeFrames | None, execution: Execution) -> ESCNGraph:
        assert batch.edge_index is not None, "build neighbours first"
        frames = frames or self.frames_of(batch, self.config.l_max)
        source, target = batch.edge_index
        return ESCNGraph(
            frames=frames,
            basis=self.basis(frames.length),
            source=source,
            target=target,
            weight=self.edge_weight(batch, frames.length, None),
            enveloped=False,
            num_atoms=batch.num_atoms,
            execution=execution,
            groups=groups_of(batch, execution.edge_chunk),
            rotation=pack_wigner(frames.wigner, self.config.l_max, self.config.m_max),
            source_element=batch.atomic_numbers[source],
            target_element=batch.atomic_numbers[target],
        )
