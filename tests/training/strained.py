"""A file of small strained crystals with invented energies, forces and stresses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ase
import ase.io
import numpy as np
from ase.calculators.singlepoint import SinglePointCalculator


def crystals(path: Path, elements: Sequence[int], count: int) -> Path:
    """Write ``count`` crystals of three atoms of the first two ``elements`` (atomic numbers) to ``path``."""
    generator, frames = np.random.default_rng(0), []
    places = np.array([[0.0, 0.1, 0.0], [1.7, 1.6, 1.5], [0.2, 1.6, 1.4]])
    for _ in range(count):
        cell = 3.4 * np.eye(3) + generator.normal(scale=0.2, size=(3, 3))
        positions = places + generator.normal(scale=0.1, size=(3, 3))
        atoms = ase.Atoms([elements[0], elements[1], elements[0]], positions, cell=cell, pbc=True)
        energy, forces = -20.0 + generator.normal(), generator.normal(size=(3, 3))
        stress = generator.normal(scale=0.01, size=6)
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces, stress=stress)
        frames.append(atoms)
    ase.io.write(path, frames)
    return path
