"""Neighbour lists beside ASE's: the same edges, or no times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import ase
import numpy as np
import torch
from ase.neighborlist import primitive_neighbor_list

from denskit.batch import Batch
from denskit.models.config import ModelConfig
from denskit.simulation.structures import batch_of
from denskit_bench.contender import Agreement, Meeting, Own
from denskit_bench.job import Job, Side
from denskit_bench.models import config_of
from denskit_bench.systems import structures

CPU = torch.device("cpu")


def assemble(job: Job, sides: Sequence[Side]) -> Meeting:
    """The neighbour list of a batch; both must find the same edges."""
    config = config_of(job)
    atoms = structures(job.system, job.batch)
    batch = batch_of(atoms)
    found = config.with_neighbors(batch)
    facts = {"atoms": batch.num_atoms, "edges": found.num_edges, "structures": job.batch}
    work: dict[Side, Callable[[], object]] = {
        "ours": lambda: config.with_neighbors(batch),
        "theirs": lambda: [edges_of_ase(one, config) for one in atoms],
    }
    meeting = Meeting(contenders={side: Own(work[side], CPU, counts=False) for side in sides}, facts=facts)
    if "theirs" in sides:
        theirs = set(_numbered([edges_of_ase(one, config) for one in atoms]))
        unshared = len(theirs ^ set(_edges(found)))
        meeting.agreement = Agreement(
            differences={"edges not shared": float(unshared)}, tolerance={"edges not shared": 0.0}
        )
        meeting.agreement.check()
    return meeting


def edges_of_ase(atoms: ase.Atoms, config: ModelConfig) -> np.ndarray:
    """Rows [E, 5] of target, source and shift by ASE's neighbour list; the nearest of each target where limited."""
    target, source, shift, distance = primitive_neighbor_list(
        "ijSd", atoms.pbc, atoms.cell.array, atoms.positions, config.cutoff
    )
    edges = np.column_stack([target, source, shift])
    if config.max_neighbors is None:
        return edges
    order = np.lexsort((*shift.T[::-1], source, distance, target))
    first = np.searchsorted(target[order], target[order])
    return edges[order][np.arange(len(order)) - first < config.max_neighbors]


def _numbered(parts: list[np.ndarray]) -> Iterator[tuple[int, ...]]:
    for number, part in enumerate(parts):
        yield from ((number, *row) for row in part.tolist())


def _edges(batch: Batch) -> Iterator[tuple[int, ...]]:
    """System, target, source and shift of every edge, atoms counted in their system."""
    source, target = batch.built_edges.index
    system = batch.system_index[target]
    first = (batch.n_atoms.cumsum(0) - batch.n_atoms)[system]
    rows = torch.column_stack([system, target - first, source - first, batch.built_edges.shift.long()])
    yield from map(tuple, rows.tolist())
