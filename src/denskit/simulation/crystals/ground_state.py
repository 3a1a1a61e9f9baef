"""The relaxed crystal from which its properties are measured, and strained copies of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pydantic import Field

from denskit.batch import System
from denskit.data.periodicity import not_a_crystal
from denskit.settings import Settings
from denskit.simulation.potential import EnergyAndForces
from denskit.simulation.relaxation import RelaxationSettings, Relaxer
from denskit.simulation.relaxation.cells import CellRelaxation
from denskit.simulation.relaxation.optimizers import FIRE
from denskit.simulation.relaxation.results import Relaxed

CHANGE = 2.0  # factor of the volume, at most, between the given and the relaxed crystal


class CrystalSettings(Settings):
    """Strains, displacements and convergence of the properties of crystals."""

    fmax: float = Field(default=1e-3, gt=0)
    """Largest force (eV/Å) and, per atom, force on the cell in a relaxed crystal."""
    steps: int = Field(default=1000, ge=1)
    """Most moves of a relaxation."""
    volumes: int = Field(default=9, ge=5)
    """Volumes of the equation of state."""
    volume_range: float = Field(default=0.06, gt=0, lt=0.3)
    """Largest relative change of the volume."""
    strain: float = Field(default=0.005, gt=0, lt=0.05)
    """Strain of the elastic constants, in both directions."""
    displacement: float = Field(default=0.01, gt=0, lt=0.1)
    """Å, of an atom, for phonons."""
    supercell: float = Field(default=12.0, gt=0)
    """Å: smallest height of the supercell for phonons."""
    triplet_displacement: float = Field(default=0.03, gt=0, lt=0.1)
    """Å, of an atom, for the thermal conductivity."""
    triplet_supercell: float = Field(default=8.0, gt=0)
    """Å: smallest height of the supercell for the thermal conductivity."""
    mesh: float = Field(default=40.0, gt=0)
    """Å: length of the sampling of q for the thermal conductivity, as phono3py counts it."""


def relaxed_crystal(potential: EnergyAndForces, system: System, settings: CrystalSettings) -> System:
    """The crystal with relaxed atoms and cell.  Fixed atoms are released: properties are those of a minimum.

    Raises ValueError for a structure that is not periodic in three directions, where it does not converge, and where
    the potential does not hold it together; MemoryError where memory does not suffice.
    """
    if found := not_a_crystal(system.pbc):
        raise ValueError(f"{found}, so it has no volume; properties of crystals want three periodic directions")
    system = replace(system, fixed=np.zeros_like(system.fixed))
    (result,) = _relaxed(potential, [system], settings, CellRelaxation())
    before, after = (abs(float(np.linalg.det(cell))) / len(system) for cell in (system.cell, result.cell))
    if not 1 / CHANGE < after / before < CHANGE:
        raise ValueError(
            f"relaxation took the volume from {before:.3g} to {after:.3g} Å^3 an atom: the model does not know this "
            "crystal, or the cell of the file is far from its own"
        )
    return replace(system, positions=result.positions, cell=result.cell, energy=result.energy, forces=None, stress=None)


def strained(system: System, strain: np.ndarray) -> System:
    """The crystal under a symmetric strain [3, 3]."""
    change = np.eye(3) + strain
    return replace(system, positions=system.positions @ change, cell=system.cell @ change)


def relaxed_at_fixed_cells(
    potential: EnergyAndForces, systems: Sequence[System], settings: CrystalSettings
) -> list[Relaxed]:
    """The crystals with relaxed atoms, in one batch.  Raises as :func:`relaxed_crystal`."""
    return _relaxed(potential, systems, settings, None)


def _relaxed(
    potential: EnergyAndForces, systems: Sequence[System], settings: CrystalSettings, cell: CellRelaxation | None
) -> list[Relaxed]:
    how = RelaxationSettings(optimizer=FIRE(), fmax=settings.fmax, steps=settings.steps, cell=cell)
    results = Relaxer(potential, systems, how).run()  # doubts about given crystals were said before
    for result in results:
        if result.status == "refused":
            raise ValueError(result.message)
        if result.status == "out_of_memory":  # says nothing about the crystal
            raise MemoryError(result.message)
        if result.status != "converged":
            why = result.message or f"forces of {result.fmax:.2g} eV/Å are left after {result.moves} moves"
            raise ValueError(f"the relaxation of the crystal did not converge to {settings.fmax:g} eV/Å: {why}")
    return results
