"""A trained force field for simulations: energies and forces of batches, with a neighbour list that is kept."""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, get_args

import ase
import torch
from torch import Tensor

from denskit.batch import Batch, Edges, System
from denskit.data.crowding import REACH, crowding
from denskit.data.periodicity import not_a_crystal
from denskit.models.base import ForceField
from denskit.models.committee import united
from denskit.models.execution import Execution, KernelName
from denskit.models.model_file import Model, load_model, models_of, read_header
from denskit.runtime.device import DType, choose_device, dtype_of
from denskit.runtime.threads import few_threads
from denskit.simulation.compiled import CompiledModel
from denskit.simulation.neighbor_list import Candidates, Kept, unusable
from denskit.zoo import file_of

DIRECT = "this model has forces=direct and no head for the stress (model.stress=direct), so it gives none"


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Energies, forces and stress of a batch, in float64; with several models their mean and standard deviation."""

    energy: Tensor  # [B] eV
    energies: Tensor  # [N] eV, of the atoms; their sum is the energy
    forces: Tensor  # [N, 3] eV/Å
    stress: Tensor | None = None  # [B, 3, 3] eV/Å^3, ASE's sign
    energy_std: Tensor | None = None  # [B] eV, standard deviation over the models (n - 1 in the denominator)
    forces_std: Tensor | None = None  # [N, 3] eV/Å, the same for every component


class EnergyAndForces(Protocol):
    """A potential for relaxation and dynamics: :class:`Potential`, or a formula.

    Dynamics needs the call and :meth:`broken` alone.
    """

    device: torch.device  # of evaluations
    stress: bool  # whether evaluations have a stress

    def __call__(self, batch: Batch) -> Evaluation:
        """Evaluate a batch.  Raises ValueError for a system that cannot be evaluated."""
        ...

    def broken(self, batch: Batch) -> Tensor:
        """The systems [B] that cannot be evaluated."""
        ...

    def check_structure(self, system: System) -> None:
        """Raise ValueError for an unknown element; warn of what the potential does not see."""
        ...


class Potential:
    """Energies, forces and stress of batches without edges, from one model or the mean of several.

    Results are those of :meth:`ForceField.predict` with freshly built neighbours, to rounding.  The neighbour list
    within cutoff + ``skin`` is kept until an atom has moved skin / 2, a cell has changed or another batch comes; every
    call uses the neighbours within the cutoff.  Positions may be float64 for models of any dtype: they are rounded
    relative to the first atom of each system, so a drifting molecule loses no digits.  Threads that share a potential
    take turns.  Copies and pickles are complete; those of compiled models load their library at the first call.

    Args:
        models: one or several model files, run folders or force fields; the potential keeps frozen copies.
        device: "auto", "cpu", "cuda" or "cuda:N"; default: that of force fields, the CPU for files.
        dtype: "float32", "float64", or torch's; default: that of the models, of several the highest.
        skin: Å; 0 searches for neighbours at every call.
        stress: whether calls compute the stress; all systems must then be periodic in three directions.
        compile: compile the models at the first call and when shapes change, for many calls with the same systems.
        edge_chunk: see :class:`Execution`; for systems larger than memory (docs/scaling.md).
        kernels: see :class:`Execution`.

    Raises:
        FileNotFoundError: No such model file.
        ValueError: No model, the same one twice, an unknown dtype, models on different devices, a negative skin,
            stress of models with direct forces, or edge chunks in compiled models.
    """

    def __init__(
        self,
        models: Model | Sequence[Model],
        *,
        device: str | torch.device | None = None,
        dtype: DType = None,
        skin: float = 0.5,
        stress: bool = False,
        compile: bool = False,
        edge_chunk: int | None = None,
        kernels: KernelName = "auto",
    ) -> None:
        given = models_of(models)
        if not skin >= 0:
            raise ValueError(f"skin is {skin} Å; give 0 or more")
        if edge_chunk is not None and compile:
            raise ValueError(f"edge_chunk is {edge_chunk} with compile, whose graph is one piece; choose one")
        if kernels not in get_args(KernelName):
            raise ValueError(f"kernels is {kernels!r}; give {', '.join(get_args(KernelName))}")
        if isinstance(device, str):
            device = choose_device(device)
        execution = Execution(kernels=kernels, edge_chunk=edge_chunk)
        with torch.inference_mode(False):  # as in calls
            self.models = united([_frozen(model, device, dtype_of(dtype), execution) for model in given], given)
        self.files = [str(file_of(model).resolve()) for model in given if not isinstance(model, ForceField)]
        self.direct_forces = any(model.config.forces == "direct" for model in self.models)
        self.gives_stress = all(
            model.config.forces == "gradient" or model.config.stress == "direct" for model in self.models
        )
        if stress and not self.gives_stress:
            raise ValueError(DIRECT)
        first = next(self.models[0].parameters())
        self.dtype, self.device = first.dtype, first.device
        for model in self.models:
            model.backbone.choose_kernels(execution, self.device)  # raises for unavailable kernels
        self.cutoff = max(model.cutoff for model in self.models)
        self.skin = skin
        self.stress = stress
        self.smooth = all(model.backbone.smooth for model in self.models)
        self.learned_stress = all(_learned_stress(model) for model in given)  # else it is a derivative, untested
        self._compiled = [CompiledModel(model, _outputs(stress)) for model in self.models] if compile else None
        self.rebuilds = 0  # searches for neighbours
        self.num_edges = 0  # of the last call
        self._candidates: Candidates | None = None
        self._checked: tuple[Kept, ...] = ()  # atomic numbers and their division into systems, of the last check
        self.lock = threading.RLock()  # held by the thread that evaluates

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= {**state, "lock": threading.RLock()}

    def __call__(self, batch: Batch, *, stress: bool | None = None) -> Evaluation:
        """Evaluate a batch on any device, in any floating dtype; its edges are not used.

        stress: whether this call computes the stress; default: as the potential was made.

        Raises ValueError for an unknown element, a :meth:`broken` system, and stress of a system that is not periodic
        in three directions or of models with direct forces.
        """
        # tensors of the inference mode take part in no derivative, not even in that of the energy
        with self.lock, torch.inference_mode(False), torch.no_grad():
            return self._evaluation(_differentiable(batch), self.stress if stress is None else stress)

    def broken(self, batch: Batch) -> Tensor:
        """Systems [B] that cannot be evaluated: positions not finite, flown apart, or two atoms at one place."""
        with torch.inference_mode(False), torch.no_grad():
            batch = _differentiable(batch).to(self.device)
            try:
                with self.lock:
                    candidates = self._up_to_date(batch)
            except ValueError:
                return unusable(batch, self.cutoff + self.skin)
            return candidates.broken(candidates.squared_distances(batch.positions))

    def check_structure(self, system: System) -> None:
        """Raise ValueError naming the elements of a structure that a model does not know; warn, once, of its charge."""
        for model in self.models:
            model.scaling.check_structure(system)

    def forget(self) -> None:
        """Search for neighbours at the next call."""
        with self.lock:
            self._candidates = None

    def weights_sha256(self) -> str:
        """Hexadecimal SHA-256 of all weights of the models, and their energies of isolated atoms."""
        digest = hashlib.sha256()
        for model in self.models:
            for tensor in model.state_dict().values():
                digest.update(tensor.cpu().numpy().tobytes())
            if model.scaling.binding_energies:  # as before where there are none
                digest.update(model.scaling.binding.cpu().numpy().tobytes())
        return digest.hexdigest()

    def _evaluation(self, batch: Batch, stress: bool) -> Evaluation:
        if batch.positions.device != self.device:
            batch = batch.to(self.device)
        self._check(batch)
        if stress:
            self._check_volumes(batch)
        candidates = self._up_to_date(batch)
        squared = candidates.squared_distances(batch.positions)
        if candidates.any_together(squared):
            system = int(candidates.broken(squared).nonzero()[0, 0])
            raise ValueError(
                f"System {system} of the batch: two atoms are at one place; the simulation has "
                "gone wrong, or the structure has a double atom"
            )
        edges: dict[tuple[float, int | None, bool], Batch] = {}
        results = []
        for number, model in enumerate(self.models):
            if (key := model.config.neighborhood) not in edges:
                edges[key] = self._with_edges(batch, candidates, candidates.within(squared, *key))
            results.append(self._evaluate(number, edges[key], stress))
        return results[0] if len(results) == 1 else _committee(results)

    def _check(self, batch: Batch) -> None:
        """Check elements and compositions, once for every set of systems."""
        given = (batch.atomic_numbers, batch.n_atoms)
        if self._checked and all(kept.equals(own) for kept, own in zip(self._checked, given, strict=True)):
            return
        for model in self.models:
            model.scaling.check(batch)
        self._checked = tuple(map(Kept, given))

    def _check_volumes(self, batch: Batch) -> None:
        if not self.gives_stress:
            raise ValueError(DIRECT)
        if not bool(batch.pbc.all()):
            system = int((~batch.pbc.all(1)).nonzero()[0, 0])
            raise ValueError(
                f"structure {system} is {not_a_crystal(batch.pbc[system].tolist())}: it has no volume and so no "
                "stress. All three directions must be periodic"
            )

    def _up_to_date(self, batch: Batch) -> Candidates:
        if self._candidates is None or not self._candidates.hold(batch):
            self._candidates = None  # stays None if the search fails
            self._candidates = Candidates.find(batch, self.cutoff, self.skin)
            self.rebuilds += 1
        return self._candidates

    def _with_edges(self, batch: Batch, candidates: Candidates, keep: Tensor) -> Batch:
        """The batch with the candidates to ``keep`` [E], in the dtype of the models, first atoms at the origin."""
        found = candidates.batch.built_edges
        origin = batch.positions.index_select(0, batch.first_atoms.clamp(max=max(batch.num_atoms - 1, 0)))
        relative = batch.positions - origin.index_select(0, batch.system_index)
        batch = replace(batch, positions=relative.to(self.dtype), cell=batch.cell.to(self.dtype))
        if self._compiled is not None and self.device.type != "cpu":  # counting edges would make the device wait
            return replace(batch, edges=replace(found, mask=keep))
        rows = keep.nonzero()[:, 0]
        index, shift = found.index.index_select(1, rows), found.shift.index_select(0, rows)
        return replace(batch, edges=Edges(index=index, shift=shift, pairs=candidates.pairs_within(keep)))

    def _evaluate(self, number: int, batch: Batch, stress: bool) -> Evaluation:
        model, self.num_edges = self.models[number], batch.num_edges
        with few_threads(self.num_edges, self.device):
            compiled = None if self._compiled is None or stress != self.stress else self._compiled[number]
            out = model(batch, outputs=_outputs(stress)) if compiled is None else compiled(batch)
            physical = model.scaling.unscale(batch, out)
        energies = physical["energies"]
        energy = batch.sum_over_atoms(energies)
        stresses = physical["stress"].double() if stress else None
        return Evaluation(energy=energy, energies=energies, forces=physical["forces"].double(), stress=stresses)


def potential_of(given: EnergyAndForces | Model | Sequence[Model], *, stress: bool) -> EnergyAndForces:
    """A potential as it is; one of the models (files, run folders, force fields) otherwise, with ``stress``."""
    is_potential = callable(given) and not isinstance(given, ForceField)
    return given if is_potential else Potential(given, stress=stress)  # type: ignore[return-value,arg-type]


def crowding_for(potential: EnergyAndForces, structure: System | ase.Atoms) -> str:
    """:func:`denskit.data.crowding.crowding` within the potential's cutoff."""
    return crowding(structure, reach_of(potential))


def reach_of(potential: EnergyAndForces) -> float:
    """The potential's cutoff (Å); a formula has none, and gets that of a usual model."""
    return float(getattr(potential, "cutoff", REACH))


def _differentiable(batch: Batch) -> Batch:
    """The batch, with copies of tensors that were made in torch's inference mode."""
    if not isinstance(batch, Batch):
        raise TypeError(f"found {type(batch).__name__}; wanted a Batch: denskit.simulation.structures.batch_of(atoms)")
    made = batch.tensors()
    return batch.with_tensors(map(torch.clone, made)) if any(tensor.is_inference() for tensor in made) else batch


def _outputs(stress: bool) -> tuple[str, ...]:
    return ("energies", "forces", "stress") if stress else ("energies", "forces")


def _frozen(
    model: Model, device: str | torch.device | None, dtype: torch.dtype | None, execution: Execution
) -> ForceField:
    if isinstance(model, ForceField):
        frozen = copy.deepcopy(model).to(device=device, dtype=dtype)
    else:
        frozen = load_model(model, device or "cpu", dtype)
    frozen.eval().requires_grad_(False)
    frozen.execution = execution
    return frozen


def _learned_stress(model: Model) -> bool:
    """Whether a model was trained on stress, as far as it tells: a force field does not know its training."""
    if isinstance(model, ForceField):
        return bool(model.config.stress != "none")
    header = read_header(model)
    task = header["metadata"].get("run", {}).get("task", {})  # {} where imported
    return bool(header["model"].get("stress") != "none" and task.get("stress_weight") != 0)


def _committee(results: Sequence[Evaluation]) -> Evaluation:
    names = [name for name, value in vars(results[0]).items() if value is not None]
    stacked = {name: torch.stack([getattr(result, name) for result in results]) for name in names}
    means = {name: values.mean(0) for name, values in stacked.items()}
    return Evaluation(**means, energy_std=stacked["energy"].std(0), forces_std=stacked["forces"].std(0))
