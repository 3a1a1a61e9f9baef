"""A force field over all structures of a source: the one batch loop, and the errors of its predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from denskit.batch import Batch, System, Targets
from denskit.data.base import Source, collate
from denskit.models.base import ForceField
from denskit.runtime.memory import memory_named
from denskit.runtime.processes import Processes
from denskit.tasks.metrics import Metrics

MOST_ATOMS = 1000  # in a batch of several structures: the gradient of about 50,000 edges takes 2 GB


def batches(
    force_field: ForceField, source: Source, size: int, *, first: int = 0, step: int = 1, edges: bool = True
) -> Iterator[tuple[list[System], Batch, Targets]]:
    """Every ``step``-th structure from ``first``, on the model's device and in its precision.

    A batch has ``size`` structures, or fewer where these have more than ``MOST_ATOMS`` atoms together.
    """
    device, dtype = place_of(force_field)
    for systems in _groups((source[index] for index in range(first, len(source), step)), size):
        for system in systems:
            force_field.scaling.check_elements(system.atomic_numbers, f"{source.name}, frame {system.index},")
        batch, targets = collate(systems, dtype)
        if edges:
            try:
                batch = force_field.config.with_neighbors(batch)
            except ValueError as error:
                frames = ", ".join(str(system.index) for system in systems)
                raise ValueError(f"{source.name}, a batch of frames {frames}: {error}") from None
        yield systems, batch.to(device), targets.to(device)


def _groups(systems: Iterable[System], size: int) -> Iterator[list[System]]:
    group: list[System] = []
    atoms = 0
    for system in systems:
        if group and (len(group) == size or atoms + len(system) > MOST_ATOMS):
            yield group
            group, atoms = [], 0
        group.append(system)
        atoms += len(system)
    if group:
        yield group


def measure(
    force_field: ForceField,
    source: Source,
    *,
    batch_size: int,
    processes: Processes | None = None,
    advice: str = "lower the batch size",
) -> Metrics:
    """Errors of the predictions on all structures of a source, each judged by one process.

    Raises ValueError where a batch does not fit into memory, with ``advice``.
    """
    rank, count = (processes.rank, processes.count) if processes else (0, 1)
    metrics = Metrics(place_of(force_field)[0])
    with torch.no_grad():
        for _, batch, targets in batches(force_field, source, batch_size, first=rank, step=count):
            with memory_named(batch, advice):
                mean = force_field.scaling.reference_energy(batch)
                metrics.update(force_field.predict(batch), batch, targets, mean)
    if processes:
        processes.add(metrics.state)
    return metrics


def place_of(force_field: ForceField) -> tuple[torch.device, torch.dtype]:
    """Where a force field computes, and in which precision."""
    parameter = next(force_field.parameters())
    return parameter.device, parameter.dtype


def of_each(systems: list[System], found: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
    """Energies (eV), forces (eV/Å) and stresses (eV/Å^3) that were predicted for a batch, structure by structure."""
    found = {name: value.double().cpu() for name, value in found.items()}
    forces = found["forces"].split([len(system) for system in systems])
    for place, system in enumerate(systems):
        results = {"energy": float(found["energy"][place]), "forces": forces[place].numpy()}
        if "stress" in found and system.pbc.all():  # a molecule or a slab has no volume to divide by
            results["stress"] = found["stress"][place].numpy()
        yield results
