"""Structures that training leaves out: isolated atoms, huge forces, huge stresses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from denskit.batch import System
from denskit.data.base import Source, Subset
from denskit.data.config import FilterConfig
from denskit.data.inspection.nearest import nearest_distances

Rule = tuple[str, Callable[[System], bool]]  # words, and whether a structure breaks the rule


def filtered(source: Source, config: FilterConfig) -> tuple[np.ndarray, list[str]]:
    """Indices [M] of the structures to keep, and a message with the number that each rule leaves out.

    Reads every structure.  Raises ValueError where none is left.
    """
    rules = _rules(config)
    if not rules:
        return np.arange(len(source)), []
    broken = np.array([_first_broken(rules, system) for system in source])
    kept = np.flatnonzero(broken == len(rules))
    counts = ", ".join(f"{(broken == place).sum()} with {words}" for place, (words, _) in enumerate(rules))
    message = f"{source.name}: left out {len(source) - len(kept)} of {len(source)} structures (data.filter): {counts}"
    if not len(kept):
        raise ValueError(f"{message}; none is left. Loosen data.filter")
    return kept, [message]


def without_filtered(source: Source, config: FilterConfig) -> tuple[Source, list[str]]:
    """The structures to keep as a source, and messages as :func:`filtered`."""
    kept, messages = filtered(source, config)
    return (source if len(kept) == len(source) else Subset(source, kept, source.name)), messages


def _first_broken(rules: list[Rule], system: System) -> int:
    return next((place for place, (_, breaks) in enumerate(rules) if breaks(system)), len(rules))


def _rules(config: FilterConfig) -> list[Rule]:
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
    return rules


def _exceeds(rows: np.ndarray | None, most: float, *, norm: bool = True) -> bool:
    if rows is None:
        return False
    return bool((np.linalg.norm(rows, axis=1) if norm else np.abs(rows)).max() > most)
