"""How new the surroundings of an atom are, compared with the training structures.

The fingerprint of an atom counts its neighbours of each element in smooth shells: Gaussians of the distance, faded to
zero at 5 Å.  The novelty of an atom is the distance of its fingerprint to the nearest one of a training atom of the
same element, divided by the median of this distance from one training structure to the others.  So 1 is as new as
training structures are to each other; where these are alike to the last digits, as atoms on the sites of one lattice,
the unit is a thousandth of the fingerprint.  Angles count only through the distances of second neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from denskit.batch import System
from denskit.data.base import collate
from denskit.geometry.neighbors import build_neighbors

CUTOFF, SHELLS = 5.0, 10  # Å, Gaussians for each element
ALIKE = 1e-3  # of the length of a fingerprint: no training structures are taken to be nearer to each other
_FIRST = 0.8  # Å, centre of the first Gaussian
_CHUNK = 2000  # fingerprints compared at once


def novelty(tested: Sequence[System], trained: Sequence[System]) -> np.ndarray:
    """Novelty of each atom [N] of ``tested``; NaN for an element that fewer than two training structures have."""
    elements = np.unique(np.concatenate([system.atomic_numbers for system in (*tested, *trained)]))
    asked, asked_element, _ = _fingerprints(tested, elements)
    known, known_element, known_system = _fingerprints(trained, elements)
    found = np.full(len(asked), np.nan)
    for element in elements:
        rows, wanted = known_element == element, asked_element == element
        if not wanted.any() or len(np.unique(known_system[rows])) < 2:
            continue
        among = _nearest(known[rows], known[rows], known_system[rows], known_system[rows])
        scale = max(float(np.median(among)), ALIKE * float(np.linalg.norm(known[rows], axis=1).mean()))
        if scale > 0:
            nowhere = np.full(wanted.sum(), -1)
            found[wanted] = _nearest(asked[wanted], known[rows], nowhere, known_system[rows]) / scale
    return found


def _fingerprints(systems: Sequence[System], elements: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fingerprint [N, elements * shells], atomic number [N] and structure [N] of all atoms."""
    prints = np.concatenate([_fingerprint(system, elements) for system in systems])
    numbers = np.concatenate([system.atomic_numbers for system in systems])
    return prints, numbers, np.repeat(np.arange(len(systems)), [len(system) for system in systems])


def _fingerprint(system: System, elements: np.ndarray) -> np.ndarray:
    edges = build_neighbors(collate([system], torch.float64)[0], CUTOFF).edges
    assert edges is not None
    source, target = edges.index.numpy()
    vector = system.positions[source] + edges.shift.numpy() @ system.cell - system.positions[target]
    distance = np.linalg.norm(vector, axis=-1)
    centres, step = np.linspace(_FIRST, CUTOFF, SHELLS, retstep=True)
    fade = 0.5 * (1 + np.cos(np.pi * distance / CUTOFF))
    shells = np.exp(-0.5 * ((distance[:, None] - centres) / step) ** 2) * fade[:, None]
    counts = np.zeros((len(system), len(elements), SHELLS))
    np.add.at(counts, (target, np.searchsorted(elements, system.atomic_numbers[source])), shells)
    return counts.reshape(len(system), -1)


def _nearest(asked: np.ndarray, known: np.ndarray, asked_system: np.ndarray, known_system: np.ndarray) -> np.ndarray:
    """Distance of each asked fingerprint [n] to the nearest known one of another structure."""
    found = []
    for begin in range(0, len(asked), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        distance = torch.cdist(torch.from_numpy(asked[part]), torch.from_numpy(known)).numpy()
        distance[asked_system[part, None] == known_system] = np.inf
        found.append(distance.min(1))
    return np.concatenate(found)
