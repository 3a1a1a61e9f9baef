"""The loop of molecular dynamics that all calculators of ASE are timed in, ours too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ase
import ase.units
from ase.calculators.calculator import Calculator
from ase.md.verlet import VelocityVerlet


def verlet(job: dict[str, Any], calculator: Calculator) -> Callable[[], dict[str, Any]]:
    """A step of velocity Verlet for the one structure of a job: "structures" as :func:`plain` writes them, "timestep"
    in fs.
    """
    (saved,) = job["structures"]
    atoms = atoms_of(saved)
    atoms.calc = calculator
    dynamics = VelocityVerlet(atoms, job["timestep"] * ase.units.fs)

    def step() -> dict[str, Any]:
        dynamics.run(1)
        return {}

    return step


def plain(atoms: ase.Atoms) -> dict[str, Any]:
    """A structure as plain data."""
    return {
        "numbers": atoms.numbers.tolist(),
        "positions": atoms.positions.tolist(),
        "cell": atoms.cell.array.tolist(),
        "pbc": atoms.pbc.tolist(),
        "momenta": atoms.get_momenta().tolist(),
    }


def atoms_of(saved: dict[str, Any]) -> ase.Atoms:
    """The structure again."""
    return ase.Atoms(**saved)
