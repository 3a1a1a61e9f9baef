"""Lattice thermal conductivity from third-order force constants.  phono3py (extra ``conductivity``) solves the Wigner
transport equation in the relaxation-time approximation, with isotope scattering, as Matbench Discovery does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from denskit.batch import System
from denskit.data.periodicity import not_a_crystal
from denskit.files import atomic_write
from denskit.reading.arrays import read_npz
from denskit.simulation.crystals.ground_state import CrystalSettings
from denskit.simulation.crystals.phonons import (
    IMAGINARY,
    TEMPERATURE,
    cell_for_spglib,
    cell_of,
    displaced_forces,
    repeats_of,
    spglib_error,
)
from denskit.simulation.potential import EnergyAndForces

NO_REFERENCE = "the reference has no conductivity: its crystal has imaginary modes"
WORST = 2.0  # of the errors below: a conductivity that cannot be computed
SYMMETRIC = 1e-3  # Å
FREE_PATH = 1e6  # micrometre: the largest mean free path
Tell = Callable[[int, int], None]  # displaced supercells that are done, all of them


@dataclass(frozen=True, kw_only=True)
class Conductivity:
    """Conductivity of a crystal at 300 K, and the share of each mode."""

    kappa: np.ndarray  # [6] W/(m K): xx, yy, zz, yz, xz, xy; NaN for a crystal with imaginary modes
    coherence: float  # W/(m K), part of the mean that is due to pairs of modes
    mode_kappa: np.ndarray  # [Q, M] W/(m K), mean of the directions; their sum over sum(weights) is the mean of kappa
    weights: np.ndarray  # [Q] of the irreducible points of the mesh
    frequencies: np.ndarray  # [Q, M] THz; imaginary ones are negative
    mesh: np.ndarray | None = None  # [3] points of q along the axes, or [3, 3] of a generalized grid; None: not known
    repeats: np.ndarray | None = None  # [2, 3] of the cell, in supercells of second and third order; None: not known

    @property
    def mean(self) -> float:
        """Mean of the three directions, W/(m K)."""
        return float(self.kappa[:3].mean())

    def save(self, path: Path) -> None:
        """Write as npz."""
        with atomic_write(path) as temporary:
            np.savez_compressed(temporary, **{name: value for name, value in vars(self).items() if value is not None})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file of :meth:`save`.  Raises FileNotFoundError, and ValueError for another file."""
        arrays = read_npz(path)
        lacking = {"kappa", "mode_kappa", "weights"} - arrays.keys()
        if lacking:
            raise ValueError(f"{path} holds no conductivity: {', '.join(sorted(lacking))} are absent")
        mesh, repeats = (_counts(arrays, name, path) for name in ("mesh", "repeats"))
        empty = np.zeros((0, 0))
        return cls(
            kappa=arrays["kappa"], mode_kappa=arrays["mode_kappa"], weights=arrays["weights"],
            coherence=float(arrays.get("coherence", np.nan)), frequencies=arrays.get("frequencies", empty),
            mesh=mesh, repeats=repeats,
        )  # fmt: skip


def _counts(arrays: dict[str, np.ndarray], name: str, path: Path) -> np.ndarray | None:
    """Whole numbers of a file; of a generalized grid some are 0.  Raises ValueError for others."""
    if name not in arrays:
        return None
    given, shapes = arrays[name], {"mesh": ((3,), (3, 3)), "repeats": ((2, 3),)}[name]
    smallest = -np.inf if given.shape == (3, 3) else 1
    if given.shape not in shapes or not (np.equal(given, np.rint(given)) & (given >= smallest)).all():
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f"{path}: {name} is {given.tolist()}; wanted are whole numbers above 0 of shape {wanted}")
    counts: np.ndarray = given.astype(np.int64)
    return counts


def conductivity(
    potential: EnergyAndForces,
    crystal: System,
    settings: CrystalSettings,
    *,
    reference: Conductivity | None = None,
    masses: np.ndarray | None = None,
    tell: Tell = lambda done, total: None,
) -> Conductivity:
    """The conductivity of a relaxed crystal at 300 K.  Third order is not computed where modes are imaginary.

    Mesh and supercells are those of the ``reference`` where it knows them and the settings do not set them: a crystal
    that relaxed to other lengths has the same modes then.  ``masses`` [n] (amu) are those of the elements by default;
    the scattering by isotopes is that of natural elements.  ``tell`` is called after each displaced supercell.

    Raises ModuleNotFoundError without phono3py, ValueError for several masses of one element.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calculation = _phono3py(crystal, settings, reference, masses)
        calculation.generate_displacements(distance=settings.triplet_displacement)
        second, third = calculation.phonon_supercells_with_displacements, calculation.supercells_with_displacements
        total = len(second) + len(third)
        calculation.phonon_forces = displaced_forces(potential, _told(second, 0, total, tell))
        calculation.produce_fc2()
        calculation.init_phph_interaction()
        calculation.run_phonon_solver()
        frequencies, *_ = calculation.get_phonon_data()
        if frequencies.min() < IMAGINARY:
            nothing = np.full(6, np.nan), np.zeros((0, 0)), np.zeros(0)
            return _of(calculation, *nothing, frequencies=frequencies, coherence=np.nan)
        calculation.forces = displaced_forces(potential, _told(third, len(second), total, tell))
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
    numbers: dict[str, Any] = {"frequencies": found.frequencies, "coherence": inter[:3].mean()}
    return _of(calculation, found.kappa[0, 0], modes, found.grid_weights, **numbers)


def _told(cells: Sequence[Any], before: int, total: int, tell: Tell) -> Iterator[Any]:
    for place, cell in enumerate(cells, 1):
        yield cell
        tell(before + place, total)


def _of(
    calculation: Any, kappa: np.ndarray, mode_kappa: np.ndarray, weights: np.ndarray, *,
    frequencies: np.ndarray, coherence: float,
) -> Conductivity:  # fmt: skip
    generalized = calculation.grid.grid_matrix  # where three numbers would break the symmetry
    cells = calculation.phonon_supercell_matrix, calculation.supercell_matrix
    return Conductivity(
        kappa=np.array(kappa), mode_kappa=mode_kappa, weights=np.array(weights), frequencies=np.array(frequencies),
        coherence=float(coherence), mesh=np.array(calculation.mesh_numbers if generalized is None else generalized),
        repeats=np.array([np.diag(cell) for cell in cells]),
    )  # fmt: skip


def require_comparable(reference: Conductivity, crystal: System, settings: CrystalSettings) -> None:
    """Raises ValueError where a reference has no conductivity, does not know its mesh, or is of another crystal, and
    ModuleNotFoundError without phono3py.  To be asked before a long calculation."""
    if told := not_a_crystal(crystal.pbc):
        raise ValueError(f"the reference is of a crystal, and the structure is none: {told}")
    if np.isnan(reference.mean):
        raise ValueError(NO_REFERENCE)
    if reference.mesh is None and "mesh" not in settings.model_fields_set:
        raise ValueError(
            "the reference does not say its mesh; write it again, by denskit crystal --conductivity or by "
            "Conductivity(..., mesh=[19, 19, 19]).save"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calculation = _phono3py(crystal, settings, reference)
        from phonopy.phonon.grid import get_ir_grid_points

        points, *_ = get_ir_grid_points(calculation.grid)
    wanted, found = (len(points), 3 * len(calculation.primitive)), reference.mode_kappa.shape
    mesh = " x ".join(map(str, calculation.mesh_numbers))
    if found != wanted:
        raise ValueError(
            f"the reference is of another crystal or mesh: it has modes of {found} (irreducible points of q, modes); "
            f"the crystal has {wanted} for a mesh of {mesh}"
        )
    if (total := int(reference.weights.sum())) != (all_points := int(np.prod(calculation.mesh_numbers))):
        raise ValueError(f"the reference has {total} points of q, and its mesh of {mesh} has {all_points}")


def conductivity_errors(found: Conductivity, reference: Conductivity, *, symmetric: bool = True) -> dict[str, float]:
    """Errors between 0 and 2, as Matbench Discovery defines them (Póta et al., arXiv 2408.00755).

    ``kappa_SRE``: 2 |k - k'| / (k + k') of the means.  ``kappa_SRME``: 2 sum |k_mode - k'_mode| / (k + k'), in which
    errors of modes do not cancel; 2 for a crystal with imaginary modes, and where relaxation broke the symmetry (not
    ``symmetric``).

    Raises ValueError for other meshes or modes of a symmetric crystal.
    """
    if np.isnan(reference.mean):
        raise ValueError(NO_REFERENCE)
    if np.isnan(found.mean):
        return {"kappa_SRE": WORST, "kappa_SRME": WORST}
    both = found.mean + reference.mean
    errors = {"kappa_SRE": 2 * abs(found.mean - reference.mean) / both, "kappa_SRME": WORST}
    if not symmetric:  # then the modes are others, too
        return errors
    if found.mode_kappa.shape != reference.mode_kappa.shape:
        raise ValueError(
            f"modes of {found.mode_kappa.shape} are compared with {reference.mode_kappa.shape} of the reference: the "
            "meshes or the crystals differ; without --mesh that of the reference is taken, where its file says it"
        )
    apart = np.abs(found.mode_kappa - reference.mode_kappa).sum() / reference.weights.sum()
    return {**errors, "kappa_SRME": float(2 * apart / both)}


def space_group(crystal: System) -> str:
    """The space group, to ``SYMMETRIC`` Å; "None" where spglib finds none."""
    import spglib

    try:
        return str(spglib.get_spacegroup(cell_for_spglib(crystal), symprec=SYMMETRIC))
    except spglib_error():
        return "None"


def phono3py_class() -> Any:
    """``phono3py.Phono3py``.  Raises ModuleNotFoundError without phono3py."""
    try:
        from phono3py import Phono3py
    except ModuleNotFoundError:
        raise ModuleNotFoundError("thermal conductivity needs phono3py: pip install 'denskit[conductivity]'") from None
    return Phono3py


def _phono3py(
    crystal: System, settings: CrystalSettings, reference: Conductivity | None, masses: np.ndarray | None = None
) -> Any:
    """The calculation with its mesh and supercells."""
    heights = {"supercell": settings.supercell, "triplet_supercell": settings.triplet_supercell}
    repeats, mesh = [repeats_of(crystal, height) for height in heights.values()], None
    if reference is not None:
        if reference.repeats is not None and not heights.keys() & settings.model_fields_set:
            repeats = list(reference.repeats)
        mesh = reference.mesh if "mesh" not in settings.model_fields_set else None
    second, third = map(np.diag, repeats)
    calculation = phono3py_class()(
        cell_of(crystal, masses), third, phonon_supercell_matrix=second, primitive_matrix="auto"
    )
    calculation.mesh_numbers = settings.mesh if mesh is None else mesh
    return calculation
