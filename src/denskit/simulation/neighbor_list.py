"""A neighbour list with a skin: edges within cutoff + skin, kept until an atom has moved half of the skin."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from denskit.batch import Batch, select
from denskit.geometry.edge_pairs import edge_pairs
from denskit.geometry.lattice import SAME_PLACE
from denskit.geometry.neighbors import TIE, build_neighbors, ranked


class Kept:
    """A copy of a tensor, whose owner may change his in place."""

    def __init__(self, given: Tensor) -> None:
        self.given, self.copy = given, given.clone()
        self.version = None if given.is_inference() else given._version

    def equals(self, other: Tensor) -> bool:
        """Whether a tensor has the same values; that of before on a GPU, unchanged, is not compared: it would wait."""
        if other.is_cuda and other is self.given and self.version is not None and other._version == self.version:
            return True
        return torch.equal(self.copy, other)


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """All edges of a batch within cutoff + skin, and the positions and cells of the search."""

    batch: Batch  # positions and cell are copies in float64
    n_atoms: Kept
    pbc: Kept
    offset: Tensor  # [E, 3] Å, shift @ cell of every edge
    reach: float  # Å, half of the skin: the list is complete until an atom has moved farther
    pairs: Tensor | None  # [E/2, 2] rows of each edge and its reverse; None on a GPU

    @classmethod
    def find(cls, batch: Batch, cutoff: float, skin: float) -> Candidates:
        """Edges of a batch within cutoff + skin (Å); raises ValueError as :func:`build_neighbors`."""
        n_atoms, pbc = Kept(batch.n_atoms), Kept(batch.pbc)
        positions, cell = batch.positions.detach().double().clone(), batch.cell.double().clone()
        copy = replace(batch, positions=positions, cell=cell, pbc=pbc.copy, n_atoms=n_atoms.copy)
        found = build_neighbors(copy, cutoff + skin)
        edges = found.built_edges
        cell = found.cell[found.system_index[edges.index[1]]]
        offset = torch.einsum("ei,eij->ej", edges.shift.double(), cell)
        reach, pairs = skin / 2, edge_pairs(found)
        return cls(batch=found, n_atoms=n_atoms, pbc=pbc, offset=offset, reach=reach, pairs=pairs)

    def hold(self, batch: Batch) -> bool:
        """Whether the list is complete for a batch: same systems and cells, no atom moved farther than the reach."""
        old = self.batch
        if batch.num_atoms != old.num_atoms or batch.num_systems != old.num_systems:
            return False
        if not (self.n_atoms.equals(batch.n_atoms) and self.pbc.equals(batch.pbc)):
            return False
        farthest = (batch.positions.detach() - old.positions).square().sum(-1).amax()
        cells = (batch.cell == old.cell).all()
        # False for NaN
        return bool((farthest <= self.reach**2) & cells)

    def squared_distances(self, positions: Tensor) -> Tensor:
        """Squared lengths [E] (Å^2, float64) of all candidates at positions [N, 3]."""
        source, target = self.batch.built_edges.index
        positions = positions.detach().double()
        vectors = positions.index_select(0, source) - positions.index_select(0, target) + self.offset
        return vectors.square().sum(-1)

    def within(self, squared: Tensor, cutoff: float, max_neighbors: int | None, strict: bool) -> Tensor:
        """Mask [E] of the edges that :func:`build_neighbors` finds with these settings."""
        inside = squared < cutoff**2
        if max_neighbors is None:
            return inside
        target, atoms = self.batch.built_edges.index[1], self.batch.num_atoms
        # sorted by target, distance, and the order of the list (source and shift)
        key = ranked(squared) if strict else squared
        by_distance = torch.where(inside, key, torch.inf).argsort(stable=True)
        order = by_distance[target[by_distance].argsort(stable=True)]
        degree = torch.bincount(target, minlength=atoms)
        first = degree.cumsum(0) - degree
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        rank = rank - first[target]
        if strict:
            return inside & (rank < max_neighbors)
        next_one = inside & (rank == max_neighbors)
        bound = squared.new_full((atoms,), torch.inf).index_put((target[next_one],), squared[next_one] + TIE)
        return inside & (squared <= bound[target])

    def pairs_within(self, keep: Tensor) -> Tensor | None:
        """:func:`edge_pairs` of the edges to ``keep`` [E]; None where an edge is kept without its reverse."""
        if self.pairs is None:
            return None
        kept = keep[self.pairs]
        both = kept[:, 0]
        if not torch.equal(both, kept[:, 1]):
            return None
        return (keep.cumsum(0) - 1)[self.pairs[both]]

    @staticmethod
    def any_together(squared: Tensor) -> bool:
        """Whether two atoms of any system are at one place."""
        return bool((squared < SAME_PLACE**2).any())

    def broken(self, squared: Tensor) -> Tensor:
        """Systems [B] with two atoms at one place."""
        system = self.batch.system_index[self.batch.built_edges.index[1]]
        count = torch.zeros(self.batch.num_systems, device=squared.device)
        return count.index_add(0, system, (squared < SAME_PLACE**2).to(count.dtype)) > 0


def unusable(batch: Batch, cutoff: float) -> Tensor:
    """Systems [B] without a neighbour list: positions not finite, flown apart, or two atoms at one place."""
    device = batch.positions.device
    try:
        build_neighbors(batch, cutoff)
    except ValueError:
        if batch.num_systems == 1:
            return torch.ones(1, dtype=torch.bool, device=device)
        systems = torch.arange(batch.num_systems, device=device)
        return torch.cat([unusable(select(batch, systems == system), cutoff) for system in systems])
    return torch.zeros(batch.num_systems, dtype=torch.bool, device=device)
