"""Figures of simulations: temperature and energy over time, relaxations, h(r) of a study beside the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from denskit.analysis.plots import COLOURS, log_errors, row_of_axes, series_style
from denskit.simulation.distributions import EDGES

if TYPE_CHECKING:
    from denskit.simulation.stability.results import Study

_NAMED = 18  # replicas; of more the legend would cover the panel


def stability_figure(study: Study, *, title: str = "") -> Figure:
    """h(r), temperature (K) and potential energy (eV, from the first frame's) of all simulations of a study."""
    figure, (structure, temperature, energy) = row_of_axes(3, width=4.4, height=4.0, title=title)
    _draw_h_of_r(structure, study)
    records = study.series
    _draw_series(temperature, records.time, np.array(records.temperature), study)
    temperature.axhline(study.settings.temperature, color="0.4", linewidth=0.9, linestyle="--")
    temperature.set(ylabel="temperature (K; dashed: thermostat)")
    potential = np.array(records.energy)
    _draw_series(energy, records.time, potential - potential[:1], study)
    energy.set(ylabel="potential energy, from the first (eV)")
    figure.legend(*structure.get_legend_handles_labels(), loc="outside lower left", frameon=False, ncols=2)
    return figure


def dynamics_figure(replicas: Mapping[int, Mapping[str, np.ndarray]]) -> Figure:
    """Temperature (K), potential energy (eV, from the first) and, of constant pressure, volume (Å^3) over time.

    replicas: replica -> columns of statistics.csv.
    """
    breathes = all("volume_A3" in columns for columns in replicas.values())
    figure, (temperature, energy, *more) = row_of_axes(3 if breathes else 2, width=4.8)
    for place, (replica, columns) in enumerate(replicas.items()):
        style: dict[str, Any] = {"linewidth": 0.8, "label": f"replica {replica}", **series_style(place)}
        style["marker"] = "o" if len(columns["time_ps"]) == 1 else None
        temperature.plot(columns["time_ps"], columns["temperature_K"], **style)
        energy.plot(columns["time_ps"], columns["potential_eV"] - columns["potential_eV"][0], **style)
        for volume in more:
            volume.plot(columns["time_ps"], columns["volume_A3"], **style)
            volume.set(xlabel="time (ps)", ylabel="volume (Å$^3$)")
    temperature.set(xlabel="time (ps)", ylabel="temperature (K)")
    energy.set(xlabel="time (ps)", ylabel="potential energy, from the first (eV)")
    if 1 < len(replicas) <= _NAMED:
        temperature.legend(frameon=False, fontsize=8, ncols=1 + len(replicas) // 9)
    return figure


def relaxation_figure(energies: Mapping[str, np.ndarray], forces: Mapping[str, np.ndarray]) -> Figure:
    """Energy (eV, from the last) and largest force (eV/Å) after each move; label -> values [moves + 1]."""
    figure, (left, right) = row_of_axes(2, width=4.8)
    for place, label in enumerate(energies):
        left.plot(energies[label] - energies[label][-1], marker=".", label=label, **series_style(place))
        right.plot(forces[label], marker=".", **series_style(place))
    left.set(xlabel="move", ylabel="energy, from the last (eV)")
    right.set(xlabel="move", ylabel="largest force (eV/Å)")
    log_errors(right)
    left.legend(frameon=False, fontsize=8)
    return figure


def _draw_h_of_r(axes: Axes, study: Study) -> None:
    r = (EDGES[1:] + EDGES[:-1]) / 2
    wanted, found = study.reference.h_of_r(), study.series.histogram.h_of_r()
    axes.fill_between(r, wanted, color="0.8", linewidth=0, label="reference")
    errors = np.array(study.h_of_r_errors())
    errors = errors[np.isfinite(errors)]
    label = f"simulations, error {errors.mean():.3f}" if len(errors) else "simulations: none recorded"
    axes.plot(r, found, color=COLOURS[0], linewidth=1.0, label=label)
    filled = r[(wanted > 0) | (found > 0)]
    axes.set(xlabel="distance (Å)", ylabel="h(r) (1/Å)", xlim=(0.5, filled.max() + 0.3), ylim=(0, None))


def _draw_series(axes: Axes, time: list[float], values: np.ndarray, study: Study) -> None:
    """One line a simulation, with a cross where it became unstable."""
    ended = {failure.replica: failure.time for failure in study.failures}
    for replica in range(values.shape[1] if values.ndim == 2 else 0):  # none: all ended at once
        there = np.isfinite(values[:, replica])
        axes.plot(np.array(time)[there], values[there, replica], linewidth=0.7, alpha=0.8, **series_style(replica))
        if replica in ended and there.any():
            last = values[np.flatnonzero(there)[-1], replica]
            axes.plot(ended[replica], last, "x", color=series_style(replica)["color"])
    axes.set(xlabel="time (ps; cross: unstable)")
