"""Phonons by finite displacements.  phonopy (extra ``crystals``) chooses the displacements and solves the rest."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ase
import numpy as np
from ase.data import chemical_symbols

from denskit.batch import System
from denskit.simulation.crystals.ground_state import CrystalSettings
from denskit.simulation.potential import EnergyAndForces
from denskit.simulation.structures import batch_of

if TYPE_CHECKING:
    from phonopy import Phonopy

MESH = 60.0  # Å: lengths of the sampling of q, as phonopy counts them
IMAGINARY = -0.05  # THz: below it a mode is unstable; acoustic modes near Gamma scatter about 0
RESTING = 1e-3  # THz: modes below it are translations at Gamma, of frequencies 0 but for rounding
TEMPERATURE = 300.0  # K


@dataclass(frozen=True, kw_only=True)
class Phonons:
    """Densities of states and thermal properties of a crystal."""

    frequencies: np.ndarray  # [F] THz; imaginary ones are negative
    density: np.ndarray  # [F] states per THz and primitive cell
    smallest: float  # THz, on the mesh
    largest: float  # THz
    heat_capacity: float  # J/K/mol of primitive cells, 300 K
    free_energy: float  # kJ/mol of primitive cells, 300 K, of the harmonic vibrations
    atoms: int  # of the supercell
    phonopy: Phonopy  # for bands, Grueneisen parameters, ... by phonopy itself

    @property
    def stable(self) -> bool:
        """Whether no mode is imaginary."""
        return self.smallest > IMAGINARY


def phonons(
    potential: EnergyAndForces, crystal: System, settings: CrystalSettings, *, masses: np.ndarray | None = None
) -> Phonons:
    """Phonons of a relaxed crystal; ``masses`` [n] (amu), by default the standard ones of the elements.

    Raises ModuleNotFoundError without phonopy, ValueError for several masses of one element.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # phonopy 4 tells of its new defaults
        calculation = _phonopy(crystal, settings, masses)
        calculation.generate_displacements(distance=settings.displacement)
        calculation.forces = displaced_forces(potential, calculation.supercells_with_displacements)
        calculation.produce_force_constants()
        calculation.run_mesh(MESH)
        calculation.run_total_dos()
        heat_capacity, free_energy = thermal_properties(calculation)
    sampled, density = calculation.mesh, calculation.total_dos
    return Phonons(
        frequencies=density.frequency_points,
        density=density.dos,
        smallest=float(sampled.frequencies.min()),
        largest=float(sampled.frequencies.max()),
        heat_capacity=heat_capacity,
        free_energy=free_energy,
        atoms=len(calculation.supercell),
        phonopy=calculation,
    )


def thermal_properties(calculation: Any) -> tuple[float, float]:
    """Heat capacity (J/K/mol) and free energy (kJ/mol) of primitive cells at 300 K, of the modes on phonopy's mesh.

    Without a limit above 0 the sign of rounding would decide whether translations at Gamma count as soft vibrations.
    """
    calculation.run_thermal_properties(temperatures=[TEMPERATURE], cutoff_frequency=RESTING)
    found = calculation.thermal_properties
    return float(found.heat_capacity[0]), float(found.free_energy[0])


def phonopy_class() -> Any:
    """``phonopy.Phonopy``.  Raises ModuleNotFoundError without phonopy."""
    try:
        from phonopy import Phonopy
    except ModuleNotFoundError:
        raise ModuleNotFoundError("phonons need phonopy: pip install 'denskit[crystals]'") from None
    return Phonopy


def _phonopy(crystal: System, settings: CrystalSettings, masses: np.ndarray | None) -> Any:
    repeats = repeats_of(crystal, settings.supercell)
    return phonopy_class()(cell_of(crystal, masses), np.diag(repeats), primitive_matrix="auto")


def cell_of(crystal: System, masses: np.ndarray | None) -> Any:
    """The crystal for phonopy, with ``masses`` [n] (amu), or None: the standard ones.

    Raises ValueError for several masses of one element: phonopy's symmetry takes these atoms as alike.
    """
    from phonopy.structure.atoms import PhonopyAtoms

    for number in np.unique(crystal.atomic_numbers) if masses is not None else ():
        own = np.unique(masses[crystal.atomic_numbers == number])  # type: ignore[index]
        if not np.allclose(own, own[0]):
            raise ValueError(
                f"its atoms of {chemical_symbols[number]} have masses from {own[0]:g} to {own[-1]:g} amu, and phonons "
                "are computed with one mass for each element; give these atoms their mean mass"
            )
    return PhonopyAtoms(
        numbers=crystal.atomic_numbers, positions=crystal.positions, cell=right_handed(crystal.cell), masses=masses
    )


def right_handed(cell: np.ndarray) -> np.ndarray:
    """Lattice vectors [3, 3] of the same lattice as phonopy and spglib want them."""
    return cell * np.sign(np.linalg.det(cell))


def cell_for_spglib(crystal: System) -> Any:
    """Lattice vectors, fractional positions and atomic numbers."""
    lattice = right_handed(crystal.cell)
    return lattice, crystal.positions @ np.linalg.inv(lattice), crystal.atomic_numbers


def spglib_error() -> type[Exception]:
    """What spglib raises where it finds no symmetry; older versions, and newer ones before an import of phonopy, give
    None instead."""
    try:
        import spglib
    except ModuleNotFoundError:
        return RuntimeError
    error: type[Exception] = getattr(spglib, "SpglibError", RuntimeError)
    return error


def repeats_of(crystal: System, height: float) -> np.ndarray:
    """Repetitions [3] of the cell that make its heights at least ``height`` (Å)."""
    heights = 1 / np.linalg.norm(np.linalg.inv(crystal.cell), axis=0)
    repeats: np.ndarray = np.ceil(height / heights - 1e-6).astype(int)
    return repeats


def displaced_forces(potential: EnergyAndForces, cells: Iterable[Any]) -> np.ndarray:
    """Forces [D, n, 3] of displaced supercells, eV/Å."""
    return np.array([_forces(potential, cell) for cell in cells])


def _forces(potential: EnergyAndForces, cell: Any) -> np.ndarray:
    """Forces [n, 3] of a displaced supercell, eV/Å."""
    atoms = ase.Atoms(cell.numbers, cell.positions, cell=cell.cell, pbc=True)
    forces: np.ndarray = potential(batch_of([atoms])).forces.cpu().numpy()
    return forces
