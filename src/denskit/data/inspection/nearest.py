"""Distances of atoms to their nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from ase.data import covalent_radii

from denskit.batch import System
from denskit.data.base import Source, collate, spaced
from denskit.data.crowding import REACH
from denskit.geometry.neighbors import build_neighbors

MOST = 250  # structures that are searched
SQUEEZED = 0.5  # of the sum of covalent radii; structures at 2000 K stay above 0.56


@dataclass(frozen=True)
class Nearest:
    """Of A atoms in some structures; infinite where no other atom is within ``REACH``."""

    place: np.ndarray  # [A] of the structure in the source
    atom: np.ndarray  # [A] in its structure
    distance: np.ndarray  # [A] Å
    ratio: np.ndarray  # [A] distance over the sum of the two covalent radii
    refused: dict[int, str]  # structures whose neighbours cannot be searched, with the reason


def nearest_of(source: Source) -> Nearest:
    """Nearest distances in at most ``MOST`` structures, evenly spaced."""
    whole, real = np.zeros(0, dtype=np.int64), np.zeros(0)
    parts, refused = [(whole, whole, real, real)], {}
    for place in spaced(len(source), MOST).tolist():
        try:
            distance, ratio = nearest_distances(source[place], REACH)
        except ValueError as error:
            refused[place] = str(error).removeprefix("System 0 of the batch: ")
            continue
        parts.append((np.full(len(distance), place), np.arange(len(distance)), distance, ratio))
    place, atom, distance, ratio = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Nearest(place, atom, distance, ratio, refused)


def nearest_distances(system: System, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Distance (Å) of each atom to its nearest neighbour within ``reach``, and over the sum of the covalent radii, both
    [n], infinite without one.  Raises ValueError as :func:`build_neighbors`."""
    batch, _ = collate([system], torch.float64)
    batch = build_neighbors(batch, reach, max_neighbors=1)
    neighbor, target = batch.built_edges.index.numpy()
    numbers = batch.atomic_numbers.numpy()
    distance, ratio = np.full((2, len(numbers)), np.inf)
    distance[target] = batch.edge_vectors().norm(dim=1).numpy()
    ratio[target] = distance[target] / (covalent_radii[numbers[neighbor]] + covalent_radii[numbers[target]])
    return distance, ratio
