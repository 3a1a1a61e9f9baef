"""The batches that benchmarks run on: rattled copies of two molecules, with invented labels."""

from __future__ import annotations

from typing import Literal

import ase
import numpy as np
import torch
from ase.build import molecule

from denskit.batch import Batch, System, Targets
from denskit.data.base import collate

SystemName = Literal["ethanol", "aspirin"]

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


def benchmark_batch(name: SystemName, size: int, *, seed: int = 0) -> tuple[Batch, Targets]:
    """``size`` copies of a molecule, each moved by normal noise of 0.05 Å, in float64, without edges.

    Labels are normal with standard deviation 1 (eV, eV/Å): their values do not matter, that they exist does.
    """
    atoms = molecule("CH3CH2OH") if name == "ethanol" else ASPIRIN
    generator = np.random.default_rng(seed)
    systems = [_rattled(atoms, generator, index) for index in range(size)]
    return collate(systems, torch.float64)


def _rattled(atoms: ase.Atoms, generator: np.random.Generator, index: int) -> System:
    n = len(atoms)
    return System(
        positions=atoms.positions + generator.normal(scale=0.05, size=(n, 3)),
        atomic_numbers=atoms.numbers.astype(np.int64),
        cell=np.zeros((3, 3)),
        pbc=np.zeros(3, dtype=bool),
        fixed=np.zeros(n, dtype=bool),
        tags=np.zeros(n, dtype=np.int64),
        energy=float(generator.normal()),
        forces=generator.normal(size=(n, 3)),
        index=index,
    )
