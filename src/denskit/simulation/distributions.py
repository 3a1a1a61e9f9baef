"""The structure of a simulation compared with a reference: h(r), its error, and the Wasserstein-1 distance.

h(r) and its error as in the simulation benchmark of Fu et al. (2023), "Forces are not Enough: Benchmark and Critical
Evaluation for Machine Learning Force Fields with Molecular Simulations".
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

BINS = 500
NEAREST, FARTHEST = 1e-6, 10.0  # Å, range of h(r); the lower end excludes the distance of an atom to itself
EDGES = np.linspace(NEAREST, FARTHEST, BINS + 1)
_AT_ONCE, _HALVINGS = 100, 8  # structures whose distances are held; random halves of the same structures
WIDTH = (FARTHEST - NEAREST) / BINS  # Å


class DistanceHistogram:
    """Histograms of interatomic distances, for h(r) of several simulations.

    ``counts`` [B, 501] int64: 500 bins on (1e-6, 10 Å), and one for larger distances, which h(r) excludes.
    """

    def __init__(self, num_systems: int, device: torch.device | str = "cpu") -> None:
        self.counts = torch.zeros(num_systems, BINS + 1, dtype=torch.int64, device=device)
        self._edges = torch.from_numpy(EDGES).to(device)

    def add(self, positions: Tensor, systems: Tensor) -> None:
        """Count the distances in positions [b, n, 3] (Å) of the simulations ``systems`` [b], b <= B."""
        # each pair once: the second order would double every count
        one, other = torch.triu_indices(positions.shape[1], positions.shape[1], 1, device=positions.device)
        distance = torch.linalg.vector_norm(positions[:, one].double() - positions[:, other].double(), dim=-1)
        place = torch.searchsorted(self._edges, distance, right=True) - 1  # [b, pairs]
        place = torch.where(distance == FARTHEST, BINS - 1, place)  # the last bin includes its upper edge, as in numpy
        rows = torch.zeros(len(systems), BINS + 1, dtype=torch.int64, device=distance.device)
        rows.scatter_add_(1, place.clamp(min=0), (place >= 0).long())
        self.counts.index_add_(0, systems, rows)

    def h_of_r(self, systems: slice | int = slice(None)) -> np.ndarray:
        """h(r) [500] in 1/Å: density of the distances within 10 Å, of all ``systems`` together; zeros without any."""
        inside = self._counted(systems)[:BINS].astype(np.float64)
        return inside / max(inside.sum(), 1.0) / WIDTH

    def wasserstein(self, reference: DistanceHistogram, systems: slice | int = slice(None)) -> float:
        """Clipped Wasserstein-1 distance (Å) to ``reference``; see :func:`wasserstein`."""
        return wasserstein(self._counted(systems), reference._counted(slice(None)))

    def _counted(self, systems: slice | int) -> np.ndarray:
        return self.counts[systems].reshape(-1, BINS + 1).sum(0).cpu().numpy()


def histogram_of(structures: np.ndarray) -> DistanceHistogram:
    """Histogram of structures [F, n, 3] (Å) of one molecule, as one simulation."""
    return _histogram(structures, np.zeros(len(structures), dtype=np.int64), 1)


def _histogram(structures: np.ndarray, systems: np.ndarray, count: int) -> DistanceHistogram:
    """Histogram of structures [F, n, 3] (Å) as snapshots of ``count`` simulations, ``systems`` [F]."""
    histogram = DistanceHistogram(count)
    for begin in range(0, len(structures), _AT_ONCE):
        part = slice(begin, begin + _AT_ONCE)
        positions = torch.from_numpy(np.ascontiguousarray(structures[part]))
        histogram.add(positions, torch.from_numpy(systems[part]))
    return histogram


def h_of_r_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Published error of h(r): mean absolute difference of the bins [500] times 10 Å; between 0 and 2."""
    return float(np.abs(found - wanted).mean() * FARTHEST)


def halves_error(structures: np.ndarray) -> float:
    """Error of h(r) between random halves of structures [F, n, 3] (Å): a mean of eight; NaN of fewer than four."""
    if len(structures) < 4:
        return float("nan")
    rng, half, errors = np.random.default_rng(0), len(structures) // 2, []
    for _ in range(_HALVINGS):
        chosen = rng.permutation(len(structures))[: 2 * half]
        halves = _histogram(structures[chosen], np.arange(2 * half) % 2, 2)
        errors.append(h_of_r_error(halves.h_of_r(0), halves.h_of_r(1)))
    return float(np.mean(errors))


def wasserstein(found: np.ndarray, wanted: np.ndarray) -> float:
    """Wasserstein-1 distance (Å) of two distributions of distances, from counts [501]: the area between their CDFs.

    Clipped: a distance beyond 10 Å counts as 10 Å.  The error of h(r) saturates when two peaks no longer overlap; this
    distance grows with their shift.  NaN where either has no distances.
    """
    if not (found.sum() and wanted.sum()):
        return float("nan")
    difference = np.cumsum(found / found.sum()) - np.cumsum(wanted / wanted.sum())
    return float(np.abs(difference[:BINS]).sum() * WIDTH)
