"""Settings that the training data decide: sizes of model and batch, averages of degree and atoms, noise of DeNS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from ase.data import atomic_numbers, chemical_symbols
from pydantic import ValidationError

from denskit.batch import System
from denskit.data import LoadedData
from denskit.data.base import Source, collate, evenly, spaced
from denskit.data.crowding import REACH
from denskit.data.inspection.nearest import nearest_of
from denskit.data.periodicity import mostly_crystals
from denskit.models.config import MEASURED, ModelConfig
from denskit.models.model_file import read_header
from denskit.runtime.progress import counted
from denskit.settings import problems_in
from denskit.tasks import FOR_CRYSTALS, DenoisingConfig, DeNSConfig
from denskit.training.run_folder import model_file
from denskit.training.settings import RunConfig, SizeRow, TrainingConfig
from denskit.training.starting_model import SAMPLE as LABELLED  # structures whose labels are read

SAMPLE = 64  # training structures that are measured
SHARE = 0.045  # of the median distance to the nearest atom: 0.05 Å for organic molecules, as published for MD17
MOLECULAR = 1.3  # Å: most atoms of molecules with hydrogen have a neighbour nearer than this
RANGE = (0.025, 0.15)  # Å, smallest and largest sigma of the paper
_LISTED = 5  # structures that an error names
_UNITS = {"average_degree": "neighbours an atom", "average_atoms": "atoms a structure"}


def fit_model_to_data(config: RunConfig, data: LoadedData) -> tuple[RunConfig, list[str]]:
    """The run with all settings of the model set, and those of the training by its size; and messages for the log.

    ``sizes`` gives settings by the number of training structures; those of ``MEASURED`` that are null are measured on
    evenly spaced training structures.  With ``training.init_from`` they are the trained model's.
    Raises ValueError where settings do not go together.
    """
    messages: list[str] = []
    settings = config.model.model_dump()
    unknown = [name for name in MEASURED if settings.get(name, 0) is None]
    if config.training.init_from is not None and unknown:  # asked for; load_config takes all others
        trained = read_header(model_file(config.training.init_from))["model"]
        settings |= {name: trained[name] for name in unknown if name in trained}
        messages.append(f"averages of the training structures as in {config.training.init_from}")
    elif config.sizes:
        row = rows_for(config.sizes, len(data.train))[0]
        settings |= row.model
        chosen = row.model | {f"training.{key}": value for key, value in row.training.items()}
        if chosen:  # all of it may have been given
            listed = ", ".join(f"{key}={value}" for key, value in chosen.items())
            messages.append(f"model sized for {counted(len(data.train), 'training structure')}: {listed}")
        config = config.model_copy(update={"training": training_for(config, len(data.train))})
    unknown = [name for name in unknown if settings[name] is None]
    if unknown:
        measured = _averages(data.train, config.model)
        settings |= {name: measured[name] for name in unknown}
        listed = ", ".join(f"{measured[name]:.1f} {_UNITS[name]}" for name in unknown)
        messages.append(f"measured on the training structures: {listed}")
    if not messages:
        return config, messages
    try:
        model = type(config.model).model_validate(settings)
    except ValidationError as error:
        raise ValueError(f"the model sized for {len(data.train)} training structures: {problems_in(error)}") from None
    return config.model_copy(update={"model": model, "sizes": ()}), messages


def training_for(config: RunConfig, structures: int) -> TrainingConfig:
    """Settings of a training on so many structures, with those that ``sizes`` gives.

    Raises ValueError where they do not go together.
    """
    rows = rows_for(config.sizes, structures)
    if not rows or not rows[0].training:
        return config.training
    try:
        return TrainingConfig.model_validate(config.training.model_dump() | rows[0].training)
    except ValidationError as error:
        sized = ", ".join(f"training.{key}={value}" for key, value in rows[0].training.items())
        raise ValueError(
            f"the training sized for {structures} structures, {sized}: {problems_in(error)}; what is given stays"
        ) from None


def rows_for(rows: Sequence[SizeRow], structures: int) -> list[SizeRow]:
    """The first row meant for so many structures, else the last; then those above while each wants ``min_steps``."""
    meant = (place for place, row in enumerate(rows) if row.up_to is None or structures <= row.up_to)
    place = next(meant, len(rows) - 1)
    found = list(rows[place : place + 1])
    while found and found[-1].min_steps is not None and place > 0:
        place -= 1
        found.append(rows[place])
    return found


def _averages(source: Source, model: ModelConfig) -> dict[str, float]:
    chosen = spaced(len(source), SAMPLE)
    atoms = edges = 0
    for index in chosen:  # one at a time: a few large cells must not fill the memory
        batch, _ = collate([source[int(index)]], torch.float64)
        atoms += batch.num_atoms
        edges += model.with_neighbors(batch).num_edges
    if not edges:
        raise ValueError(
            f"no atom of {len(chosen)} training structures of {source.name} has another one within "
            f"model.cutoff={model.cutoff:g} Å; usual are 4 to 6 Å (lengths of the file are taken to be in Å)"
        )
    return {"average_degree": max(edges / atoms, 1.0), "average_atoms": atoms / len(chosen)}


def fit_dens_to_crystals(config: RunConfig, source: Source) -> tuple[RunConfig, list[str]]:
    """The run with the settings of DeNS for crystals, and a message for the log.

    Where most training structures are crystals, ``FOR_CRYSTALS`` replaces the defaults, which are for molecules; given
    settings stay.  Liquids of molecules, known by their short bonds, are no crystals.  Of ``corruption_ratio`` and
    ``max_corrupted_share`` both stay where one is given; ``max_force`` stays where it would exclude most structures.
    """
    task = config.task
    if not isinstance(task, DeNSConfig):
        return config, []
    given, pair = set(task.model_fields_set), {"corruption_ratio", "max_corrupted_share"}
    if given & pair or not task.partial:
        given |= pair
    chosen = {name: value for name, value in FOR_CRYSTALS.items() if name not in given}
    if not chosen:
        return config, []
    sample = evenly(source, SAMPLE)
    systems = list(sample)
    if not mostly_crystals(systems) or np.median(nearest_of(sample).distance) < MOLECULAR:
        return config, []
    if np.median([_largest_force(system) for system in systems]) > FOR_CRYSTALS["max_force"]:
        chosen.pop("max_force", None)
    listed = " ".join(f"task.{name}={value:g}" for name, value in chosen.items())
    message = f"most training structures are crystals, so DeNS takes {listed} (docs/crystals.md)"
    return config.model_copy(update={"task": task.model_copy(update=chosen)}), [message]


def _largest_force(system: System) -> float:
    """Norm (eV/Å) of the largest force on a free atom; 0 without forces."""
    if system.forces is None or system.fixed.all():
        return 0.0
    return float(np.linalg.norm(system.forces[~system.fixed], axis=1).max())


def fit_sigma_to_data(config: RunConfig, source: Source) -> tuple[RunConfig, list[str]]:
    """The run with a number or a table for ``task.sigma``, and a message for the log.

    Rules, not optima.  "auto": ``SHARE`` of the median distance from an atom to its nearest one, over all atoms of at
    most ``SAMPLE`` evenly spaced training structures, kept in ``RANGE`` and rounded to 0.001 Å.  "auto_by_element": see
    :func:`_by_element`.  Raises ValueError where no atom has another one near or no atom has a force, and where a given
    table lacks an element of the training structures.
    """
    task = config.task
    if isinstance(task, DenoisingConfig) and isinstance(task.sigma, dict):
        _require_elements(task.sigma, source)
    if not isinstance(task, DenoisingConfig) or not isinstance(task.sigma, str):
        return config, []
    sigma, message = _from_distances(source, task.sigma)
    found: float | dict[str, float] = sigma
    if task.sigma == "auto_by_element":
        found = _by_element(sigma, source)
        table = ", ".join(f"{symbol} {number:g}" for symbol, number in found.items())
        message = (
            f"task.sigma=auto_by_element: {table} Å, in inverse proportion to the root mean square force of the "
            f"element, as large on average as {message}"
        )
    else:
        message = f"task.sigma=auto: sigma = {message}"
    return config.model_copy(update={"task": task.model_copy(update={"sigma": found})}), [message]


def _from_distances(source: Source, asked: str) -> tuple[float, str]:
    """Sigma of all atoms, Å, and how it was found."""
    distance = nearest_of(evenly(source, SAMPLE)).distance
    distance = distance[np.isfinite(distance)]
    if not distance.size:
        raise ValueError(
            f"task.sigma={asked}: in {source.name} no atom has another one within {REACH:g} Å; give sigma as a number "
            "in Å"
        )
    median = float(np.median(distance))
    sigma = round(float(np.clip(SHARE * median, *RANGE)), 3)
    return sigma, (
        f"{sigma:g} Å, {SHARE:g} of the median distance to the nearest atom, {median:.3f} Å, kept between "
        f"{RANGE[0]:g} and {RANGE[1]:g} Å"
    )


def _by_element(sigma: float, source: Source) -> dict[str, float]:
    """Standard deviations of the noise by element, Å, with the mean square ``sigma``^2 over the atoms.

    In a canonical ensemble <F^2> = k T <d^2U / dx^2> holds for each coordinate: the mean square force of an element
    measures its curvature.  Noise in inverse proportion to the root mean square force therefore raises the energy of
    all elements alike; elements without forces get ``sigma``.  The largest is at most ``RANGE[1] / RANGE[0]`` times the
    smallest, and all are in ``RANGE``.
    """
    squares, atoms = np.zeros((2, len(chemical_symbols)))
    without_forces = set[int]()
    for system in evenly(source, LABELLED):
        numbers = system.atomic_numbers[~system.fixed]
        if system.forces is None:
            without_forces |= set(numbers.tolist())
        else:
            np.add.at(squares, numbers, (system.forces[~system.fixed] ** 2).mean(1))
            np.add.at(atoms, numbers, 1)
    if not squares.any():
        raise ValueError(f"task.sigma=auto_by_element: {source.name} has no forces on free atoms; use task.sigma=auto")
    numbers = np.flatnonzero(atoms)
    curvature = squares[numbers] / atoms[numbers]
    curvature = np.maximum(curvature, curvature.max() * (RANGE[0] / RANGE[1]) ** 2)
    scale = sigma / np.sqrt(np.average(1 / curvature, weights=atoms[numbers]))
    found = np.clip(scale / np.sqrt(curvature), *RANGE)
    table = {number: float(one) for number, one in zip(numbers.tolist(), found, strict=True)}
    table |= dict.fromkeys(without_forces - table.keys(), sigma)
    return {chemical_symbols[number]: round(table[number], 3) for number in sorted(table)}


def _require_elements(table: Mapping[str, float], source: Source) -> None:
    """Raise ValueError naming an element that the table lacks, and the training structures that have it."""
    known = [atomic_numbers[symbol] for symbol in table]
    lacking: dict[int, list[int]] = {}
    for system in evenly(source, LABELLED):
        for number in np.setdiff1d(system.atomic_numbers[~system.fixed], known).tolist():
            lacking.setdefault(number, []).append(system.index)
    if lacking:
        names = " ".join(chemical_symbols[number] for number in sorted(lacking))
        number, frames = min(lacking.items())
        more = f" and {len(frames) - _LISTED} more" if len(frames) > _LISTED else ""
        raise ValueError(
            f"task.sigma gives no noise for {names}: in {source.name} {chemical_symbols[number]} is in the training "
            f"structures {', '.join(map(str, sorted(frames)[:_LISTED]))}{more}; add a number for each element, in Å"
        )
