"""The weights of the loss where energies differ by far more than forces explain, as those of many materials do."""

from __future__ import annotations

import numpy as np

from denskit.batch import System
from denskit.data.base import Source, evenly
from denskit.models.fitted_scaling import Statistics
from denskit.models.reference_fit import fit_references
from denskit.tasks import FOR_MANY_MATERIALS, LossConfig
from denskit.training.settings import RunConfig

SAMPLE = 1000  # training structures whose energies are compared
# Å: molecules, liquids, alloys, metals and adsorbates have 0.005 to 0.3, MPtrj 4; at 2.2 (W-Be) both losses have merits
FAR_APART = 3.0


def fit_loss_to_energies(config: RunConfig, source: Source) -> tuple[RunConfig, list[str]]:
    """The run with the loss for many materials, and a message for the log.

    Where energies per atom are further from the references of the elements than ``FAR_APART`` times the mean force, the
    defaults, which are for molecules, hardly learn them; ``FOR_MANY_MATERIALS`` replaces them.  All stay with
    ``training.init_from``, where one of these settings or the form of the loss is given, and where the task has
    defaults of its own for them.
    """
    task = config.task
    if config.training.init_from is not None or {*FOR_MANY_MATERIALS, "loss"} & task.model_fields_set:
        return config, []
    fields = type(task).model_fields
    if any(fields[name].default != LossConfig.model_fields[name].default for name in FOR_MANY_MATERIALS):
        return config, []
    spread, force = energy_spread(list(evenly(source, SAMPLE)))
    if not spread > FAR_APART * force > 0:
        return config, []
    listed = " ".join(f"task.{name}={value}" for name, value in FOR_MANY_MATERIALS.items())
    message = (
        f"energies are {1000 * spread:.0f} meV an atom from the references of the elements, and forces "
        f"{1000 * force:.0f} meV/Å: so far apart, energies are weighed by the atom, {listed} (docs/crystals.md)"
    )
    return config.model_copy(update={"task": task.model_copy(update=dict(FOR_MANY_MATERIALS))}), [message]


def energy_spread(systems: list[System]) -> tuple[float, float]:
    """How far energies are from the references, and how large the forces are.

    Root mean square error of the energy of a structure by references that are fitted to the others, in eV per atom (NaN
    where there are too few); mean absolute component of the forces on free atoms, in eV/Å (0 where there are none).
    Left out are isolated atoms, and structures with an element that no other composition has: nothing tells its energy.
    """
    bound = [system for system in systems if system.energy is not None and not system.is_isolated]
    free = [np.abs(system.forces[~system.fixed]).ravel() for system in bound if system.forces is not None]
    if len(bound) < 2 or not sum(map(len, free)):
        return np.nan, 0.0
    statistics = Statistics(bound)
    told = _determined(statistics.counts)
    if told.sum() < 2:
        return np.nan, 0.0
    counts = statistics.counts[told]
    present = counts.any(axis=0)
    error = fit_references(counts[:, present].astype(np.float64), statistics.energies[told]).error_left_out
    return error, float(np.concatenate(free).mean())


def _determined(counts: np.ndarray) -> np.ndarray:
    """Structures [B] of atoms by element [B, K] all of whose elements are in two compositions, where there are two."""
    compositions = np.unique(counts, axis=0)
    rare = ((compositions > 0).sum(axis=0) == 1) & (len(compositions) > 1)
    return np.asarray(~(counts[:, rare] > 0).any(axis=1), dtype=bool)
