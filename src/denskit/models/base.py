"""The contract of every model: a backbone computes atom features, heads read them, ForceField derives the physics."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from denskit.batch import Batch, strained
from denskit.geometry.edge_frame import EdgeFrames, edge_frames
from denskit.geometry.symmetric_matrices import matrices_of
from denskit.models.config import MEASURED, ModelConfig
from denskit.models.edge_chunks import recomputed
from denskit.models.execution import DEFAULT, Execution
from denskit.models.graph import EdgeGraph
from denskit.models.scaling import Scaling
from denskit.nn.separation import Separation, separated
from denskit.nn.weight_decay import NoWeightDecay
from denskit.runtime.threads import few_threads
from denskit.runtime.warning import warn

SYMMETRIC_SITES = (
    "this model's layer norm (as published) divides features that vanish by symmetry: near symmetric sites (perfect "
    "crystals, CH4, CO2) forces are wrong by orders of magnitude. Do not use it there"
)
PHYSICAL = ("energy", "forces", "stress")  # outputs with a unit; other heads are read by the losses of a task alone
_DIMENSIONS = {"0": 1, "1": 3, "0+2": 6}  # of a head's output, by irreps


@dataclass(frozen=True, kw_only=True)
class Features:
    """Output of a backbone, input of the heads."""

    nodes: list[Tensor]  # [l] -> [N, 2l+1, C_l]
    graph: EdgeGraph
    batch: Batch


class Backbone(nn.Module, ABC):
    """A network from a batch to node features.

    The class attributes are promises that the contract tests check.  ``__init__`` may set ``envelope``, the factor of
    the edges that falls to 0 at the cutoff.  Raises ValueError for null in the place of a measured setting.
    """

    symmetry: Literal["SO(3)", "O(3)"]
    gauge_exact: bool  # no dependence on the choice of the rotation about an edge
    decays_embeddings: bool = True  # weight decay, where it is on, acts on the embeddings of the elements
    symmetric_sites: bool = True  # forces vary linearly where symmetry makes features of l > 0 vanish
    head_types: ClassVar[Mapping[str, Callable[[Any], nn.Module]]]  # (config) by irreps: "0" scalars, "1" vectors
    envelope: nn.Module | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if any(getattr(config, name, 1.0) is None for name in MEASURED):
            raise ValueError(f"{', '.join(MEASURED)} are measured when training starts; give numbers here")
        self.config = config
        self.envelope = None

    @property
    def smooth(self) -> bool:
        """Whether outputs are twice differentiable also where an atom crosses the cutoff."""
        return self.gauge_exact and self.envelope is not None and self.config.max_neighbors is None

    @abstractmethod
    def forward(
        self,
        batch: Batch,
        force_input: Tensor | None = None,
        frames: EdgeFrames | None = None,
        l_out: int | None = None,
        execution: Execution = DEFAULT,
    ) -> Features:
        """Features of the atoms of a batch.

        Args:
            batch: with edges.
            force_input: [N, 3] eV/Å, forces of corrupted atoms and zero elsewhere, or [N, 9] with virials (see
                :class:`denskit.nn.force_encoding.ForceEncoding`); None at inference.
            frames: default: the frames of the batch's edges.
            l_out: highest degree wanted; default all.
            execution: kernels, chunks and recomputation.
        """

    def make_head(self, irreps: str) -> nn.Module:
        """A module from Features to [N, dim]; ValueError for irreps without a head."""
        if irreps not in self.head_types:
            if irreps == "0+2":
                raise ValueError(
                    f"{self.config.name} has no head of a stress or strain (model.stress=direct, task=cell_dens); "
                    "model.stress=strain with model.forces=gradient needs none"
                )
            known = ", ".join(map(repr, self.head_types))
            raise ValueError(f"{type(self).__name__} has heads {known}, not '{irreps}'")
        return self.head_types[irreps](self.config)

    @classmethod
    def kernels_problem(cls, device_type: str) -> str | None:
        """Why the model's own kernels cannot run on a device type ("cpu", "cuda"); None if they can."""
        return None

    def choose_kernels(self, execution: Execution, device: torch.device) -> str:
        """Name of the kernels for the edge operations on a device; ValueError if those of ``execution`` cannot run."""
        return "plain"

    def run_block(self, block: nn.Module, x: Tensor | Sequence[Tensor], graph: EdgeGraph, *args: Any) -> Any:
        """``block(x, graph, *args)``; with ``recompute`` its activations are recomputed for derivatives."""
        if graph.execution.recompute and self.training and torch.is_grad_enabled():
            return recomputed(block, x, graph, *args)
        return block(x, graph, *args)

    @staticmethod
    def frames_of(batch: Batch, l_max: int) -> EdgeFrames:
        """Edge frames of a batch, in the precision of its positions: half precision would break equivariance."""
        with torch.autocast(batch.positions.device.type, enabled=False):
            return edge_frames(Backbone.edge_vectors(batch), l_max)

    def edge_fields(self, batch: Batch, frames: EdgeFrames, basis: Tensor, execution: Execution) -> dict[str, Any]:
        """Fields of an :class:`EdgeGraph` without ``chunks``; ``basis`` [E, num_basis] is the radial basis."""
        source, target = batch.built_edges.index
        return {
            "frames": frames,
            "basis": basis,
            "source": source,
            "target": target,
            "weight": self.edge_weight(batch, frames.length),
            "enveloped": self.envelope is not None,
            "num_atoms": batch.num_atoms,
            "execution": execution,
        }

    def edge_weight(self, batch: Batch, length: Tensor) -> Tensor | None:
        """Weights [E] of edges of these lengths (Å): the envelope, 0 on padding; None: all edges count fully."""
        weight: Tensor | None = None if self.envelope is None else self.envelope(length)
        mask = batch.built_edges.mask
        if mask is None:
            return weight
        mask = mask.to(length.dtype)
        return mask if weight is None else weight * mask

    @staticmethod
    def edge_vectors(batch: Batch) -> Tensor:
        """Edge vectors [E, 3] in Å; (0, 1, 0) on padding edges, so that no length is zero."""
        vectors, mask = batch.edge_vectors(), batch.built_edges.mask
        if mask is None:
            return vectors
        return torch.where(mask[:, None], vectors, torch.eye(3, dtype=vectors.dtype, device=vectors.device)[1])


class ForceField(nn.Module):
    """Energy, forces, stress and noise of structures, from any backbone.

    :meth:`forward` works in scaled units, :meth:`predict` in eV, eV/Å and eV/Å^3.  Both use ``execution``, which may be
    replaced at any time.
    """

    def __init__(self, backbone: Backbone, heads: dict[str, str], scaling: Scaling) -> None:
        super().__init__()
        self.backbone = backbone
        self.config = backbone.config
        self.head_irreps = dict(heads)
        self.heads = nn.ModuleDict({name: backbone.make_head(irreps) for name, irreps in heads.items()})
        self.scaling = scaling
        self.separation = Separation(self.config.cutoff)
        self.execution = DEFAULT
        self.fresh_outputs: tuple[str, ...] = ()  # with labels, whose heads fine-tuning begins at random
        self.new_elements: tuple[int, ...] = ()  # atomic numbers that fine-tuning adds to those of the trained model
        self._predicting = threading.RLock()  # held while predict has the modules in evaluation mode
        self.companion: nn.Module | None = None  # of a task: trained with the model, and in no model file

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_predicting"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._predicting = threading.RLock()

    @property
    def cutoff(self) -> float:
        """Radius of the neighbourhood, Å."""
        return self.config.cutoff

    @property
    def max_neighbors(self) -> int | None:
        """Largest number of neighbours of an atom, or None."""
        return self.config.max_neighbors

    def no_decay_parameters(self) -> set[str]:
        """Names of parameters without weight decay, as published: biases, norms, the radial basis, some embeddings."""
        names = {name for name, _ in self.named_parameters() if name.endswith("bias")}
        if not self.backbone.decays_embeddings:
            names |= self.element_tables()
        for prefix, module in self.named_modules():
            if isinstance(module, NoWeightDecay):
                names |= {f"{prefix}.{name}" for name, _ in module.named_parameters()}
        return names

    def element_tables(self) -> set[str]:
        """Names of parameters with one row for each atomic number."""
        embeddings = {f"{name}.weight" for name, module in self.named_modules() if isinstance(module, nn.Embedding)}
        return {name for name, _ in self.named_parameters() if name in embeddings or name == "backbone.atom_embedding"}

    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs of :meth:`forward` that a loss can use."""
        names = ["energy", "forces"] + [name for name in self.heads if name not in ("energy", "forces")]
        return (*names, "stress") if self.config.stress == "strain" else tuple(names)

    def physical_outputs(self) -> tuple[str, ...]:
        """Names of the outputs of :meth:`predict`."""
        return tuple(name for name in self.outputs() if name in PHYSICAL)

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
            force_input: [N, 3] eV/Å, or [N, 9], only in training with DeNS.
            outputs: names wanted, those of :meth:`outputs` or "energies"; default all of :meth:`outputs`.
            edge_frames: for tests; default: the frames of the batch's edges.  Gradients do not pass through given ones.
            execution: default the force field's own.

        Returns:
            Of "energy" [B], "energies" [N], "forces" [N, 3], "noise" [N, 3], "stress" and "strain" [B, 3, 3]
            those wanted; of other heads [N, 1], [N, 3] or [B, 3, 3], by their irreps.

        Raises ValueError for a head that gives another shape than its irreps say.
        """
        wanted = self.outputs() if outputs is None else outputs
        execution = self.execution if execution is None else execution
        gradient = self.config.forces == "gradient" and ("forces" in wanted or "stress" in wanted)
        if not gradient:
            out = self._evaluate(batch, force_input, wanted, edge_frames, execution)
            return {name: out[name] for name in wanted}
        caller_differentiates = torch.is_grad_enabled()
        with torch.enable_grad():
            given = batch.positions
            positions = given if given.requires_grad else given.detach().requires_grad_()
            moved, strain = replace(batch, positions=positions), None
            if "stress" in wanted and "stress" not in self.heads:
                strain = torch.zeros_like(batch.cell).requires_grad_()
                moved = strained(moved, strain)
            out = self._evaluate(moved, force_input, wanted, edge_frames, execution)
            inputs = [positions] if strain is None else [positions, strain]
            if not self.training and caller_differentiates and set(wanted) - {*PHYSICAL, "energies"}:
                warn(
                    "this force field is in evaluation mode, where its forces have no gradient with respect to the "
                    "weights; call train() before a loss"
                )
            # only training differentiates the gradient itself
            gradients = torch.autograd.grad(
                out["energy"].sum(),
                inputs,
                create_graph=self.training,
                retain_graph=any(name in self.heads and name not in PHYSICAL for name in wanted) or None,
            )
        out["forces"] = -gradients[0]
        if strain is not None:
            volume = batch.cell.det().abs()
            # a molecule has no volume: its stress is the strain's gradient per 1 Å^3, without a target
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
        # vector heads attend over all degrees
        features = self.backbone(batch, force_input, frames, 0 if l_out == 0 else None, execution)
        out = {name: self._checked(name, self.heads[name](features)) for name in used}
        # sums and outputs are never in half precision
        out = {name: value.to(batch.positions.dtype) for name, value in out.items()}
        for name in used:
            if self.head_irreps[name] == "0+2":  # one matrix for a system, the mean over its atoms
                out[name] = matrices_of(batch.sum_over_atoms(out[name]) / batch.n_atoms[:, None])
        out["energies"] = self._separable(out["energy"][:, 0], batch)
        out["energy"] = batch.sum_over_atoms(out["energies"])
        return out

    def _separable(self, energies: Tensor, batch: Batch) -> Tensor:
        """Energies [N] that go smoothly to those of isolated atoms, where the scaling knows these."""
        if not self.scaling.binding_energies:
            return energies
        edges, length = batch.built_edges, torch.linalg.vector_norm(Backbone.edge_vectors(batch), dim=-1)
        share = self.separation(length, edges.index, batch.atomic_numbers, edges.mask)
        return separated(energies, share, self.scaling.isolated_in_model_units(batch.atomic_numbers, energies.dtype))

    def _checked(self, name: str, value: Tensor) -> Tensor:
        """The output of a head.  Raises ValueError for a shape that a loss would broadcast without a word."""
        dimension = _DIMENSIONS[self.head_irreps[name]]
        if value.dim() != 2 or value.shape[1] != dimension:
            raise ValueError(
                f"head {name!r} ({self.head_irreps[name]!r}) of {type(self.backbone).__name__} gave a tensor of shape "
                f"{list(value.shape)}; [atoms, {dimension}] is wanted"
            )
        return value

    def predict(self, batch: Batch, outputs: tuple[str, ...] | None = None) -> dict[str, Tensor]:
        """Predict in eV, eV/Å and eV/Å^3, without a second-order graph and without noise.  Threads take turns.

        Args:
            batch: in the dtype of the weights; neighbours are built where it has none.
            outputs: names wanted; default "energy", "forces", and "stress" if the model has it.

        Returns:
            Those wanted of "energy" [B] float64, "energies" of atoms [N] float64, "forces" [N, 3], "stress" [B, 3, 3].

        Raises:
            ValueError: An element that the model was not trained on; a batch in another dtype than the weights;
                weights in half precision.
            RuntimeError: Under ``torch.inference_mode``, which forbids gradients; use ``torch.no_grad``.
        """
        if torch.is_inference_mode_enabled():
            raise RuntimeError("forces are gradients: call predict under torch.no_grad(), not torch.inference_mode()")
        found, weights = batch.positions.dtype, next(self.parameters()).dtype
        if weights not in (torch.float32, torch.float64):
            raise ValueError(f"the weights are in {weights}; models predict in float32 and float64: model.float()")
        if found != weights:
            raise ValueError(
                f"the batch is in {found}, the weights are in {weights}: give batch.to(dtype={weights}), or load the "
                f"model by load_model(..., dtype={str(found).removeprefix('torch.')!r})"
            )
        self.scaling.check(batch)
        if batch.edges is None:
            batch = self.config.with_neighbors(batch)
        wanted = self.physical_outputs() if outputs is None else outputs
        with self._predicting:  # another thread would take the evaluation mode of this one for the mode to restore
            modes = [(module, module.training) for module in self.modules()]
            self.eval()
            try:
                with few_threads(batch.num_edges, batch.positions.device):
                    out = self(batch, outputs=(*wanted, "energies"))
            finally:
                for module, training in modes:
                    module.training = training
        physical = self.scaling.unscale(batch, {name: value.detach() for name, value in out.items()})
        # added in float64: in float32 the sum over thousands of atoms loses meV
        physical["energy"] = batch.sum_over_atoms(physical["energies"])
        return {name: physical[name] for name in wanted}
