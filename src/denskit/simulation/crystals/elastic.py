"""Elastic constants from the stress of strained cells, with relaxed atoms."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from denskit.batch import System
from denskit.simulation.crystals.conductivity import SYMMETRIC
from denskit.simulation.crystals.ground_state import CrystalSettings, relaxed_at_fixed_cells, strained
from denskit.simulation.crystals.phonons import cell_for_spglib, spglib_error
from denskit.simulation.potential import EnergyAndForces
from denskit.units import GPA

FIRST_CUBIC = 195  # number of the space group
LOOSE = 0.1  # Å: farther from their sites are no atoms that a relaxation left before its end
_PLACES = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))  # Voigt's order: xx yy zz yz xz xy


@dataclass(frozen=True, kw_only=True)
class Elasticity:
    """Elastic constants and Hill's averages over orientations (Proc. Phys. Soc. A 65, 349, 1952); all in GPa.

    The averages are None where the crystal is not stable: there is no compliance.
    """

    constants: np.ndarray  # [6, 6], Voigt's order xx yy zz yz xz xy, symmetric
    bulk_modulus: float | None
    shear_modulus: float | None
    youngs_modulus: float | None
    poisson_ratio: float | None
    stable: bool  # all eigenvalues are positive (Born)
    asymmetry: float  # largest difference of C_ij and C_ji before averaging: noise of the forces, lack of relaxation

    @classmethod
    def of(cls, measured: np.ndarray) -> Elasticity:
        """From measured constants [6, 6].  Raises ValueError where they are zero."""
        if not measured.any():
            raise ValueError("all elastic constants are zero: no atom has a neighbour within the cutoff")
        constants = (measured + measured.T) / 2
        stable = bool(np.linalg.eigvalsh(constants)[0] > 0)
        bulk, shear, youngs, poisson = _hill(constants) if stable else (None, None, None, None)
        return cls(
            constants=constants,
            bulk_modulus=bulk,
            shear_modulus=shear,
            youngs_modulus=youngs,
            poisson_ratio=poisson,
            stable=stable,
            asymmetry=float(np.abs(measured - measured.T).max()),
        )


def elastic_constants(potential: EnergyAndForces, crystal: System, settings: CrystalSettings) -> Elasticity:
    """Elastic constants of a relaxed crystal, by central differences of the stress.

    Raises ValueError where the potential has no stress, or atoms do not relax.
    """
    if not potential.stress:
        raise ValueError("elastic constants are derivatives of the stress, and this potential gives none")
    systems = [strained(crystal, sign * settings.strain * _unit(place)) for place in range(6) for sign in (1, -1)]
    stresses = []
    for result in relaxed_at_fixed_cells(potential, systems, settings):
        assert result.stress is not None
        stresses.append([result.stress[i, j] for i, j in _PLACES])
    up, down = np.array(stresses).reshape(6, 2, 6).transpose(1, 0, 2)
    return Elasticity.of((up - down) / (2 * settings.strain) / GPA)


def cubic_constants(constants: np.ndarray, crystal: System) -> tuple[float, float, float] | None:
    """C11, C12 and C44 of constants [6, 6] in the axes of the conventional cell, to which tables refer.

    None for a crystal that is not cubic, and without spglib (extra ``crystals``).
    """
    found = _symmetry(crystal, SYMMETRIC)
    if found is None or found.number < FIRST_CUBIC:
        return None
    tensor = np.zeros((3, 3, 3, 3))
    for (row, (a, b)), (column, (c, d)) in product(enumerate(_PLACES), repeat=2):
        tensor[[a, a, b, b], [b, b, a, a], [c, d, c, d], [d, c, d, c]] = constants[row, column]
    turn = found.std_rotation_matrix  # from the axes of the file to those of the conventional cell
    tensor = np.einsum("ai,bj,ck,dl,ijkl->abcd", turn, turn, turn, turn, tensor)
    first, second = (0, 1, 2), (1, 2, 0)
    equal = (first, first, first, first), (first, first, second, second), (first, second, first, second)
    c11, c12, c44 = (float(tensor[places].mean()) for places in equal)
    return c11, c12, c44


def nearly_cubic(crystal: System) -> str:
    """The space groups of a crystal that is cubic to ``LOOSE`` Å and not to ``SYMMETRIC`` Å; else empty, and without
    spglib."""
    strict, loose = (_symmetry(crystal, tolerance) for tolerance in (SYMMETRIC, LOOSE))
    if strict is None or loose is None or not strict.number < FIRST_CUBIC <= loose.number:
        return ""
    groups = ((strict, SYMMETRIC), (loose, LOOSE))
    return " and ".join(f"{found.international} ({found.number}) to {to:g} Å" for found, to in groups)


def _symmetry(crystal: System, tolerance: float) -> Any:
    """The symmetry of a crystal to ``tolerance`` Å, as spglib gives it; None where it finds none or is absent."""
    try:
        import spglib
    except ModuleNotFoundError:
        return None
    try:
        return spglib.get_symmetry_dataset(cell_for_spglib(crystal), symprec=tolerance)
    except spglib_error():
        return None


def _unit(place: int) -> np.ndarray:
    """A strain [3, 3] of 1 in one component of Voigt; a shear of 1 has 1/2 off the diagonal twice."""
    strain = np.zeros((3, 3))
    i, j = _PLACES[place]
    strain[i, j] += 0.5
    strain[j, i] += 0.5
    return strain


def _hill(constants: np.ndarray) -> tuple[float, float, float, float]:
    """Bulk, shear and Young's modulus and Poisson's ratio, from elastic constants [6, 6]."""
    ways = _voigt(constants), _reuss(np.linalg.inv(constants))
    bulk, shear = ((one + other) / 2 for one, other in zip(*ways, strict=True))
    return bulk, shear, 9 * bulk * shear / (3 * bulk + shear), (3 * bulk - 2 * shear) / (6 * bulk + 2 * shear)


def _voigt(c: np.ndarray) -> tuple[float, float]:
    """Bulk and shear modulus of Voigt's average, from elastic constants [6, 6]."""
    diagonal, off, shear = np.trace(c[:3, :3]), c[0, 1] + c[0, 2] + c[1, 2], np.trace(c[3:, 3:])
    return float((diagonal + 2 * off) / 9), float((diagonal - off + 3 * shear) / 15)


def _reuss(s: np.ndarray) -> tuple[float, float]:
    """Bulk and shear modulus of Reuss's average, from compliances [6, 6]."""
    diagonal, off, shear = np.trace(s[:3, :3]), s[0, 1] + s[0, 2] + s[1, 2], np.trace(s[3:, 3:])
    return float(1 / (diagonal + 2 * off)), float(15 / (4 * diagonal - 4 * off + 3 * shear))
