"""Neighbour lists: which pairs of atoms lie within the cutoff.

Convention (``batch.py``): ``edge_index[0]`` is the source j, ``edge_index[1]`` the target i, and the edge's vector is
r_j + shift @ cell - r_i.  Each pair appears in both directions; a pair at exactly the cutoff is left out.  Both
builders measure distances in float64 from the batch's positions, so they agree on who is inside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import vesin
from torch import Tensor

from denskit.batch import Batch

SAME_PLACE = 1e-4  # Å: nearer atoms are a mistake in the data
LARGEST = 200.0  # cutoffs: extent or lattice vector up to which vesin's cell list is safe and fast
OUTERMOST = 1e8  # Å: farther from the origin, float64 no longer resolves distances and cell shifts may overflow
FLATTEST = 1e-6  # volume over the product of the lengths of a cell
TIE = 0.01  # Å^2: OC20's tolerance for neighbours as far as the last one kept


@dataclass(frozen=True)
class _Edges:
    """Edges of one system (numpy), with local atom indices."""

    source: np.ndarray  # [E]
    target: np.ndarray  # [E]
    shift: np.ndarray  # [E, 3]
    distance: np.ndarray  # [E] Å

    def take(self, rows: np.ndarray) -> _Edges:
        return _Edges(self.source[rows], self.target[rows], self.shift[rows], self.distance[rows])


def build_neighbors(batch: Batch, cutoff: float, *, max_neighbors: int | None = None, strict: bool = True) -> Batch:
    """The batch with the edges of every system, found on the CPU by vesin's cell list (O(N), about 0.3 µs per edge).

    Works for molecules (zero cell), for any mix of periodic directions, for cells smaller than the cutoff (an atom then
    neighbours its own images) and for atoms outside the cell.  Edges are sorted by target, then source, then shift.
    Padding atoms get none; a batch without any edge is legal (E = 0).  The result is on the device of the batch.

    cutoff: Å.
    max_neighbors: at most so many sources per target (the graph may then lack the reverse of an edge).  ``strict``
    keeps exactly the nearest ones, ties resolved by source and shift.  Otherwise all are kept whose squared distance
    exceeds that of the (max_neighbors + 1)-th by no more than 0.01 Å^2, as OC22's models do, so that a shell of equal
    distances is not split.

    Raises ValueError naming the system (its place in the batch) for positions that are not finite or have flown apart,
    for a flat or huge periodic cell, and for two atoms at one place (or one atom on its own image).
    """
    if max_neighbors is not None and max_neighbors < 1:
        raise ValueError(f"max_neighbors is {max_neighbors}: give at least 1, or None for no limit.")
    positions = batch.positions.detach().to("cpu", torch.float64).numpy()
    cells = batch.cell.detach().to("cpu", torch.float64).numpy()
    pbc = batch.pbc.cpu().numpy()
    real = np.flatnonzero(batch.atom_mask.cpu().numpy())
    system_of_real = batch.system_index.cpu().numpy()[real]
    finder = vesin.NeighborList(cutoff=cutoff, full_list=True, n_threads=1)  # loader workers must not multiply threads

    index_parts, shift_parts = [np.zeros((2, 0), dtype=np.int64)], [np.zeros((0, 3), dtype=np.int64)]
    for system in range(batch.num_systems):
        atoms = real[np.searchsorted(system_of_real, system) : np.searchsorted(system_of_real, system, side="right")]
        edges = _system_edges(finder, positions[atoms], cells[system], pbc[system], system)
        if max_neighbors is not None:
            edges = _nearest(edges, len(atoms), max_neighbors, strict)
        index_parts.append(np.stack([atoms[edges.source], atoms[edges.target]]))
        shift_parts.append(edges.shift)
    edge_index = torch.from_numpy(np.concatenate(index_parts, axis=1))
    edge_shift = torch.from_numpy(np.concatenate(shift_parts))
    return _with_edges(batch, edge_index, edge_shift, torch.ones(edge_index.shape[1], dtype=torch.bool))


def dense_neighbors(batch: Batch, cutoff: float, *, max_atoms: int | None = None) -> Batch:
    """The batch with all ordered pairs of atoms inside each molecule: a list of fixed size, made on the device.

    E = B * max_atoms * (max_atoms - 1), sorted by target, with ``edge_mask`` True where a pair exists and lies within
    the cutoff (Å).  The other rows are padding edges: they join an atom to itself.  With ``max_atoms`` given nothing
    waits for the device, so the call can be captured in a CUDA graph; None reads the largest molecule from the batch.

    Molecules only, and real atoms before padding atoms.  ``max_atoms`` must be at least ``n_atoms.max()``: on the CPU
    a violation of either raises ValueError; on other devices, where looking would mean waiting, the caller vouches
    for it.  Atoms at one place are not looked for.
    """
    if max_atoms is None:
        max_atoms = int(batch.n_atoms.max())
    if batch.positions.device.type == "cpu":
        _check_molecules(batch, max_atoms)
    device = batch.positions.device
    pair = torch.arange(max_atoms * (max_atoms - 1), device=device)
    target = pair // max(max_atoms - 1, 1)
    source = pair % max(max_atoms - 1, 1)
    source = source + (source >= target).long()  # skips the pair of an atom with itself

    n_atoms = batch.n_atoms[:, None]
    start = torch.cumsum(batch.n_atoms, 0)[:, None] - n_atoms
    exists = ((target < n_atoms) & (source < n_atoms)).reshape(-1)  # [B * M * (M - 1)]
    # An atom that does not exist stands for the last one that does, which keeps targets in order and systems apart.
    last = n_atoms - 1
    target = (start + torch.minimum(target, last)).reshape(-1).clamp(0, batch.num_atoms - 1)
    source = (start + torch.minimum(source, last)).reshape(-1).clamp(0, batch.num_atoms - 1)
    vector = batch.positions.detach()[source].double() - batch.positions.detach()[target].double()
    mask = exists & (vector.square().sum(-1) < cutoff**2)
    edge_index = torch.stack([torch.where(mask, source, target), target])
    return _with_edges(batch, edge_index, edge_index.new_zeros(edge_index.shape[1], 3), mask)


def _with_edges(batch: Batch, edge_index: Tensor, edge_shift: Tensor, edge_mask: Tensor) -> Batch:
    device = batch.positions.device
    return replace(
        batch,
        edge_index=edge_index.to(device),
        edge_shift=edge_shift.to(device),
        edge_mask=edge_mask.to(device),
    )


def _check_molecules(batch: Batch, max_atoms: int) -> None:
    if bool(batch.pbc.any()):
        raise ValueError("dense_neighbors is for molecules, but the batch has periodic systems: use build_neighbors.")
    if int(batch.n_atoms.max()) > max_atoms:
        raise ValueError(f"max_atoms is {max_atoms}, but the largest molecule has {int(batch.n_atoms.max())} atoms.")


def _system_edges(
    finder: vesin.NeighborList, positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, system: int
) -> _Edges:
    """All edges of one system in their final order."""
    _check_positions(positions, system)
    box = _box(positions, cell, pbc, finder.cutoff, system)
    # vesin's vectors are r_second + shift @ box - r_first: its first atom is our target.
    target, source, shift, distance = finder.compute(points=positions, box=box, periodic=True, quantities="ijSd")
    edges = _Edges(source.astype(np.int64), target.astype(np.int64), shift.astype(np.int64), distance)
    edges = edges.take(np.lexsort((*edges.shift.T[::-1], edges.source, edges.target)))
    too_near = np.flatnonzero(edges.distance < SAME_PLACE)
    if len(too_near):
        i, j, d = edges.target[too_near[0]], edges.source[too_near[0]], edges.distance[too_near[0]]
        raise ValueError(
            f"System {system} of the batch: atoms {i} and {j} are at one place ({d:.1e} Å apart, images included); "
            f"at least {SAME_PLACE} Å is wanted. Remove the double atom or correct the cell."
        )
    return edges


def _nearest(edges: _Edges, n_atoms: int, max_neighbors: int, strict: bool) -> _Edges:
    """The edges to keep of every target, in their present order (sorted by target)."""
    by_distance = np.lexsort((edges.distance, edges.target))  # stable: ties stay ordered by source and shift
    degree = np.bincount(edges.target, minlength=n_atoms)
    first = np.cumsum(degree) - degree  # [n_atoms] where a target's edges begin, in both orders
    if strict:
        rank = np.empty(len(by_distance), dtype=np.int64)
        rank[by_distance] = np.arange(len(by_distance)) - first[edges.target]
        return edges.take(np.flatnonzero(rank < max_neighbors))
    crowded = np.flatnonzero(degree > max_neighbors)
    bound = np.full(n_atoms, np.inf)  # Å^2
    bound[crowded] = edges.distance[by_distance[first[crowded] + max_neighbors]] ** 2 + TIE
    return edges.take(np.flatnonzero(edges.distance**2 <= bound[edges.target]))


def _box(positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float, system: int) -> np.ndarray:
    """A box with the same neighbours that is periodic everywhere, [3, 3] Å.

    Directions without periodicity get a row at right angles to all others, too long for two images to be neighbours;
    what the cell has there does not matter.  vesin is told that all three repeat, because its search along open
    directions takes minutes for wide wires, and an integer division by zero for wider ones.
    """
    rows = cell[pbc]
    lengths = np.linalg.norm(rows, axis=1)
    sizes, axes = np.linalg.svd(rows)[1:] if np.isfinite(rows).all() else (np.zeros(len(rows)), np.eye(3))
    # The product of the singular values is the length, area or volume that the rows span.
    if np.any(lengths < SAME_PLACE) or not np.prod(sizes) >= FLATTEST * np.prod(lengths):
        raise ValueError(
            f"System {system} of the batch: periodic along {np.flatnonzero(pbc).tolist()}, but its cell "
            f"{cell.tolist()} (Å) has no volume there. Give independent lattice vectors for these directions, or "
            f"switch their periodicity off."
        )
    across = axes[len(rows) :]  # orthonormal, at right angles to the rows
    extent = np.ptp(positions @ across.T, axis=0) if len(positions) else np.zeros(len(across))
    box = cell.copy()
    box[~pbc] = (extent + 2 * cutoff)[:, None] * across
    largest = np.linalg.norm(box, axis=1).max()
    if largest > LARGEST * cutoff:
        raise ValueError(
            f"System {system} of the batch: its atoms have flown apart, or its cell is huge: {largest:.4g} Å where "
            f"{LARGEST:.0f} cutoffs of {cutoff} Å are the limit. Check positions, cell and their unit."
        )
    return box


def _check_positions(positions: np.ndarray, system: int) -> None:
    wrong = np.flatnonzero(~(np.abs(positions) < OUTERMOST).all(axis=1))
    if len(wrong):
        raise ValueError(
            f"System {system} of the batch: atom {wrong[0]} is at {positions[wrong[0]].tolist()} Å; finite positions "
            f"within {OUTERMOST:.0e} Å of the origin are wanted."
        )
