"""Predictions beside labels, as arrays to draw."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from denskit.analysis.plots import Pair
from denskit.data.base import Source, evenly
from denskit.data.config import FixedFrom
from denskit.evaluation.evaluate import Kept, load_force_field, source_of
from denskit.models.base import ForceField
from denskit.models.prediction import predict_each


@dataclass(frozen=True)
class Predictions:
    """Labels and predictions; ``None`` where no structure has the label."""

    energy: Pair | None  # [B] eV
    forces: Pair | None  # [n, 3] eV/Å, free atoms


def predictions(force_field: ForceField, source: Source, *, most: int = 500, batch_size: int = 32) -> Predictions:
    """Predict at most ``most`` structures of ``source``, evenly spaced."""
    energy: list[tuple[float, float]] = []
    forces: list[Pair] = []
    for system, found in predict_each(force_field, evenly(source, most), batch_size):
        if system.energy is not None:
            energy.append((system.energy, found["energy"]))
        if system.forces is not None:
            forces.append((system.forces[~system.fixed], found["forces"][~system.fixed]))
    energies = np.array(energy).reshape(-1, 2).T
    reference, predicted = (np.concatenate(side) for side in zip(*forces, strict=True)) if forces else (None, None)
    return Predictions(
        energy=(energies[0], energies[1]) if energy else None,
        forces=None if reference is None or predicted is None else (reference, predicted),
    )


def predictions_of(
    model: Path,
    file: str | Path | None = None,
    *,
    checkpoint: Kept | None = None,
    device: str = "auto",
    fixed: FixedFrom | None = None,
) -> Predictions:
    """Predict the structures of ``file``, else of a run's test split; ``fixed`` as :func:`evaluate` takes it.

    Raises FileNotFoundError where there is no model, ValueError where a run has no test split.
    """
    return predictions(load_force_field(model, checkpoint, device), source_of(model, file, "test", fixed))
