"""Plots of crystals: energy against volume, density of phonon states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from denskit.analysis.crystal_results import name_in_words
from denskit.analysis.plots import legends, row_of_axes, series_style

MOST = 12  # crystals in one picture


def crystal_figure(crystals: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Equations of state and phonons of the first crystals of ``measure_into``; None: there is nothing to draw."""
    shown = [crystal for crystal in crystals if "eos_energies_eV_per_atom" in crystal][:MOST]
    if not shown:
        return None
    vibrating = [crystal for crystal in shown if "phonon_density_per_THz" in crystal]
    places = {crystal["index"]: place for place, crystal in enumerate(shown)}  # one colour in both panels
    names = _names(shown)
    labels = {
        crystal["index"]: f"{names[crystal['index']]}, {crystal['bulk_modulus_GPa']:.0f} GPa" for crystal in shown
    }
    figure, row = row_of_axes(2 if vibrating else 1, width=4.8, height=4.0)
    for place, crystal in enumerate(shown):
        energies = 1000 * np.array(crystal["eos_energies_eV_per_atom"])
        row[0].plot(
            crystal["eos_volumes_A3_per_atom"], energies - energies.min(), markersize=3, linewidth=0.9,
            label=labels[crystal["index"]], **series_style(place, points=True),
        )  # fmt: skip
    row[0].set(xlabel="volume (Å$^3$ an atom)", ylabel="energy above the lowest (meV an atom)")
    for crystal in vibrating:
        row[1].plot(
            crystal["phonon_frequencies_THz"], crystal["phonon_density_per_THz"], linewidth=0.9,
            label=labels[crystal["index"]], **series_style(places[crystal["index"]]),
        )  # fmt: skip
    if vibrating:
        row[1].axvline(0, color="0.6", linewidth=0.8)
        row[1].set(
            xlabel="frequency (THz; left of 0: unstable)",
            ylabel="phonon states (per THz and primitive cell)",
            ylim=(0, None),
        )
    legends(figure, row, title="bulk modulus")
    return figure


def _names(crystals: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Name and formula by index, with the index where others have the same."""
    words = {crystal["index"]: name_in_words(crystal) for crystal in crystals}
    count = Counter(words.values())
    return {index: name if count[name] == 1 else f"{name} ({index})" for index, name in words.items()}
