"""How far atoms are from their nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from ase.data import covalent_radii

from denskit.data.base import Source, collate, spaced
from denskit.geometry.neighbors import build_neighbors

REACH = 6.0  # Å, of the search: about what models see
FRAMES = 250  # looked at


@dataclass(frozen=True)
class Nearest:
    """Of A atoms in some frames; infinite where no other atom is within ``REACH``."""

    frame: np.ndarray  # [A] place in the sample
    atom: np.ndarray  # [A] in its frame
    distance: np.ndarray  # [A] Å
    ratio: np.ndarray  # [A] distance over the sum of the two covalent radii
    refused: dict[int, str]  # frames in which no neighbours can be searched, and why


def nearest_of(frames: Source) -> Nearest:
    """Evenly spaced frames, at most ``FRAMES``."""
    chosen = spaced(len(frames), FRAMES)
    parts: list[tuple[np.ndarray, ...]] = []
    refused = {}
    for place in chosen.tolist():
        try:
            distance, ratio = _of_frame(frames, place)
        except ValueError as error:
            refused[place] = str(error).removeprefix("System 0 of the batch: ")
            continue
        parts.append((np.full(len(distance), place), np.arange(len(distance)), distance, ratio))
    whole, real = np.zeros(0, dtype=np.int64), np.zeros(0)
    columns = zip((whole, whole, real, real), *parts, strict=True)
    frame, atom, distance, ratio = (np.concatenate(column) for column in columns)
    return Nearest(frame, atom, distance, ratio, refused)


def _of_frame(frames: Source, place: int) -> tuple[np.ndarray, np.ndarray]:
    batch, _ = collate([frames[place]], torch.float64)
    batch = build_neighbors(batch, REACH, max_neighbors=1)
    assert batch.edge_index is not None
    source, target = batch.edge_index.numpy()
    numbers = batch.atomic_numbers.numpy()
    distance, ratio = np.full(len(numbers), np.inf), np.full(len(numbers), np.inf)
    distance[target] = batch.edge_vectors().norm(dim=1).numpy()
    ratio[target] = distance[target] / (covalent_radii[numbers[source]] + covalent_radii[numbers[target]])
    return distance, ratio
