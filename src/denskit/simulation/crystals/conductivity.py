"""Lattice thermal conductivity from third-order force constants.  phono3py (extra ``conductivity``) solves the Wigner
transport equation in the relaxation-time approximation, with isotope scattering, as Matbench Discovery does.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from denskit.batch import System
from denskit.reading.arrays import read_npz
from denskit.simulation.crystals.ground_state import CrystalSettings
from denskit.simulation.crystals.phonons import IMAGINARY, TEMPERATURE, displaced_forces, repeats_of, right_handed
from denskit.simulation.potential import EnergyAndForces

WORST = 2.0  # of the errors below: a conductivity that cannot be computed
SYMMETRIC = 1e-3  # Å
FREE_PATH = 1e6  # micrometre: the largest mean free path


@dataclass(frozen=True, kw_only=True)
class Conductivity:
    """Conductivity of a crystal at 300 K, and the share of each mode."""

    kappa: np.ndarray  # [6] W/(m K): xx, yy, zz, yz, xz, xy; NaN for a crystal with imaginary modes
    coherence: float  # W/(m K), part of the mean that is due to pairs of modes
    mode_kappa: np.ndarray  # [Q, M] W/(m K), mean of the directions; their sum over sum(weights) is the mean of kappa
    weights: np.ndarray  # [Q] of the irreducible points of the mesh
    frequencies: np.ndarray  # [Q, M] THz; imaginary ones are negative

    @property
    def mean(self) -> float:
        """Mean of the three directions, W/(m K)."""
        return float(self.kappa[:3].mean())

    def save(self, path: Path) -> None:
        """Write as npz."""
        np.savez_compressed(path, **vars(self))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file of :meth:`save`.  Raises FileNotFoundError, and ValueError for another file."""
        arrays = read_npz(path)
        lacking = {"kappa", "mode_kappa", "weights"} - arrays.keys()
        if lacking:
            raise ValueError(f"{path} holds no conductivity: {', '.join(sorted(lacking))} are absent")
        empty = np.zeros((0, 0))
        return cls(
            kappa=arrays["kappa"], mode_kappa=arrays["mode_kappa"], weights=arrays["weights"],
            coherence=float(arrays.get("coherence", np.nan)), frequencies=arrays.get("frequencies", empty),
        )  # fmt: skip


def conductivity(potential: EnergyAndForces, crystal: System, settings: CrystalSettings) -> Conductivity:
    """The conductivity of a relaxed crystal at 300 K.  Third order is not computed where modes are imaginary.

    Raises ModuleNotFoundError without phono3py.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calculation = _phono3py(crystal, settings)
        calculation.mesh_numbers = settings.mesh
        calculation.generate_displacements(distance=settings.triplet_displacement)
        calculation.phonon_forces = displaced_forces(potential, calculation.phonon_supercells_with_displacements)
        calculation.produce_fc2()
        calculation.init_phph_interaction()
        calculation.run_phonon_solver()
        frequencies, *_ = calculation.get_phonon_data()
        if frequencies.min() < IMAGINARY:
            nothing = np.full(6, np.nan), np.zeros((0, 0)), np.zeros(0)
            return _of(*nothing, frequencies=frequencies, coherence=np.nan)
        calculation.forces = displaced_forces(potential, calculation.supercells_with_displacements)
        calculation.produce_fc3()
        calculation.init_phph_interaction()
        calculation.run_thermal_conductivity(
            temperatures=[TEMPERATURE], is_isotope=True, transport_type="SMM19", boundary_mfp=FREE_PATH
        )
    found = calculation.thermal_conductivity
    pairs, heat = found.mode_kappa_matrix[0, 0], found.mode_heat_capacities[0]  # [Q, M, M, 6], [Q, M]
    together = heat[:, :, None] + heat[:, None, :]
    part = np.divide(2 * heat[:, :, None], together, out=np.zeros_like(together), where=together > 0)
    modes = (pairs[..., :3].mean(axis=-1) * part).sum(axis=1)
    inter = found.get_extra_kappa_output()["kappa_inter"][0, 0]
    return _of(found.kappa[0, 0], modes, found.grid_weights, frequencies=found.frequencies, coherence=inter[:3].mean())


def _of(
    kappa: np.ndarray, mode_kappa: np.ndarray, weights: np.ndarray, *, frequencies: np.ndarray, coherence: float
) -> Conductivity:
    return Conductivity(
        kappa=np.array(kappa), mode_kappa=mode_kappa, weights=np.array(weights), frequencies=np.array(frequencies),
        coherence=float(coherence),
    )  # fmt: skip


def conductivity_errors(found: Conductivity, reference: Conductivity, *, symmetric: bool = True) -> dict[str, float]:
    """Errors between 0 and 2, as Matbench Discovery defines them (Póta et al., arXiv 2408.00755).

    ``kappa_SRE``: 2 |k - k'| / (k + k') of the means.  ``kappa_SRME``: 2 sum |k_mode - k'_mode| / (k + k'), in which
    errors of modes do not cancel; 2 for a crystal with imaginary modes, and where relaxation broke the symmetry (not
    ``symmetric``).

    Raises ValueError for other meshes or modes of a symmetric crystal.
    """
    if np.isnan(reference.mean):
        raise ValueError("the reference has no conductivity: its crystal has imaginary modes")
    if np.isnan(found.mean):
        return {"kappa_SRE": WORST, "kappa_SRME": WORST}
    both = found.mean + reference.mean
    errors = {"kappa_SRE": 2 * abs(found.mean - reference.mean) / both, "kappa_SRME": WORST}
    if not symmetric:  # then the modes are others, too
        return errors
    if found.mode_kappa.shape != reference.mode_kappa.shape:
        raise ValueError(
            f"modes of {found.mode_kappa.shape} are compared with {reference.mode_kappa.shape} of the reference: the "
            "meshes or the crystals differ; --mesh gives the length that the reference was made with"
        )
    apart = np.abs(found.mode_kappa - reference.mode_kappa).sum() / reference.weights.sum()
    return {**errors, "kappa_SRME": float(2 * apart / both)}


def space_group(crystal: System) -> str:
    """The space group, to ``SYMMETRIC`` Å."""
    import spglib

    lattice = right_handed(crystal.cell)
    cell: Any = (lattice, crystal.positions @ np.linalg.inv(lattice), crystal.atomic_numbers)
    return str(spglib.get_spacegroup(cell, symprec=SYMMETRIC))


def _phono3py(crystal: System, settings: CrystalSettings) -> Any:
    try:
        from phono3py import Phono3py
        from phonopy.structure.atoms import PhonopyAtoms
    except ModuleNotFoundError:
        raise ModuleNotFoundError("thermal conductivity needs phono3py: pip install 'denskit[conductivity]'") from None
    cell = PhonopyAtoms(numbers=crystal.atomic_numbers, positions=crystal.positions, cell=right_handed(crystal.cell))
    third, second = (
        np.diag(repeats_of(crystal, height)) for height in (settings.triplet_supercell, settings.supercell)
    )
    return Phono3py(cell, third, phonon_supercell_matrix=second, primitive_matrix="auto")
