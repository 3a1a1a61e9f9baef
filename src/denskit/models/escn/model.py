"""eSCN, the equivariant spherical channel network (Passaro and Zitnick, ICML 2023), with DeNS.

The function is the published one.  Its nonlinearities act on samples of functions on the sphere: the messages on a
coarse grid in the edge frame, the heads at 128 points fixed in space.  Neither commutes exactly with rotations: eSCN is
equivariant up to sampling errors, and a gradient force jumps with the gauge of an edge frame.  Use direct forces.  The
points belong to the weights and are stored in the model file.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denskit.batch import Batch
from denskit.geometry.edge_frame import EdgeFrames
from denskit.geometry.order_major import pack_wigner
from denskit.models.base import Backbone
from denskit.models.edge_chunks import at_targets, chunks_of
from denskit.models.escn.config import ESCNConfig
from denskit.models.escn.layers import (
    SMALL,
    ESCNFeatures,
    ESCNGraph,
    Layer,
    SampledHead,
    sphere_harmonics,
    sphere_points,
)
from denskit.models.execution import DEFAULT, Execution
from denskit.nn.force_encoding import ForceEncoding
from denskit.nn.packed import orders_of
from denskit.nn.radial import GaussianSmearing


class ESCN(Backbone):
    """eSCN as a backbone, with DeNS's force encoding when there is a noise head."""

    symmetry = "SO(3)"
    gauge_exact = False
    head_types: ClassVar = {"0": partial(SampledHead, vector=False), "1": partial(SampledHead, vector=True)}
    config: ESCNConfig
    sphere_points: Tensor  # [P, 3]
    sphere_harmonics: Tensor  # [P, (l_max + 1)^2]

    def __init__(self, config: ESCNConfig, heads: dict[str, str], force_input_scale: float) -> None:
        super().__init__(config)
        channels = config.channels
        self.atom_embedding = nn.Embedding(config.num_elements, channels)
        self.basis = GaussianSmearing(config.num_basis, config.cutoff, config.basis_width)
        self.force_encoding = None
        if "noise" in heads:
            per_degree = [channels] * (config.l_max + 1)
            self.force_encoding = ForceEncoding(per_degree, force_input_scale, mark=config.mark_corrupted)
            for weight in self.force_encoding.parameters():
                nn.init.uniform_(weight, -SMALL, SMALL)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        points = sphere_points(config.num_sphere_samples)
        default = torch.get_default_dtype()
        self.register_buffer("sphere_points", points.to(default))
        self.register_buffer("sphere_harmonics", sphere_harmonics(points, config.l_max).to(default))

    def forward(
        self,
        batch: Batch,
        force_input: Tensor | None = None,
        frames: EdgeFrames | None = None,
        l_out: int | None = None,
        execution: Execution = DEFAULT,
    ) -> ESCNFeatures:
        """Features of atoms (see :meth:`Backbone.forward`); ``l_out`` has no effect: heads sample all degrees."""
        graph = self._graph(batch, frames, execution)
        scalars = self.atom_embedding(batch.atomic_numbers)[:, None]
        x = F.pad(scalars, (0, 0, 0, (self.config.l_max + 1) ** 2 - 1))  # [N, (l_max + 1)^2, C]
        if force_input is not None:
            assert self.force_encoding is not None, "this model has no noise head, so no force encoding"
            x = x + torch.cat(self.force_encoding(force_input), 1)
        for k, layer in enumerate(self.layers):
            if graph.chunks:
                (update,) = at_targets(layer, lambda part, edges, layer=layer: [layer(*part, edges)], [x], graph, 1)
            else:
                update = self.run_block(layer, x, graph)
            x = update if k == 0 else x + update  # published: the first layer has no residual
        nodes = list(x.split(orders_of(x), 1))
        samples = self.sphere_harmonics @ x
        return ESCNFeatures(nodes=nodes, graph=graph, batch=batch, samples=samples, points=self.sphere_points)

    def _graph(self, batch: Batch, frames: EdgeFrames | None, execution: Execution) -> ESCNGraph:
        frames = frames or self.frames_of(batch, self.config.l_max)
        fields = self.edge_fields(batch, frames, self.basis(frames.length), execution)
        return ESCNGraph(
            **fields,
            chunks=chunks_of(batch, execution.edge_chunk),
            rotation=pack_wigner(frames.wigner, self.config.l_max, self.config.m_max),
            source_element=batch.atomic_numbers[fields["source"]],
            target_element=batch.atomic_numbers[fields["target"]],
        )
