"""Structures that training leaves out: isolated atoms, huge forces, huge stresses, implausible energies."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from denskit.batch import System
from denskit.data.base import Source, Subset
from denskit.data.config import FilterConfig
from denskit.data.inspection.energy_sums import MOST, EnergySum, fewest, fit_energies
from denskit.data.inspection.nearest import nearest_distances

Rule = tuple[str, Callable[[System], bool]]  # words, and whether a structure breaks the rule


def filtered(
    source: Source, config: FilterConfig, like: Source | None = None, exempt: Collection[int] = ()
) -> tuple[np.ndarray, list[str]]:
    """Indices [M] of the structures to keep, and a message with the number that each rule leaves out.

    Energies are judged by a fit to the structures of ``like``, by default to the source's own.  Reads every structure.
    ``exempt``: places of structures that are kept whatever the rules.
    Raises ValueError where none is left, or where there are too few structures for the fit.
    """
    rules = _rules(config, source if like is None else like)
    if not rules:
        return np.arange(len(source)), []
    broken = np.array(  # the first rule that a structure breaks
        [next((n for n, (_, breaks) in enumerate(rules) if breaks(system)), len(rules)) for system in source]
    )
    broken[list(exempt)] = len(rules)
    kept = np.flatnonzero(broken == len(rules))
    counts = ", ".join(f"{(broken == place).sum()} with {words}" for place, (words, _) in enumerate(rules))
    message = f"{source.name}: left out {len(source) - len(kept)} of {len(source)} structures (data.filter): {counts}"
    if not len(kept) or (len(kept) < len(source) and set(kept.tolist()) <= set(exempt)):
        raise ValueError(f"{message}; none is left. Loosen data.filter")
    return kept, [message]


def without_filtered(source: Source, config: FilterConfig, like: Source | None = None) -> tuple[Source, list[str]]:
    """The structures to keep as a source, and messages as :func:`filtered`."""
    kept, messages = filtered(source, config, like)
    return (source if len(kept) == len(source) else Subset(source, kept, source.name)), messages


def _rules(config: FilterConfig, like: Source) -> list[Rule]:
    rules: list[Rule] = []
    if (reach := config.isolated) is not None:
        words = f"an atom without neighbours within {reach:g} Å"
        rules.append((words, lambda system: bool(np.isinf(nearest_distances(system, reach)[0]).any())))
    if (force := config.max_force) is not None:
        words = f"a force above {force:g} eV/Å"
        rules.append((words, lambda system: _exceeds(system.forces, force)))
    if (stress := config.max_stress) is not None:
        words = f"a stress above {stress:g} eV/Å^3"
        rules.append((words, lambda system: _exceeds(system.stress, stress, norm=False)))
    if (most := config.max_energy_deviation) is not None:
        fit = _fit(like)
        words = f"an energy more than {most:g} eV an atom from a sum over the elements"
        rules.append(  # an element that the fit lacks gives NaN, which is not above
            (words, lambda x: x.energy is not None and abs(fit.residual(x.atomic_numbers, x.energy)) > most)
        )
    return rules


def _exceeds(rows: np.ndarray | None, most: float, *, norm: bool = True) -> bool:
    if rows is None:
        return False
    return bool((np.linalg.norm(rows, axis=1) if norm else np.abs(rows)).max() > most)


def _fit(source: Source) -> EnergySum:
    places = np.linspace(0, len(source) - 1, min(len(source), MOST)).astype(int)
    systems = [system for place in places.tolist() if (system := source[place]).energy is not None]
    elements = {int(number) for system in systems for number in system.atomic_numbers}
    if len(systems) < (wanted := fewest(len(elements))):
        raise ValueError(
            f"{source.name}: data.filter.max_energy_deviation fits an energy of each element; with {len(elements)} "
            f"elements that wants at least {wanted} structures with energies, found {len(systems)}"
        )
    energies = [float(system.energy or 0) for system in systems]
    return fit_energies([system.atomic_numbers for system in systems], energies)
