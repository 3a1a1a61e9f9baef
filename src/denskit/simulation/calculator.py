"""A trained force field as an ASE calculator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ase
import torch
from ase.calculators.calculator import Calculator, PropertyNotImplementedError, all_changes, compare_atoms
from ase.stress import full_3x3_to_voigt_6_stress

from denskit.batch import Batch
from denskit.data.periodicity import not_a_crystal
from denskit.models.execution import KernelName
from denskit.models.model_file import Model
from denskit.runtime.device import DType
from denskit.runtime.warning import warn
from denskit.simulation.potential import DIRECT, Evaluation, Potential, crowding_for
from denskit.simulation.structures import batch_of, system_of

MAGNETIC = ("initial_charges", "initial_magmoms")  # a force field sees neither
_OF_ASE = ("restart", "label", "atoms", "directory")


class DenskitCalculator(Calculator):
    """Energy, free_energy (the same), energies, forces, and stress of structures periodic in three directions.

    Results are those of :meth:`ForceField.predict`.  Several models give their mean; ``results`` then also has
    ``energy_std`` (eV) and ``forces_std`` (eV/Å), the standard deviations over the models.

    Args:
        model: a model file or run folder, a force field, or several of either.
        device, dtype, skin, compile, kernels, edge_chunk: see :class:`Potential`; calls with stress are not compiled.

    Raises:
        FileNotFoundError: No such model file.
        ValueError: Not a model file, another dtype, models that do not go together.
    """

    of_model = True  # results are predictions, not labels
    implemented_properties = ["energy", "free_energy", "energies", "forces", "stress"]  # noqa: RUF012 (as in ASE)

    def __init__(
        self,
        model: Model | Sequence[Model],
        *,
        device: str | torch.device = "cpu",
        dtype: DType = None,
        skin: float = 0.5,
        compile: bool = False,
        kernels: KernelName = "auto",
        edge_chunk: int | None = None,
        **kwargs: Any,
    ) -> None:
        if unknown := kwargs.keys() - _OF_ASE:
            given = ", ".join(sorted(unknown))
            raise TypeError(f"DenskitCalculator has no argument {given}; it has model, device, dtype, skin, compile, "
                            f"kernels, edge_chunk, and ASE's {', '.join(_OF_ASE)}")  # fmt: skip
        super().__init__(**kwargs)
        self._potential = Potential(
            model, device=device, dtype=dtype, skin=skin, compile=compile, kernels=kernels,
            edge_chunk=edge_chunk,
        )  # fmt: skip
        self._stress_doubted = False  # whether a warning of it was given
        self._kept: ase.Atoms | None = None  # the atoms of the batch
        self._batch: Batch | None = None

    def get_property(self, name: str, atoms: ase.Atoms | None = None, allow_calculation: bool = True) -> Any:
        """A result for these atoms, as in ASE; threads that share the calculator take turns."""
        with self._potential.lock:  # else the results may be those of another thread's atoms
            return super().get_property(name, atoms, allow_calculation)

    def calculate(
        self,
        atoms: ase.Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Compute ``results``; ASE calls this when the atoms have changed.

        Raises PropertyNotImplementedError for the stress of structures that are not periodic in three directions and
        of models with direct forces; ValueError for unknown elements and structures that have exploded.
        """
        super().calculate(atoms, list(properties), list(system_changes))
        if not isinstance(self.atoms, ase.Atoms):
            raise ValueError("the calculator has no atoms yet: atoms.calc = calculator; atoms.get_potential_energy()")
        stress = "stress" in properties
        if stress:
            self._require_stress(self.atoms)
        # without stress, unless it is asked for
        self.results = _results(self._potential(self._batch_of(self.atoms), stress=stress))

    def _require_stress(self, atoms: ase.Atoms) -> None:
        if not self._potential.gives_stress:
            raise PropertyNotImplementedError(DIRECT)
        if not atoms.pbc.all():
            raise PropertyNotImplementedError(
                f"stress: the structure is {not_a_crystal(atoms.pbc)}, so it has no volume; all three "
                "directions must be periodic"
            )
        if not self._potential.learned_stress and not self._stress_doubted:
            self._stress_doubted = True
            warn("this model was not trained on stress: its stress is a derivative of the energy alone")

    def _batch_of(self, atoms: ase.Atoms) -> Batch:
        """The batch with these positions; the other tensors are kept while nothing else changes."""
        if self._kept is None or compare_atoms(self._kept, atoms, excluded_properties={"positions", *MAGNETIC}):
            self._kept = None  # what follows may raise
            free = atoms.copy()
            free.set_constraint()  # ASE applies constraints itself
            if cost := crowding_for(self._potential, free):
                warn(cost)
            self._potential.check_structure(system_of(free))
            self._batch = batch_of([free], self._potential.device)
            self._kept = free
        assert self._batch is not None
        positions = torch.from_numpy(atoms.positions.copy()).to(self._potential.device)
        return replace(self._batch, positions=positions)


def _results(found: Evaluation) -> dict[str, Any]:
    energy = float(found.energy[0])
    results: dict[str, Any] = {
        "energy": energy,
        "free_energy": energy,
        "energies": found.energies.cpu().numpy(),
        "forces": found.forces.cpu().numpy(),
    }
    if found.stress is not None:
        results["stress"] = full_3x3_to_voigt_6_stress(found.stress[0].cpu().numpy())
    if found.energy_std is not None and found.forces_std is not None:
        results["energy_std"] = float(found.energy_std[0])
        results["forces_std"] = found.forces_std.cpu().numpy()
    return results
