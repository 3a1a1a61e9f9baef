"""Settings of DeNS that the training data decide."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from ase.data import atomic_numbers, chemical_symbols

from denskit.batch import System
from denskit.data.base import Source, evenly
from denskit.data.crowding import REACH
from denskit.data.inspection.nearest import nearest_of
from denskit.data.periodicity import mostly_crystals
from denskit.data.records import unknown_elements
from denskit.tasks import FOR_CRYSTALS, DenoisingConfig, DeNSConfig
from denskit.training.settings import RunConfig
from denskit.training.starting_model import SAMPLE as LABELLED  # structures whose labels are read

SAMPLE = 64  # training structures that are measured
SHARE = 0.045  # of the median distance to the nearest atom: 0.05 Å for organic molecules, as published for MD17
MOLECULAR = 1.3  # Å: most atoms of molecules with hydrogen have a neighbour nearer than this
RANGE = (0.025, 0.15)  # Å, smallest and largest sigma of the paper
SMALL_BATCH = 4  # structures: the preset's for few, with which only the next two numbers were measured
FEW_EPOCHS = 400, 700  # of 50 frames of ethanol in batches of 8 and of 4: where training with DeNS overtook the other
_PAYING_EPOCHS = 600, 1000  # likewise: where a gain was seen


def few_epochs_of(batch_size: int) -> int:
    """Epochs below which DeNS was not seen to help on molecules."""
    return FEW_EPOCHS[batch_size <= SMALL_BATCH]


def paying_epochs(batch_size: int) -> int:
    """Epochs from which a gain of DeNS on few molecules was seen."""
    return _PAYING_EPOCHS[batch_size <= SMALL_BATCH]


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
    """Raise ValueError naming elements of free atoms that the table lacks, and the training structures with them."""
    looked_at = evenly(source, LABELLED)
    free = [frozenset(system.atomic_numbers[~system.fixed].tolist()) for system in looked_at]
    if found := unknown_elements(looked_at, free, [atomic_numbers[symbol] for symbol in table]):
        raise ValueError(f"task.sigma lacks elements of free atoms: {found}; add a number for each element, in Å")
