"""A training before its first step: its length and its structures, for warnings and hints."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from denskit.batch import System
from denskit.data.base import Source, collate, evenly
from denskit.data.crowding import REACH
from denskit.data.inspection.nearest import nearest_distances
from denskit.data.periodicity import mostly_crystals
from denskit.training.fitted_denoising import MOLECULAR, few_epochs_of
from denskit.training.schedule import Schedule
from denskit.training.settings import RunConfig

SAMPLE = 64  # training structures that are checked
SAME = 0.01  # Å between the nearest distances of atoms of one element; 0.18 in bcc metals at 300 K


@dataclass(frozen=True)
class PlannedTraining:
    """A training before its first step."""

    config: RunConfig
    schedule: Schedule
    source: Source  # training structures
    valid: int = 0  # validation structures

    @property
    def epochs(self) -> float:
        """Length of the training."""
        return self.schedule.total_steps / self.schedule.steps_per_epoch

    @property
    def fresh(self) -> bool:
        """Whether it starts from random weights."""
        return self.config.training.init_from is None

    @cached_property
    def systems(self) -> list[System]:
        """Evenly spaced training structures."""
        return list(evenly(self.source, SAMPLE))

    @property
    def parity(self) -> bool:
        """Whether mirror images have one energy by construction: gains of DeNS were measured without."""
        return bool(getattr(self.config.model, "parity", False))

    @property
    def few_epochs(self) -> int:
        """Epochs up to which DeNS was not seen to pay at this batch size."""
        return few_epochs_of(self.config.training.batch_size)

    @cached_property
    def force_rms(self) -> np.ndarray:
        """Root mean square force (eV/Å) over the free atoms of each of these structures; 0 without labels."""
        forces = [np.zeros(3) if s.forces is None else s.forces[~s.fixed] for s in self.systems]
        return np.array([np.sqrt((f**2).sum(-1).mean()) if f.size else 0.0 for f in forces])

    @cached_property
    def on_sites(self) -> bool:
        """Whether the atoms of most structures are on the sites of a lattice."""
        return 2 * sum(map(on_lattice_sites, self.systems)) > len(self.systems)

    @property
    def hot_crystals(self) -> bool:
        """Whether most structures are crystals, and the atoms of most displaced from the sites of a lattice."""
        return mostly_crystals(self.systems) and not self.on_sites and self.shortest_distance > MOLECULAR

    @cached_property
    def shortest_distance(self) -> float:
        """Between two atoms of these structures, Å; the cutoff where none are nearer."""
        shortest = self.config.model.cutoff
        for system in self.systems:
            vectors = self.config.model.with_neighbors(collate([system], torch.float64)[0]).edge_vectors()
            shortest = min([shortest, *torch.linalg.vector_norm(vectors, dim=-1).tolist()])
        return shortest


def on_lattice_sites(system: System) -> bool:
    """Whether the atoms of each element are equally far from their nearest neighbours, as on the sites of a lattice."""
    try:
        distance, _ = nearest_distances(system, REACH)
    except ValueError:  # a cell that is no crystal's
        return False
    numbers = system.atomic_numbers
    return bool(np.isfinite(distance).all()) and all(np.ptp(distance[numbers == z]) < SAME for z in np.unique(numbers))
