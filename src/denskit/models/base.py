"""The contract of every model: a backbone makes features of atoms, heads read them, ForceField makes physics of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from denskit.batch import Batch
from denskit.geometry.edge_frame import EdgeFrames, edge_frames
from denskit.models.config import ModelConfig
from denskit.models.edge_chunks import again
from denskit.models.execution import DEFAULT, Execution
from denskit.models.graph import EdgeGraph
from denskit.models.scaling import Scaling
from denskit.nn.weight_decay import NoWeightDecay

SYMMETRIC_SITES = (
    "this model's layer norm (as published) divides features that vanish by symmetry: near symmetric sites (perfect "
    "crystals, CH4, CO2) forces are wrong by orders of magnitude. Do not use it there"
)


@dataclass(frozen=True, kw_only=True)
class Features:
    """What a backbone hands to the heads."""

    nodes: list[Tensor]  # [l] -> [N, 2l+1, C_l]
    graph: EdgeGraph
    batch: Batch


class Backbone(nn.Module, ABC):
    """A network from a batch to node features.  The class attributes are promises that the contract tests read."""

    symmetry: Literal["SO(3)", "O(3)"]
    gauge_exact: bool  # no dependence on the choice of the rotation about an edge
    smooth: bool = False  # twice differentiable also where an atom crosses the cutoff
    symmetric_sites: bool = True  # forces vary linearly where symmetry makes features of l > 0 vanish

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def forward(
        self,
        batch: Batch,
        force_input: Tensor | None = None,
        frames: EdgeFrames | None = None,
        l_out: int | None = None,
        execution: Execution = DEFAULT,
    ) -> Features:
        """Features of degrees up to l_out (default: all) of a batch with edges; adds the encoded force input."""

    @abstractmethod
    def make_head(self, irreps: str) -> nn.Module:
        """A module from Features to [N, dim]: "0" scalars, "1" vectors."""

    @classmethod
    def kernels_problem(cls, device_type: str) -> str | None:
        """Why the model's own kernels cannot run on a kind of device ("cpu", "cuda"); None where nothing is wrong."""
        return None

    def choose_kernels(self, execution: Execution, device: torch.device) -> str:
        """Which kernels compute the edge operations on a device; models with one way of computing ignore what is asked.

        Raises ValueError where the kernels asked for cannot run.
        """
        return "plain"

    def run_block(self, block: nn.Module, x: Tensor | Sequence[Tensor], graph: EdgeGraph, *args: Any) -> Any:
        """``block(x, graph, *args)``; with ``recompute`` derivatives compute it again."""
        if graph.execution.recompute and self.training and torch.is_grad_enabled():
            return again(block, x, graph, *args)
        return block(x, graph, *args)

    @staticmethod
    def frames_of(batch: Batch, l_max: int) -> EdgeFrames:
        """Edge frames of a batch, always in the precision of its positions: half precision would break equivariance."""
        with torch.autocast(batch.positions.device.type, enabled=False):
            return edge_frames(Backbone.edge_vectors(batch), l_max)

    @staticmethod
    def edge_weight(batch: Batch, length: Tensor, envelope: nn.Module | None) -> Tensor | None:
        """How much each edge counts [E]: the envelope at its length (Å), 0 on padding; None where all count fully."""
        weight: Tensor | None = None if envelope is None else envelope(length)
        mask = batch.built_edges.mask
        if mask is None:
            return weight
        mask = mask.to(length.dtype)
        return mask if weight is None else weight * mask

    @staticmethod
    def edge_vectors(batch: Batch) -> Tensor:
        """Edge vectors [E, 3]; on padding edges the unit vector of y, so that no length is zero."""
        vectors, mask = batch.edge_vectors(), batch.built_edges.mask
        if mask is None:
            return vectors
        return torch.where(mask[:, None], vectors, vectors.new_tensor([0.0, 1.0, 0.0]))


class ForceField(nn.Module):
    """Energy, forces, stress and noise of structures, from any backbone.

    :meth:`forward` speaks the model's scaled units, :meth:`predict` eV, eV/Å and eV/Å^3.  ``execution`` says how both
    compute; it may be replaced at any time.
    """

    def __init__(self, backbone: Backbone, heads: dict[str, str], scaling: Scaling) -> None:
        super().__init__()
        self.backbone = backbone
        self.config = backbone.config
        self.head_irreps = dict(heads)
        self.heads = nn.ModuleDict({name: backbone.make_head(irreps) for name, irreps in heads.items()})
        self.scaling = scaling
        self.execution = DEFAULT

    @property
    def cutoff(self) -> float:
        """Radius of the neighbourhood, Å."""
        return self.config.cutoff

    @property
    def max_neighbors(self) -> int | None:
        """Largest number of neighbours of an atom, or None."""
        return self.config.max_neighbors

    def no_decay_parameters(self) -> set[str]:
        """Names of the parameters that weight decay leaves alone, as published: biases, norms, the radial basis."""
        names = {name for name, _ in self.named_parameters() if name.endswith("bias")}
        for prefix, module in self.named_modules():
            if isinstance(module, nn.LayerNorm | NoWeightDecay):
                names |= {f"{prefix}.{name}" for name, _ in module.named_parameters()}
        return names

    def outputs(self) -> tuple[str, ...]:
        """Names of all that a loss can ask of :meth:`forward`."""
        names = ["energy", "forces"] + [name for name in self.heads if name not in ("energy", "forces")]
        return (*names, "stress") if self.config.stress == "strain" else tuple(names)

    def forward(
        self,
        batch: Batch,
        force_input: Tensor | None = None,
        outputs: tuple[str, ...] | None = None,
        edge_frames: EdgeFrames | None = None,
        execution: Execution | None = None,
    ) -> dict[str, Tensor]:
        """Predict in scaled units.

        Args:
            batch: with neighbours built.
            force_input: [N, 3] eV/Å, only in DeNS training.
            outputs: names wanted, those of :meth:`outputs` or "energies"; default all of :meth:`outputs`.
            edge_frames: frames to use instead of our own (tests; positions are then not differentiated through them).
            execution: default the force field's own.

        Returns:
            "energy" [B], "energies" [N], "forces" [N, 3], "noise" [N, 3], "stress" [B, 3, 3] as asked.
        """
        wanted = self.outputs() if outputs is None else outputs
        execution = self.execution if execution is None else execution
        gradient = self.config.forces == "gradient" and ("forces" in wanted or "stress" in wanted)
        if not gradient:
            out = self._evaluate(batch, force_input, wanted, edge_frames, execution)
            return {name: out[name] for name in wanted}
        with torch.enable_grad():
            positions = batch.positions.detach().requires_grad_()
            strain = torch.zeros_like(batch.cell).requires_grad_() if "stress" in wanted else None
            moved = _strained(replace(batch, positions=positions), strain)
            out = self._evaluate(moved, force_input, wanted, edge_frames, execution)
            inputs = [positions] if strain is None else [positions, strain]
            # only training needs the graph of the gradient itself
            gradients = torch.autograd.grad(
                out["energy"].sum(), inputs, create_graph=self.training, retain_graph="noise" in wanted or None
            )
        out["forces"] = -gradients[0]
        if strain is not None:
            volume = batch.cell.det().abs()
            # a molecule has no volume: its stress is the strain's gradient per 1 Å^3, and no one has a target for it
            out["stress"] = gradients[1] / torch.where(volume > 0, volume, 1)[:, None, None]
        return {name: out[name] for name in wanted}

    def _evaluate(
        self,
        batch: Batch,
        force_input: Tensor | None,
        wanted: tuple[str, ...],
        frames: EdgeFrames | None,
        execution: Execution,
    ) -> dict[str, Tensor]:
        used = [name for name in self.heads if name in wanted or name == "energy"]
        l_out = max(int(self.head_irreps[name][-1]) for name in used)
        # a vector head is an attention of its own: it reads all degrees
        features = self.backbone(batch, force_input, frames, 0 if l_out == 0 else None, execution)
        out = {name: self.heads[name](features) for name in used}
        # sums and what leaves the model are never in half precision
        out = {name: value.to(batch.positions.dtype) for name, value in out.items()}
        out["energies"] = torch.where(batch.atom_mask, out["energy"][:, 0], 0)
        out["energy"] = batch.sum_over_atoms(out["energies"])
        return out

    def predict(self, batch: Batch, outputs: tuple[str, ...] | None = None) -> dict[str, Tensor]:
        """Predict in eV, eV/Å and eV/Å^3; never a second-order graph, never noise.

        Args:
            batch: in the dtype of the weights; neighbours are built where it has none.
            outputs: names wanted; default "energy", "forces", and "stress" if the model has it.

        Returns:
            As asked: "energy" [B] float64, "energies" of atoms [N] float64, "forces" [N, 3], "stress" [B, 3, 3].

        Raises:
            ValueError: An element that the model was not trained on.
            RuntimeError: Under ``torch.inference_mode``, where nothing can be differentiated; use ``torch.no_grad``.
        """
        if torch.is_inference_mode_enabled():
            raise RuntimeError("forces are gradients: call predict under torch.no_grad(), not torch.inference_mode()")
        self.scaling.check_elements(batch.atomic_numbers[batch.atom_mask].cpu())
        if batch.edges is None:
            batch = self.config.with_neighbors(batch)
        wanted = tuple(name for name in self.outputs() if name != "noise") if outputs is None else outputs
        training = self.training
        self.eval()
        try:
            out = self(batch, outputs=(*wanted, "energies"))
        finally:
            self.train(training)
        physical = self.scaling.unscale(batch, {name: value.detach() for name, value in out.items()})
        # added in float64: in float32 the sum over thousands of atoms loses meV
        physical["energy"] = batch.sum_over_atoms(physical["energies"])
        return {name: physical[name] for name in wanted}


def _strained(batch: Batch, strain: Tensor | None) -> Batch:
    """Positions and cells under the symmetric part of a strain [B, 3, 3]."""
    if strain is None:
        return batch
    symmetric = (strain + strain.mT) / 2
    positions = batch.positions + torch.einsum("ni,nij->nj", batch.positions, symmetric[batch.system_index])
    return replace(batch, positions=positions, cell=batch.cell + batch.cell @ symmetric)
