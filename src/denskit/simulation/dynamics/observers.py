"""When a simulation has gone wrong: observers that look at running systems and say which one broke, and how.

Bonds as in Fu et al. (2023), "Forces are not Enough"; not finite, too hot and left alone as in MLIPAudit.  An observer
looks at a whole batch at once; all that is in order costs one synchronisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch
from ase.data import chemical_symbols, covalent_radii
from torch import Tensor

from denskit.batch import Batch, select
from denskit.geometry.lattice import LARGEST
from denskit.geometry.neighbors import build_neighbors, dense_neighbors

BOND_TOLERANCE = 0.5  # Å
BOND_SKIN = 0.3  # Å on every covalent radius, what ASE's NeighborList adds, with which the benchmark finds bonds
HEATING = 10_000.0  # K above the target
REACH = 5.0  # Å within which bonds are looked for
ALONE = 2.5  # Å
DENSE = 500  # atoms of a molecule up to which all its pairs are looked at


@dataclass(frozen=True, kw_only=True)
class Instability:
    """What went wrong in one system."""

    system: int  # its place in the batch that was looked at
    check: str  # name of the observer
    reason: str


class Observer(Protocol):
    """One criterion of stability, for the systems of a batch."""

    @property
    def name(self) -> str:
        """Names the criterion in reports."""
        ...

    def unstable(self, batch: Batch, temperature: Tensor) -> Tensor:
        """Which systems [B] are broken, from positions (not wrapped into the cell) and temperatures [B] (K)."""
        ...

    def reason(self, batch: Batch, temperature: Tensor, system: int) -> str:
        """What is wrong with an unstable system, in words."""
        ...

    def select(self, keep: Tensor) -> Observer:
        """The observer of the systems where ``keep`` [B] is True, to go with :func:`denskit.batch.select`."""
        ...


def look(observers: Sequence[Observer], batch: Batch, temperature: Tensor) -> list[Instability]:
    """All that is wrong now, by observer and system; empty when all is well."""
    return [
        Instability(system=system, check=observer.name, reason=observer.reason(batch, temperature, system))
        for observer in observers
        for system in observer.unstable(batch, temperature).nonzero()[:, 0].tolist()
    ]


@dataclass(frozen=True, kw_only=True)
class Bonds:
    """The bonds of all systems of a batch, and what their lengths should be."""

    pairs: Tensor  # [2, M] atoms, counted from 0 in their system
    shift: Tensor  # [M, 3] cells between them, for positions that are not wrapped
    system: Tensor  # [M]
    mean: Tensor  # [M] Å, float64

    def lengths(self, batch: Batch) -> Tensor:
        """Lengths [M] in Å, float64."""
        positions, cell = batch.positions.double(), batch.cell.double()
        one, other = self.pairs + (batch.n_atoms.cumsum(0) - batch.n_atoms)[self.system]
        offset = torch.einsum("mi,mij->mj", self.shift, cell[self.system])
        return torch.linalg.vector_norm(positions[other] + offset - positions[one], dim=-1)

    def with_means(self, batch: Batch, reference: np.ndarray) -> Bonds:
        """Mean lengths from reference frames [F, n, 3] (Å) of the molecule of which all systems are replicas.

        Raises ValueError where the reference has another number of atoms.
        """
        n = reference.shape[1]
        if not bool((batch.n_atoms == n).all()):
            raise ValueError(
                f"the reference has {n} atoms and the simulated systems have {sorted(set(batch.n_atoms.tolist()))}; "
                f"give frames of the same molecule"
            )
        frames = torch.from_numpy(reference).to(self.mean)
        apart = frames[:, self.pairs[0]] - frames[:, self.pairs[1]]
        return replace(self, mean=torch.linalg.vector_norm(apart, dim=-1).mean(0))

    def select(self, keep: Tensor) -> Bonds:
        """The bonds of the systems where ``keep`` [B] is True."""
        kept = keep[self.system]
        system = (keep.long().cumsum(0) - 1)[self.system[kept]]
        return Bonds(pairs=self.pairs[:, kept], shift=self.shift[kept], system=system, mean=self.mean[kept])


def find_bonds(batch: Batch) -> Bonds:
    """The bonds of a first frame: atoms nearer than their covalent radii (ASE's) and 0.3 Å each.

    Expected lengths are those of the frame itself; :meth:`Bonds.with_means` takes them from a reference.  Raises
    ValueError as :func:`build_neighbors` does.
    """
    radii = torch.from_numpy(covalent_radii).to(batch.positions.device)[batch.atomic_numbers] + BOND_SKIN
    near = build_neighbors(batch, max(REACH, 2 * float(radii.max())))
    other, one = near.built_edges.index
    bonded = (near.edge_vectors().double().norm(dim=1) < radii[one] + radii[other]) & (one <= other)
    one, other, system = one[bonded], other[bonded], batch.system_index[one[bonded]]
    first = (batch.n_atoms.cumsum(0) - batch.n_atoms)[system]
    shift = near.built_edges.shift[bonded].double()
    bonds = Bonds(pairs=torch.stack([one, other]) - first, shift=shift, system=system, mean=shift.new_zeros(len(one)))
    return replace(bonds, mean=bonds.lengths(batch))


class BondStability:
    """Unstable when a bond is more than 0.5 Å longer or shorter than its mean length (or not a number)."""

    name = "bonds"

    def __init__(self, bonds: Bonds, tolerance: float = BOND_TOLERANCE) -> None:
        self.bonds, self.tolerance = bonds, tolerance

    def unstable(self, batch: Batch, temperature: Tensor) -> Tensor:
        """Which systems [B] have a broken bond."""
        broken = ~((self.bonds.lengths(batch) - self.bonds.mean).abs() <= self.tolerance)
        count = torch.zeros(batch.num_systems, dtype=torch.int64, device=broken.device)
        return count.index_add(0, self.bonds.system, broken.long()) > 0

    def reason(self, batch: Batch, temperature: Tensor, system: int) -> str:
        """Names the bond that is farthest off, its atoms numbered from 0 in their system."""
        lengths = self.bonds.lengths(batch)
        off = torch.where(self.bonds.system == system, (lengths - self.bonds.mean).abs().nan_to_num(torch.inf), -1)
        worst = int(off.argmax())
        start = int(batch.n_atoms[:system].sum())
        pair = self.bonds.pairs[:, worst].tolist()
        one, other = (f"{chemical_symbols[int(batch.atomic_numbers[start + atom])]}{atom}" for atom in pair)
        return f"bond {one}-{other} is {lengths[worst]:.2f} Å long, its mean is {self.bonds.mean[worst]:.2f} Å"

    def select(self, keep: Tensor) -> BondStability:
        """For the systems where ``keep`` [B] is True."""
        return BondStability(self.bonds.select(keep), self.tolerance)


@dataclass(frozen=True)
class Finite:
    """Unstable when a position is not a number or infinite."""

    name: str = "finite"

    def unstable(self, batch: Batch, temperature: Tensor) -> Tensor:
        """Which systems [B] have such a position."""
        return _any_atom(batch, ~batch.positions.isfinite().all(-1))

    def reason(self, batch: Batch, temperature: Tensor, system: int) -> str:
        """In words."""
        return "positions are not finite"

    def select(self, keep: Tensor) -> Self:
        """The same: there is nothing of single systems in it."""
        return self


@dataclass(frozen=True)
class NotTooHot:
    """Unstable when the temperature is more than 10,000 K above the target (or not a number)."""

    target: float  # K
    name: str = "temperature"

    def unstable(self, batch: Batch, temperature: Tensor) -> Tensor:
        """Which systems [B] are too hot."""
        return ~(temperature <= self.target + HEATING)

    def reason(self, batch: Batch, temperature: Tensor, system: int) -> str:
        """In words."""
        return f"temperature is {float(temperature[system]):.0f} K, more than {HEATING:.0f} K above {self.target:.0f} K"

    def select(self, keep: Tensor) -> Self:
        """The same: there is nothing of single systems in it."""
        return self


@dataclass(frozen=True)
class NotAlone:
    """Unstable when an atom is more than 2.5 Å from all others (or nowhere): for molecules and liquids, not metals."""

    name: str = "alone"

    def unstable(self, batch: Batch, temperature: Tensor) -> Tensor:
        """Which systems [B] have lost an atom; a single atom in no cell has nothing to lose."""
        return _any_atom(batch, self._alone(batch) & (batch.n_atoms > 1)[batch.system_index])

    def reason(self, batch: Batch, temperature: Tensor, system: int) -> str:
        """Names the first such atom, counted from 0 in its system."""
        atom = int((self._alone(batch) & (batch.system_index == system)).nonzero()[0])
        symbol = chemical_symbols[int(batch.atomic_numbers[atom])]
        return f"atom {symbol}{atom - int(batch.n_atoms[:system].sum())} is more than {ALONE} Å from all others"

    def select(self, keep: Tensor) -> Self:
        """The same: there is nothing of single systems in it."""
        return self

    @staticmethod
    def _alone(batch: Batch) -> Tensor:
        """Which atoms [N] are alone; all atoms of a system that flew too far apart for a neighbour list."""
        far = batch.positions.new_full((batch.num_systems, 3), -torch.inf)
        index = batch.system_index[:, None].expand(-1, 3)
        high = far.scatter_reduce(0, index, batch.positions, "amax")
        low = -far.scatter_reduce(0, index, -batch.positions, "amax")
        sane = (high - low < LARGEST * ALONE / 2).all(-1)
        atoms = sane[batch.system_index]
        alone = ~atoms
        if bool(sane.any()):
            # all pairs also where two atoms are at one place, which the list of cells refuses
            dense = not batch.pbc.any() and int(batch.n_atoms.max()) <= DENSE
            near = (dense_neighbors if dense else build_neighbors)(select(batch, sane), ALONE).built_edges
            target = near.index[1] if near.mask is None else near.index[1][near.mask]
            alone[atoms] = torch.bincount(target, minlength=int(atoms.sum())) == 0
        return alone


def _any_atom(batch: Batch, wrong: Tensor) -> Tensor:
    """Which systems [B] have an atom where ``wrong`` [N] is True."""
    return batch.sum_over_atoms(wrong.long()) > 0
