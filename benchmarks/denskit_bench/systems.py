"""The structures that benchmarks run on, by name, with invented labels."""

from __future__ import annotations

import re
from dataclasses import replace

import ase
import numpy as np
import torch
from ase.build import add_adsorbate, fcc111, molecule

from denskit.batch import Batch, System, Targets
from denskit.data.base import collate
from denskit.simulation.structures import system_of

SYSTEMS = {
    "ethanol": "one molecule, 9 atoms",
    "aspirin": "one molecule, 21 atoms",
    "liquid-N": "about N atoms of ethanol in a periodic cell, at the liquid's density (liquid-500)",
    "slab": "carbon monoxide on a periodic copper slab, 82 atoms",
    "crystal": "cuprous oxide, 72 atoms, its axes turned out of those of space",
}
CELL = 4.6  # Å, of one ethanol molecule in the periodic systems: the density of the liquid
RATTLE = 0.05  # Å, of every atom of every copy
LIQUID = re.compile(r"liquid-([1-9]\d*)")
ELEMENTS = (1, 6, 8, 29)  # of all systems

ASPIRIN = ase.Atoms(  # relaxed with GFN2-xTB; Å
    "C7O3C2OH8",
    positions=[
        (2.089, -1.137, -0.095), (0.744, 0.875, -1.453), (2.590, -0.652, -1.287), (1.916, 0.349, -1.968),
        (-3.174, 1.360, 0.550), (0.904, -0.629, 0.434), (0.239, 0.394, -0.254), (-0.790, -1.017, 2.083),
        (-2.217, 0.277, -1.384), (1.214, -1.944, 2.358), (0.334, -1.185, 1.684), (-2.082, 0.800, -0.314),
        (-0.892, 0.950, 0.305), (0.793, -2.294, 3.158), (2.601, -1.923, 0.436), (0.210, 1.655, -1.974),
        (3.505, -1.059, -1.691), (2.302, 0.726, -2.903), (-4.106, 1.397, -0.005), (-3.282, 0.707, 1.414),
        (-2.897, 2.349, 0.905),
    ],
)  # fmt: skip
CUPRITE = ase.Atoms(
    "Cu4O2",
    cell=[4.27, 4.27, 4.27],
    pbc=True,
    scaled_positions=[
        (0.25, 0.25, 0.25), (0.75, 0.75, 0.25), (0.75, 0.25, 0.75), (0.25, 0.75, 0.75), (0, 0, 0), (0.5, 0.5, 0.5),
    ],
)  # fmt: skip


def structure(name: str) -> ase.Atoms:
    """One structure as it is built.  Raises ValueError, listing the known, for another name."""
    liquid = LIQUID.fullmatch(name)
    if liquid:
        atoms = molecule("CH3CH2OH")
        atoms.set_cell([CELL, CELL, CELL])
        atoms.pbc = True
        return atoms.repeat(max(2, round((int(liquid[1]) / len(atoms)) ** (1 / 3))))
    if name == "slab":
        atoms = fcc111("Cu", (4, 4, 5), vacuum=8.0, periodic=True)
        add_adsorbate(atoms, molecule("CO"), 1.9)
        atoms.pbc = True
        return atoms
    if name == "crystal":
        # published models with forces by gradient drop derivatives of bonds along the y axis: none lies there
        atoms = CUPRITE.repeat((2, 2, 3))
        atoms.rotate(20, (1, 2, 3), rotate_cell=True)
        return atoms
    if name in ("ethanol", "aspirin"):
        return molecule("CH3CH2OH") if name == "ethanol" else ASPIRIN.copy()
    known = "; ".join(f"{known} ({what})" for known, what in SYSTEMS.items())
    raise ValueError(f"no system {name!r}; known are {known}")


def structures(name: str, count: int, *, seed: int = 0) -> list[ase.Atoms]:
    """``count`` copies of a structure, every atom of each moved by normal noise of 0.05 Å."""
    generator = np.random.default_rng(seed)
    copies = []
    for _ in range(count):
        atoms = structure(name)
        atoms.positions += generator.normal(scale=RATTLE, size=(len(atoms), 3))
        copies.append(atoms)
    return copies


def labelled(name: str, count: int, *, seed: int = 0) -> list[System]:
    """The same copies with labels that are normal with standard deviation 1 (eV, eV/Å).

    The values of the labels do not matter, that they exist does.
    """
    generator = np.random.default_rng(seed + 1)
    return [
        replace(
            system_of(atoms, index), energy=float(generator.normal()), forces=generator.normal(size=(len(atoms), 3))
        )
        for index, atoms in enumerate(structures(name, count, seed=seed))
    ]


def benchmark_batch(name: str, size: int, *, seed: int = 0) -> tuple[Batch, Targets]:
    """A batch of :func:`labelled`, in float64, without edges."""
    return collate(labelled(name, size, seed=seed), torch.float64)
