"""Force errors by element and by group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from ase.data import chemical_symbols

from denskit.analysis.judged import Judged


@dataclass(frozen=True)
class Share:
    """Errors of some of the atoms."""

    label: str
    atoms: int
    frames: int
    error: float  # eV/Å, mean absolute error of a force component; NaN without force labels
    scale: float  # eV/Å, mean absolute force component
    energy: float  # eV an atom, mean absolute error; NaN for atoms of whole structures only
    lengths: np.ndarray  # eV/Å, length of the force error of each atom


def by_element(judged: Judged) -> list[Share]:
    """Errors of the scored atoms of each element."""
    return [
        _share(judged, chemical_symbols[number], judged.numbers == number, None)
        for number in np.unique(judged.numbers[judged.scored])
    ]


def by_group(judged: Judged, values: np.ndarray) -> list[Share]:
    """Errors of the structures of each group; ``values`` [B] name the groups."""
    return [_share(judged, str(value), (values == value)[judged.frame], values == value) for value in np.unique(values)]


def _share(judged: Judged, label: str, atoms: np.ndarray, frames: np.ndarray | None) -> Share:
    chosen = atoms & judged.scored
    reference, predicted = judged.all_forces[:, chosen]
    energy = np.nan
    if frames is not None:
        per_atom = np.abs(judged.energies[1] - judged.energies[0])[frames] / judged.n_atoms[frames]
        energy = float(np.nanmean(per_atom)) if np.isfinite(per_atom).any() else np.nan
    return Share(
        label=label,
        atoms=int(chosen.sum()),
        frames=len(np.unique(judged.frame[atoms])),
        error=float(np.abs(predicted - reference).mean()) if chosen.any() else np.nan,
        scale=float(np.abs(reference).mean()) if chosen.any() else np.nan,
        energy=energy,
        lengths=judged.force_error[chosen],
    )
