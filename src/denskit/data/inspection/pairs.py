"""Pairs of structures that differ by little: between them the energy must change as forces and stress say.

For two structures a, b of the same atoms (trapezoid rule; exact in a harmonic potential)

    E_b - E_a  =  - 1/2 (F_a + F_b) . dx  +  1/2 (V_a s_a + V_b s_b) : e

dx are the displacements (images counted as one place, molecules turned onto each other), s the stresses and e the
strain that takes the cell of a to that of b; dx is then counted from where the strain takes the atoms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from scipy.spatial import cKDTree

from denskit.data.base import spaced_pairs
from denskit.data.structure_arrays import StructureArrays
from denskit.geometry.lattice import lattices, wrapped

NEAR = 1.0  # Å, largest displacement of an atom
STRAINED = 0.06  # largest component of a strain
UNSTRAINED = 1e-6  # smaller components are rounding
SAME = 1e-4  # Å: nearer structures are twins
MOST = 4000  # structures of one composition, and pairs in all, that are looked at
NEIGHBORS = 3  # nearest structures of each frame
DISTANCES = 24  # by which near structures are found
LARGE = 1000  # atoms of a structure whose pairs are not listed


@dataclass(frozen=True)
class Pairs:
    """P pairs of near structures, with both energies and forces."""

    first: np.ndarray  # [P] place in the sample
    second: np.ndarray  # [P]
    rise: np.ndarray  # [P] eV, of the energy
    by_forces: np.ndarray  # [P] eV, that the forces predict
    pulls: np.ndarray  # [P, 2] eV, that each stress predicts; NaN without stress, 0 where the cells are the same
    vasp_pulls: np.ndarray  # [P, 2] eV, as pulls, where the shears were in VASP's order xy, yz, zx
    forces_blur: np.ndarray  # [P] eV, by which the predictions of F_a and F_b alone differ
    distance: np.ndarray  # [P] Å, largest displacement of an atom
    strain: np.ndarray  # [P] largest component
    volume: np.ndarray  # [P] Å^3, of the first; 0 where not periodic in three directions

    @property
    def by_stress(self) -> np.ndarray:
        """Change of the energy [P] that both stresses predict, eV."""
        return self.pulls.mean(axis=1)

    @property
    def stress_blur(self) -> np.ndarray:
        """By how much the predictions of the two stresses differ [P], eV."""
        return np.abs(self.pulls[:, 0] - self.pulls[:, 1])

    def take(self, rows: np.ndarray) -> Pairs:
        """Some of the pairs."""
        return Pairs(*(getattr(self, field.name)[rows] for field in fields(self)))


def pairs_of(structures: StructureArrays, groups: Sequence[np.ndarray]) -> Pairs:
    """Neighbours in the file and nearest structures of the same atoms; at most ``MOST``, one group after the other."""
    labelled = structures.has["energy"] & structures.has["forces"]
    found = [Pairs(*[np.zeros(0, np.int64)] * 2, *[np.zeros(0)] * 2, *[np.zeros((0, 2))] * 2, *[np.zeros(0)] * 4)]
    for group in groups:
        chosen = group[labelled[group]]
        chosen = chosen[spaced_pairs(len(chosen), MOST)]
        if len(chosen) >= 2 and sum(len(pairs.first) for pairs in found) <= MOST:
            found.append(_pairs(structures, chosen))
    columns = ([getattr(pairs, field.name) for pairs in found] for field in fields(Pairs))
    return Pairs(*(np.concatenate(column) for column in columns))


def _pairs(structures: StructureArrays, group: np.ndarray) -> Pairs:
    """Near pairs of structures of the same atoms."""
    atoms = structures.atom_rows(group)
    positions, forces = structures.positions[atoms], structures.forces[atoms]  # [G, n, 3]
    pbc = structures.pbc[group[0]]
    lattice = lattices(structures.cell[group], pbc)
    first, second = _candidates(fingerprints(positions, lattice, pbc))
    fixed = structures.fixed[atoms]
    moved, turned, strain = _displacements(positions, forces, fixed, lattice, pbc, first, second)
    unknown = fixed & ~forces.any(axis=2)  # [G, n] constraints have set these forces to zero
    told = ~(unknown[first] & (np.linalg.norm(moved, axis=2) > SAME)).any(axis=1)
    push = [-(f * moved).sum(axis=(1, 2)) for f in (forces[first], turned)]
    stretch = np.abs(strain).max(axis=(1, 2))
    volume = np.abs(np.linalg.det(lattice)) * pbc.all()
    stress = np.where(structures.has["stress"][group, None, None], structures.stress[group], np.nan)
    virial = volume[:, None, None] * stress
    strained = (stretch >= UNSTRAINED)[:, None]
    pulls, vasp_pulls = (
        np.where(strained, np.stack([(v[of] * strain).sum(axis=(1, 2)) for of in (first, second)], axis=1), 0)
        for v in (virial, _from_vasp_order(virial))
    )
    distance = np.linalg.norm(moved, axis=2).max(axis=1)
    near = told & (distance < NEAR) & (stretch < STRAINED) & ((distance > SAME) | (stretch > UNSTRAINED))
    pairs = Pairs(
        first=group[first],
        second=group[second],
        rise=structures.energy[group[second]] - structures.energy[group[first]],
        by_forces=(push[0] + push[1]) / 2,
        pulls=pulls,
        vasp_pulls=vasp_pulls,
        forces_blur=np.abs(push[0] - push[1]),
        distance=distance,
        strain=stretch,
        volume=volume[first],
    )
    return pairs.take(near)


def _from_vasp_order(stress: np.ndarray) -> np.ndarray:
    """Stresses [G, 3, 3] of six numbers xx yy zz xy yz zx, which were read as xx yy zz yz xz xy."""
    turned = stress.copy()
    for (i, j), read_as in {(0, 1): (1, 2), (1, 2): (0, 2), (0, 2): (0, 1)}.items():
        turned[:, i, j] = turned[:, j, i] = stress[:, *read_as]
    return turned


def fingerprints(positions: np.ndarray, lattice: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """Numbers [G, M] (Å) that are nearly the same for similar structures: some distances, and the cell."""
    one, other = _some_pairs(positions.shape[1])
    apart = wrapped(positions[:, one] - positions[:, other], lattice, pbc)
    cells = lattice[:, pbc].reshape(len(lattice), -1)
    return np.concatenate([np.linalg.norm(apart, axis=2), cells], axis=1)


def _some_pairs(atoms: int) -> tuple[np.ndarray, np.ndarray]:
    """At most ``DISTANCES`` pairs [D] of different atoms, the same ones for each number of atoms."""
    random = np.random.default_rng(0)
    if atoms <= LARGE:
        one, other = np.triu_indices(atoms, k=1)
        some = random.permutation(len(one))[:DISTANCES]
        return one[some], other[some]
    pairs = random.choice(atoms, (DISTANCES, 2), replace=False)  # a list of all takes gigabytes
    return pairs[:, 0], pairs[:, 1]


def _candidates(prints: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs [P] of neighbours in order and of nearest neighbours, each once."""
    count = len(prints)
    if not prints.shape[1]:  # single atoms in no cell: nothing to tell them by, and nothing that moves
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    _, near = cKDTree(prints).query(prints, k=min(NEIGHBORS + 1, count))
    of = np.repeat(np.arange(count), near.shape[1])
    one = np.concatenate([of, np.arange(count - 1)])
    other = np.concatenate([near.reshape(-1), np.arange(1, count)])
    pairs = np.stack([np.minimum(one, other), np.maximum(one, other)], axis=1)
    first, second = np.unique(pairs[one != other], axis=0).T
    return first, second


def _displacements(
    positions: np.ndarray,
    forces: np.ndarray,
    fixed: np.ndarray,
    lattice: np.ndarray,
    pbc: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Displacements [P, n, 3] from first to second, the second's forces in the same frame, strains [P, 3, 3]."""
    if not pbc.any():  # turn the second molecule onto the first: Kabsch, Acta Cryst. A32, 922 (1976)
        one = positions[first] - positions[first].mean(axis=1, keepdims=True)
        other = positions[second] - positions[second].mean(axis=1, keepdims=True)
        left, _, right = np.linalg.svd(other.transpose(0, 2, 1) @ one)
        left[:, :, 2] *= np.sign(np.linalg.det(left @ right))[:, None]
        turn = left @ right
        return other @ turn - one, forces[second] @ turn, np.zeros((len(first), 3, 3))
    stretch = np.linalg.solve(lattice[first], lattice[second])
    strain = (stretch + stretch.transpose(0, 2, 1)) / 2 - np.eye(3)
    moved = wrapped(positions[second] - positions[first] @ stretch, lattice[second], pbc)
    # a common shift means nothing: it is that of the fixed atoms, if any
    still = fixed[first] | ~fixed[first].any(axis=1, keepdims=True)
    shift = (moved * still[:, :, None]).sum(axis=1) / still.sum(axis=1)[:, None]
    return moved - shift[:, None], forces[second], strain
