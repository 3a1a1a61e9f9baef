"""Observers that find unstable systems in a simulation.

Broken bonds as in Fu et al. (2023), "Forces are not Enough"; positions that are not finite, temperature and isolated
atoms as in MLIPAudit.  An observer looks at a whole batch at once; without a finding it costs one synchronisation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import scipy  # its parts are loaded when they are used
import torch
from ase.data import chemical_symbols, covalent_radii
from torch import Tensor

from denskit.batch import Batch, select
from denskit.geometry.lattice import LARGEST
from denskit.geometry.neighbors import build_neighbors

BOND_TOLERANCE = 0.5  # Å
BOND_SKIN = 0.3  # Å on every covalent radius: the skin of ASE's NeighborList, by which the benchmark finds bonds
HEATING = 10_000.0  # K above the target
EXPANSION = 2.0  # largest factor of the volume in either direction
REACH = 5.0  # Å, cutoff of the search for bonds
ALONE = 2.5  # Å
DENSE = 500  # atoms of a molecule up to which all pairs are searched


@dataclass(frozen=True, kw_only=True)
class Instability:
    """One unstable system."""

    system: int  # place in the batch
    check: str  # name of the observer
    reason: str


class Observer(ABC):
    """One criterion of stability, for the systems of a batch."""

    check: ClassVar[str]  # name of the criterion in reports

    @abstractmethod
    def _unstable(self, batch: Batch, temperature: Tensor) -> Tensor:
        """Unstable systems [B], by positions (not wrapped into the cell) and temperature [B] (K)."""

    @abstractmethod
    def _reason(self, batch: Batch, temperature: Tensor, system: int) -> str:
        """The reason for an unstable system; atoms are counted from 0 in their system."""

    def look(self, batch: Batch, temperature: Tensor) -> list[Instability]:
        """The unstable systems, by positions (not wrapped into the cell) and temperature [B] (K)."""
        systems = self._unstable(batch, temperature).nonzero()[:, 0].tolist()
        return [
            Instability(system=system, check=self.check, reason=self._reason(batch, temperature, system))
            for system in systems
        ]

    def select(self, keep: Tensor) -> Observer:
        """The observer of the systems where ``keep`` [B] is True, as :func:`denskit.batch.select` keeps them."""
        return self


def look(observers: Sequence[Observer], batch: Batch, temperature: Tensor) -> list[Instability]:
    """All unstable systems, by observer and system."""
    return [found for observer in observers for found in observer.look(batch, temperature)]


@dataclass(frozen=True, kw_only=True)
class Bonds:
    """The bonds of all systems of a batch, with their mean lengths."""

    pairs: Tensor  # [2, M] atoms, counted from 0 in their system
    shift: Tensor  # [M, 3] cell shifts of the second atom, for positions that are not wrapped
    system: Tensor  # [M]
    mean: Tensor  # [M] Å, float64

    def lengths(self, batch: Batch) -> Tensor:
        """Lengths [M] in Å, float64."""
        positions, cell = batch.positions.double(), batch.cell.double()
        one, other = self.pairs + batch.first_atoms[self.system]
        offset = torch.einsum("mi,mij->mj", self.shift, cell[self.system])
        return torch.linalg.vector_norm(positions[other] + offset - positions[one], dim=-1)

    def with_means(self, batch: Batch, reference: np.ndarray) -> Bonds:
        """With mean lengths of reference structures [F, n, 3] (Å) of the molecule that all systems are replicas of.

        Raises ValueError where the reference has another number of atoms.
        """
        n = reference.shape[1]
        if not bool((batch.n_atoms == n).all()):
            raise ValueError(
                f"the reference has {n} atoms and the simulated systems have {sorted(set(batch.n_atoms.tolist()))}; "
                "give structures of the same molecule"
            )
        positions = torch.from_numpy(reference).to(self.mean)
        apart = positions[:, self.pairs[0]] - positions[:, self.pairs[1]]
        return replace(self, mean=torch.linalg.vector_norm(apart, dim=-1).mean(0))

    def within(self, systems: Tensor) -> Bonds:
        """Without those of the systems where ``systems`` [B] is False, which keep their numbers."""
        kept = systems[self.system]
        return Bonds(pairs=self.pairs[:, kept], shift=self.shift[kept], system=self.system[kept], mean=self.mean[kept])

    def select(self, keep: Tensor) -> Bonds:
        """The bonds of the systems where ``keep`` [B] is True, and no other systems."""
        bonds = self.within(keep)
        return replace(bonds, system=(keep.long().cumsum(0) - 1)[bonds.system])


def find_bonds(batch: Batch) -> Bonds:
    """The bonds of a structure: pairs nearer than the sum of their covalent radii (of ASE) plus 0.3 Å each.

    Mean lengths are those of the structure; :meth:`Bonds.with_means` takes them from a reference.  Raises ValueError as
    :func:`build_neighbors`.
    """
    radii = torch.from_numpy(covalent_radii).to(batch.positions.device)[batch.atomic_numbers] + BOND_SKIN
    near = build_neighbors(batch, max(REACH, 2 * float(radii.max())))
    other, one = near.built_edges.index
    bonded = (near.edge_vectors().double().norm(dim=1) < radii[one] + radii[other]) & (one <= other)
    one, other, system = one[bonded], other[bonded], batch.system_index[one[bonded]]
    first = batch.first_atoms[system]
    shift = near.built_edges.shift[bonded].double()
    bonds = Bonds(pairs=torch.stack([one, other]) - first, shift=shift, system=system, mean=shift.new_zeros(len(one)))
    return replace(bonds, mean=bonds.lengths(batch))


def bonded_parts(batch: Batch) -> Tensor:
    """The number of parts [B] that no bond of :func:`find_bonds` joins, whose errors it raises."""
    bonds = find_bonds(batch)
    one, other = (bonds.pairs + batch.first_atoms[bonds.system]).cpu().numpy()
    graph = scipy.sparse.coo_array((np.ones(len(one)), (one, other)), shape=(batch.num_atoms, batch.num_atoms))
    labels = scipy.sparse.csgraph.connected_components(graph, directed=False)[1]
    first = np.unique(labels, return_index=True)[1]  # an atom of each part
    return torch.bincount(batch.system_index[torch.from_numpy(first)], minlength=batch.num_systems)


@dataclass(frozen=True)
class BondStability(Observer):
    """Unstable when a bond is more than 0.5 Å longer or shorter than its mean length, or NaN."""

    bonds: Bonds
    check = "bonds"

    def _unstable(self, batch: Batch, temperature: Tensor) -> Tensor:
        broken = ~((self.bonds.lengths(batch) - self.bonds.mean).abs() <= BOND_TOLERANCE)
        count = torch.zeros(batch.num_systems, dtype=torch.int64, device=broken.device)
        return count.index_add(0, self.bonds.system, broken.long()) > 0

    def _reason(self, batch: Batch, temperature: Tensor, system: int) -> str:
        lengths = self.bonds.lengths(batch)
        off = torch.where(self.bonds.system == system, (lengths - self.bonds.mean).abs().nan_to_num(torch.inf), -1)
        worst = int(off.argmax())
        start = int(batch.n_atoms[:system].sum())
        pair = self.bonds.pairs[:, worst].tolist()
        one, other = (f"{chemical_symbols[int(batch.atomic_numbers[start + atom])]}{atom}" for atom in pair)
        return f"bond {one}-{other} is {lengths[worst]:.2f} Å long, its mean is {self.bonds.mean[worst]:.2f} Å"

    def select(self, keep: Tensor) -> BondStability:
        """The observer of the systems where ``keep`` [B] is True."""
        return BondStability(self.bonds.select(keep))


class Finite(Observer):
    """Unstable when a position is NaN or infinite."""

    check = "finite"

    def _unstable(self, batch: Batch, temperature: Tensor) -> Tensor:
        return _any_atom(batch, ~batch.positions.isfinite().all(-1))

    def _reason(self, batch: Batch, temperature: Tensor, system: int) -> str:
        return "positions are not finite"


@dataclass(frozen=True)
class NotTooHot(Observer):
    """Unstable when the temperature is more than 10,000 K above the target, or NaN."""

    target: float  # K
    check = "temperature"

    def _unstable(self, batch: Batch, temperature: Tensor) -> Tensor:
        return ~(temperature <= self.target + HEATING)

    def _reason(self, batch: Batch, temperature: Tensor, system: int) -> str:
        return f"temperature is {float(temperature[system]):.0f} K, more than {HEATING:.0f} K above {self.target:.0f} K"


@dataclass(frozen=True)
class VolumeWithin(Observer):
    """Unstable when the volume of the cell is below half or above twice that of the start, or NaN."""

    start: Tensor  # [B] Å^3
    check = "volume"

    def _unstable(self, batch: Batch, temperature: Tensor) -> Tensor:
        ratio = batch.cell.det().abs() / self.start
        return ~((ratio >= 1 / EXPANSION) & (ratio <= EXPANSION))

    def _reason(self, batch: Batch, temperature: Tensor, system: int) -> str:
        volume = float(batch.cell[system].det().abs())
        return f"volume is {volume:.1f} Å^3, at the start it was {float(self.start[system]):.1f} Å^3"

    def select(self, keep: Tensor) -> VolumeWithin:
        """The observer of the systems where ``keep`` [B] is True."""
        return VolumeWithin(self.start[keep])


class NotAlone(Observer):
    """Unstable when an atom is more than 2.5 Å from all others, or NaN: for molecules and liquids, not metals.

    Systems of one atom are never unstable.
    """

    check = "alone"

    def _unstable(self, batch: Batch, temperature: Tensor) -> Tensor:
        return _any_atom(batch, self._alone(batch) & (batch.n_atoms > 1)[batch.system_index])

    def _reason(self, batch: Batch, temperature: Tensor, system: int) -> str:
        atom = int((self._alone(batch) & (batch.system_index == system)).nonzero()[0])
        symbol = chemical_symbols[int(batch.atomic_numbers[atom])]
        return f"atom {symbol}{atom - int(batch.n_atoms[:system].sum())} is more than {ALONE} Å from all others"

    @staticmethod
    def _alone(batch: Batch) -> Tensor:
        """Isolated atoms [N]; all atoms of a system too far apart for a neighbour list."""
        far = batch.positions.new_full((batch.num_systems, 3), -torch.inf)
        index = batch.system_index[:, None].expand(-1, 3)
        high = far.scatter_reduce(0, index, batch.positions, "amax")
        low = -far.scatter_reduce(0, index, -batch.positions, "amax")
        sane = (high - low < LARGEST * ALONE / 2).all(-1)
        atoms = sane[batch.system_index]
        alone = ~atoms
        if bool(sane.any()):
            alone[atoms] = _nearest(select(batch, sane)) > ALONE
        return alone


def _nearest(batch: Batch) -> Tensor:
    """Distance [N] (Å) of each atom to the nearest other; infinity beyond ``ALONE``, where neighbours were searched."""
    if not batch.pbc.any() and int(batch.n_atoms.max()) <= DENSE:  # also two atoms at one place, which a search refuses
        molecules = batch.positions.detach().double().split(batch.n_atoms.tolist())
        return torch.cat(
            [
                torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(torch.inf).amin(1)
                for x in molecules
            ]
        )
    near = build_neighbors(batch, ALONE)
    lengths = torch.linalg.vector_norm(near.edge_vectors(), dim=-1)
    return lengths.new_full((batch.num_atoms,), torch.inf).scatter_reduce(0, near.built_edges.index[1], lengths, "amin")


def _any_atom(batch: Batch, wrong: Tensor) -> Tensor:
    """Systems [B] with an atom where ``wrong`` [N] is True."""
    return batch.sum_over_atoms(wrong.long()) > 0
