"""How new the surroundings of an atom are, compared with the training structures.

Surroundings are features of an atom: those of a model, or radial ones, which count its neighbours of each element in
smooth shells: Gaussians of the distance, faded to zero at 5 Å.  Angles count only through the distances of second
neighbours.

The novelty of an atom is the distance of its features to the nearest ones of a training atom of the same element,
divided by the median of this distance from one training structure to the others.  So 1 is as new as training structures
are to each other.  Where these are alike to the last digits, as atoms on the sites of one lattice, the unit is a
thousandth of the length of the features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from denskit.batch import Batch, System
from denskit.data.base import collate
from denskit.geometry.neighbors import build_neighbors
from denskit.nn.cutoff import CosineCutoff

CUTOFF, SHELLS = 5.0, 10  # Å, Gaussians for each element
ALIKE = 1e-3  # of the length of the features: no training structures are taken to be nearer to each other
SAMPLE = 1000  # training atoms of an element that give its unit
_FIRST = 0.8  # Å, centre of the first Gaussian
_PAIRS = 10_000_000  # distances computed at once


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Features of the atoms of several structures."""

    features: Tensor  # [A, C] float64
    numbers: Tensor  # [A] int64, atomic numbers
    frame: Tensor  # [A] int64, structure of each atom


def radial_features(batch: Batch, elements: Tensor) -> Tensor:
    """Sums of the shells over the neighbours of each element [N, E * SHELLS]; ``elements`` [E]: sorted numbers."""
    near = build_neighbors(batch, CUTOFF)
    source, target = near.built_edges.index
    distance = near.edge_vectors().norm(dim=1)
    centres = torch.linspace(_FIRST, CUTOFF, SHELLS, dtype=distance.dtype)
    shells = torch.exp(-0.5 * ((distance[:, None] - centres) / (centres[1] - centres[0])) ** 2)
    place = target * len(elements) + torch.searchsorted(elements, batch.atomic_numbers[source])
    sums = shells.new_zeros(batch.num_atoms * len(elements), SHELLS)
    sums.index_add_(0, place, shells * CosineCutoff(CUTOFF)(distance)[:, None])
    return sums.reshape(batch.num_atoms, -1)


def radial_novelty(tested: Sequence[System], trained: Sequence[System]) -> np.ndarray:
    """Novelty [N] of the atoms of ``tested`` by radial features."""
    elements = torch.from_numpy(np.unique(np.concatenate([system.atomic_numbers for system in (*tested, *trained)])))
    return novelty(_radial(tested, elements), _radial(trained, elements)).numpy()


def novelty(asked: Surroundings, known: Surroundings) -> Tensor:
    """Novelty [A] of each asked atom; infinite for an element that training has not.

    An element that only one training structure has takes the median unit of the others.
    """
    units = {int(element): _unit(known, known.numbers == element) for element in known.numbers.unique()}
    measured = [unit for unit in units.values() if unit is not None]
    found = torch.full((len(asked.features),), torch.inf, dtype=torch.float64)
    for element, unit in units.items():
        own, theirs = asked.numbers == element, known.features[known.numbers == element]
        usual = float(np.median(measured)) if measured else _least(theirs)
        found[own] = nearest_distance(asked.features[own], theirs) / (usual if unit is None else unit)
    return found


def nearest_distance(points: Tensor, others: Tensor, frames: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Distance [P] of each point to the nearest of the others; infinite where there is none.

    ``frames`` of both: only others of another frame count.
    """
    if not len(others):
        return points.new_full((len(points),), torch.inf)
    found = []
    for rows in torch.arange(len(points)).split(max(1, _PAIRS // len(others))):
        apart = torch.cdist(points[rows], others)
        if frames is not None:
            apart[frames[0][rows, None] == frames[1]] = torch.inf
        found.append(apart.amin(1))
    return torch.cat(found)


def _radial(systems: Sequence[System], elements: Tensor) -> Surroundings:
    batches = [collate([system], torch.float64)[0] for system in systems]
    return Surroundings(
        features=torch.cat([radial_features(batch, elements) for batch in batches]),
        numbers=torch.cat([batch.atomic_numbers for batch in batches]),
        frame=torch.arange(len(systems)).repeat_interleave(torch.tensor([len(system) for system in systems])),
    )


def _unit(known: Surroundings, rows: Tensor) -> float | None:
    """Median distance of an atom to the nearest of another structure, among ``rows`` [A]; None: there is one only."""
    features, frame = known.features[rows], known.frame[rows]
    sample = torch.randperm(len(frame), generator=torch.Generator().manual_seed(0))[:SAMPLE]
    apart = nearest_distance(features[sample], features, (frame[sample], frame))
    return max(float(apart.median()), _least(features)) if bool(apart.isfinite().all()) else None


def _least(features: Tensor) -> float:
    """The smallest unit; 1 where there is nothing to compare, as for atoms alone."""
    length = ALIKE * float(features.norm(dim=1).mean())
    return length if length > 0 else 1.0
