"""Figures of simulations: temperature and energy over time, relaxations, h(r) of a study beside the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from denskit.analysis.plots import COLOURS, log_errors, row_of_axes, series_style
from denskit.simulation.stability.folder import StudyFiles

_NAMED = 18  # replicas; of more the legend would cover the panel


def stability_figure(found: StudyFiles, *, title: str = "") -> Figure:
    """h(r), temperature (K) and potential energy (eV, from the first frame's) of all simulations of a study."""
    figure, (structure, temperature, energy) = row_of_axes(3, width=4.4, height=4.0, title=title)
    _draw_h_of_r(structure, found)
    _draw_series(temperature, found.of_each("temperature_K"), found)
    temperature.axhline(found.summary["protocol"]["temperature"], color="0.4", linewidth=0.9, linestyle="--")
    temperature.set(ylabel="temperature (K; dashed: thermostat)")
    potential = found.of_each("energy_eV")
    _draw_series(energy, potential - potential[:1], found)
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


def _draw_h_of_r(axes: Axes, found: StudyFiles) -> None:
    r, wanted = found.curves["r_A"], found.curves["reference"]
    snapshots = np.isfinite(found.of_each("temperature_K")).sum(0)  # of each simulation
    curves = np.stack([found.curves[f"simulation_{seed}"] for seed in range(found.seeds)])
    all_of_them = snapshots @ curves / max(snapshots.sum(), 1)
    axes.fill_between(r, wanted, color="0.8", linewidth=0, label="reference")
    error = found.summary["h_of_r_error"]["mean"]
    label = "simulations: none recorded" if error is None else f"simulations, error {error:.3f}"
    axes.plot(r, all_of_them, color=COLOURS[0], linewidth=1.0, label=label)
    filled = r[(wanted > 0) | (all_of_them > 0)]
    axes.set(xlabel="distance (Å)", ylabel="h(r) (1/Å)", xlim=(0.5, filled.max() + 0.3), ylim=(0, None))


def _draw_series(axes: Axes, values: np.ndarray, found: StudyFiles) -> None:
    """One line a simulation, values [T, S], with a cross where it became unstable."""
    ended, time = {failure.replica: failure.time for failure in found.failures}, found.series["time_ps"]
    for replica in range(values.shape[1]):
        there = np.isfinite(values[:, replica])
        axes.plot(time[there], values[there, replica], linewidth=0.7, alpha=0.8, **series_style(replica))
        if replica in ended and there.any():
            last = values[np.flatnonzero(there)[-1], replica]
            axes.plot(ended[replica], last, "x", color=series_style(replica)["color"])
    axes.set(xlabel="time (ps; cross: unstable)")
