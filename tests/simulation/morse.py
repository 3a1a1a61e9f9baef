"""A potential with a formula: Morse pairs with a smooth end, in any cell; also as a calculator for ASE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import ase
import numpy as np
import torch
from ase.calculators.calculator import Calculator, all_changes
from ase.stress import full_3x3_to_voigt_6_stress
from torch import Tensor

from denskit.batch import Batch, System
from denskit.geometry.neighbors import build_neighbors
from denskit.simulation.neighbor_list import unusable
from denskit.simulation.potential import Evaluation
from denskit.simulation.structures import batch_of

CUTOFF = 4.0  # Å


class Morse:
    """E = sum over pairs of depth ((1 - exp(-2 (r - r0)))^2 - 1) (1 - r^2/rc^2)^3; knows elements up to 80."""

    device = torch.device("cpu")

    def __init__(self, depth: float = 0.3, r0: float = 2.0, *, stress: bool = False) -> None:
        self.depth = depth
        self.r0 = r0
        self.stress = stress
        self.calls: list[int] = []  # atoms of every evaluated batch

    def check_structure(self, system: System) -> None:
        if system.atomic_numbers.max() > 80:
            raise ValueError(f"{ase.data.chemical_symbols[system.atomic_numbers.max()]} is not known")

    def broken(self, batch: Batch) -> Tensor:
        return unusable(batch, CUTOFF)

    def __call__(self, batch: Batch) -> Evaluation:
        self.calls.append(batch.num_atoms)
        positions = batch.positions.detach().requires_grad_()
        strain = torch.zeros_like(batch.cell).requires_grad_()
        symmetric = (strain + strain.mT) / 2
        found = build_neighbors(batch, CUTOFF)
        moved = replace(
            found,
            positions=positions + torch.einsum("ni,nij->nj", positions, symmetric[batch.system_index]),
            cell=batch.cell + batch.cell @ symmetric,
        )
        squared = moved.edge_vectors().square().sum(-1)
        pair = self.depth * ((1 - torch.exp(-2 * (squared.sqrt() - self.r0))) ** 2 - 1)
        pair = pair * (1 - squared / CUTOFF**2).clamp(min=0) ** 3 / 2
        energies = torch.zeros(batch.num_atoms, dtype=torch.float64).index_add(0, found.built_edges.index[1], pair)
        energy = torch.zeros(batch.num_systems, dtype=torch.float64).index_add(0, batch.system_index, energies)
        gradient, virial = torch.autograd.grad(energy.sum(), [positions, strain])
        volume = batch.cell.det().abs()
        return Evaluation(
            energy=energy.detach(),
            energies=energies.detach(),
            forces=-gradient,
            stress=virial / volume[:, None, None] if self.stress else None,
        )


class MorseCalculator(Calculator):
    """The same for ASE."""

    implemented_properties: ClassVar[list[str]] = ["energy", "free_energy", "forces", "stress"]

    def __init__(self, potential: Morse) -> None:
        super().__init__()
        self.potential = potential

    def calculate(self, atoms: Any = None, properties: Any = ("energy",), system_changes: Any = all_changes) -> None:
        super().calculate(atoms, properties, system_changes)
        evaluation = self.potential(batch_of([atoms]))
        energy = float(evaluation.energy)
        self.results = {"energy": energy, "free_energy": energy, "forces": evaluation.forces.numpy()}
        if evaluation.stress is not None:
            self.results["stress"] = full_3x3_to_voigt_6_stress(evaluation.stress[0].numpy())


def cluster(n: int, seed: int) -> ase.Atoms:
    """Atoms in a loose heap, not too near each other; the last one is fixed."""
    generator = np.random.default_rng(seed)
    places: list[np.ndarray] = []
    while len(places) < n:
        place = generator.uniform(0, 1.6 * n ** (1 / 3) + 1, 3)
        if all(np.linalg.norm(place - other) > 1.4 for other in places):
            places.append(place)
    return ase.Atoms("Cu" * n, places, constraint=ase.constraints.FixAtoms([n - 1]))


def system_of(atoms: ase.Atoms) -> System:
    fixed = np.zeros(len(atoms), dtype=bool)
    for constraint in atoms.constraints:
        fixed[constraint.index] = True
    return System(
        positions=atoms.positions.copy(),
        atomic_numbers=atoms.numbers.astype(np.int64),
        cell=np.array(atoms.cell),
        pbc=np.array(atoms.pbc),
        fixed=fixed,
        tags=atoms.get_tags().astype(np.int64),
    )
