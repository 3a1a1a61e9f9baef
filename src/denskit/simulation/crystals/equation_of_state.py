"""Energy against volume, and the bulk modulus."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from ase.eos import EquationOfState as Fit

from denskit.batch import System
from denskit.simulation.crystals.ground_state import CrystalSettings, relaxed_at_fixed_cells, strained
from denskit.simulation.potential import EnergyAndForces
from denskit.units import GPA

FLAT = 1e-9  # eV an atom


@dataclass(frozen=True, kw_only=True)
class EquationOfState:
    """A Birch-Murnaghan fit; volumes and energies per atom."""

    volumes: np.ndarray  # [V] Å^3
    energies: np.ndarray  # [V] eV
    volume: float  # Å^3, of the minimum
    energy: float  # eV
    bulk_modulus: float  # GPa
    derivative: float  # of the bulk modulus by the pressure
    residual: float  # eV, root mean square of the fit


def equation_of_state(potential: EnergyAndForces, crystal: System, settings: CrystalSettings) -> EquationOfState:
    """Energies of a relaxed crystal, scaled to several volumes, with relaxed atoms.

    Raises ValueError where atoms do not relax, or no minimum lies between the volumes.
    """
    factors = 1 + settings.volume_range * np.linspace(-1, 1, settings.volumes)
    scaled = [strained(crystal, (factor ** (1 / 3) - 1) * np.eye(3)) for factor in factors]
    energies = np.array([result.energy for result in relaxed_at_fixed_cells(potential, scaled, settings)])
    n_atoms = len(crystal)
    volumes = factors * abs(np.linalg.det(crystal.cell)) / n_atoms
    energies = energies / n_atoms
    if np.ptp(energies) < FLAT:
        raise ValueError("the energy does not change with the volume: no atom has a neighbour within the cutoff")
    fit = Fit(volumes, energies, eos="birchmurnaghan")
    try:
        volume, energy, modulus = fit.fit(warn=False)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"the energies at {settings.volumes} volumes have no minimum: {error}") from None
    if modulus <= 0:
        raise ValueError(
            f"the energy has no minimum but a maximum, at {volume:.3g} Å^3 an atom: the potential does not hold there"
        )
    if not volumes[0] < volume < volumes[-1]:
        raise ValueError(
            f"the minimum of the energy at {volume:.3g} Å^3 an atom lies outside the volumes {volumes[0]:.3g} to "
            f"{volumes[-1]:.3g}: the potential is not smooth there, or the crystal was not relaxed"
        )
    left = energies - fit.func(volumes, *fit.eos_parameters)
    return EquationOfState(
        volumes=volumes,
        energies=energies,
        volume=float(volume),
        energy=float(energy),
        bulk_modulus=float(modulus / GPA),
        derivative=float(fit.eos_parameters[2]),
        residual=float(np.sqrt((left**2).mean())),
    )
