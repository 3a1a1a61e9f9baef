"""Predictions of a force field for all structures of a source: the one batch loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from ase.data import chemical_symbols

from denskit.batch import Batch, System, Targets
from denskit.data.base import Source, collate, known_elements
from denskit.data.crowding import crowding
from denskit.data.records import unknown_elements
from denskit.models.base import ForceField
from denskit.models.committee import Committee
from denskit.runtime.progress import Report, unreported
from denskit.runtime.warning import warn

Predictor = ForceField | Committee
T = TypeVar("T")
MOST_ATOMS = 1000  # in a batch of several structures: the gradient of about 50,000 edges takes 2 GB


def batches(
    force_field: Predictor, source: Source, size: int, *, first: int = 0, step: int = 1, edges: bool = True,
    progress: Report = unreported,
) -> Iterator[tuple[list[System], Batch, Targets]]:  # fmt: skip
    """Batches of every ``step``-th structure from ``first``, on the model's device and in its precision.

    A batch has ``size`` structures, or fewer where more would exceed ``MOST_ATOMS`` atoms.  Warns of the first
    structure with so many neighbours that it takes long.  ``progress`` hears of structures done of all, by name.

    Raises ValueError for an element that the model does not know, and a structure without a neighbour list.
    """
    parameter, cost, done = next(force_field.parameters()), "", 0
    for systems in groups((source[index] for index in range(first, len(source), step)), size, len):
        for system in systems:
            force_field.scaling.check_structure(system, f"{source.name}, frame {system.index},")
            if not cost and (cost := crowding(system, force_field.config.cutoff)):
                warn(f"{source.name}, frame {system.index}: {cost}")
        batch, targets = collate(systems, parameter.dtype)
        if edges:
            try:
                batch = force_field.config.with_neighbors(batch)
            except ValueError as error:
                frames = ", ".join(str(system.index) for system in systems)
                raise ValueError(f"{source.name}, a batch of frames {frames}: {error}") from None
        yield systems, batch.to(parameter.device), targets.to(parameter.device)
        done += step * len(systems)
        progress(min(done, len(source)), str(source.name), len(source))


def require_known_elements(force_field: Predictor, source: Source) -> None:
    """Raise ValueError, before the work, naming the structures with elements that the model was not trained on.

    Of sources on disk without a list of elements :func:`batches` names the first one when it comes to it.
    """
    known = force_field.scaling.elements
    if found := unknown_elements(source, known_elements(source), known):
        raise ValueError(
            f"{found}, which this model was not trained on (it knows {' '.join(chemical_symbols[z] for z in known)}). "
            "Leave these out, or train with data that have the elements"
        )


def groups(items: Iterable[T], size: int, atoms: Callable[[T], int]) -> Iterator[list[T]]:
    """Consecutive items, ``size`` at most, with ``MOST_ATOMS`` atoms at most unless one has more."""
    group: list[T] = []
    total = 0
    for item in items:
        if group and (len(group) == size or total + atoms(item) > MOST_ATOMS):
            yield group
            group, total = [], 0
        group.append(item)
        total += atoms(item)
    if group:
        yield group


def predict_each(
    force_field: Predictor, source: Source, size: int, progress: Report = unreported
) -> Iterator[tuple[System, dict[str, Any]]]:
    """Each structure with its predictions: "energy" (eV), "forces" [n, 3] (eV/Å) and "stress" [3, 3] (eV/Å^3).

    The stress is there where the model has one and the structure is periodic in all directions; of a committee there
    are also "energy_std" and "forces_std".  ``progress``: as of :func:`batches`.
    """
    require_known_elements(force_field, source)
    for systems, batch, _ in batches(force_field, source, size, progress=progress):
        with torch.no_grad():
            found = {name: value.double().cpu() for name, value in force_field.predict(batch).items()}
        lengths = [len(system) for system in systems]
        energies = {name: found[name] for name in ("energy", "energy_std") if name in found}
        forces = {name: found[name].split(lengths) for name in ("forces", "forces_std") if name in found}
        for place, system in enumerate(systems):
            results: dict[str, Any] = {name: float(values[place]) for name, values in energies.items()}
            results |= {name: values[place].numpy() for name, values in forces.items()}
            if "stress" in found and system.pbc.all():  # a molecule or a slab has no volume to divide by
                results["stress"] = found["stress"][place].numpy()
            yield system, results
