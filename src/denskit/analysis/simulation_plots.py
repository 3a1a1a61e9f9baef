"""Figures of simulations: temperature and energy over time, relaxations, h(r) of a study beside the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from denskit.analysis.plots import COLOURS, legends, log_errors, row_of_axes, series_style, whole_ticks
from denskit.simulation.stability.folder import StudyFiles

_NAMED = 18  # replicas; more have no colours of their own
_MANY = 100  # snapshots, of which a running mean is drawn too
_WINDOW = 20  # of which the whole length has this many
_FAR = 4.0  # quartile distances from the quartiles; beyond are values of simulations that fall apart


def stability_figure(found: StudyFiles, *, title: str = "") -> Figure:
    """h(r), temperature (K) and potential energy (eV, from the first frame's) of all simulations of a study."""
    figure, (structure, temperature, energy) = row_of_axes(3, width=4.4, height=4.0, title=title)
    _draw_h_of_r(structure, found)
    _draw_series(temperature, found.of_each("temperature_K"), found)
    wanted = found.summary["protocol"]["temperature"]
    temperature.axhline(wanted, color="0.2", linewidth=0.9, linestyle="--", label="thermostat")
    temperature.set(ylabel="temperature (K)")
    potential = found.of_each("energy_eV")
    _draw_series(energy, potential - potential[:1], found)
    energy.set(ylabel="potential energy, from the first (eV)")
    _name_lines(temperature, found.series["time_ps"], "simulation")
    if found.failures:
        temperature.plot([], [], "x", color="0.2", label="became unstable (at the edge: beyond it)")
    keys = [axes.get_legend_handles_labels() for axes in (structure, temperature)]
    handles = [handle for found_there, _ in keys for handle in found_there]
    labels = [label for _, found_there in keys for label in found_there]
    figure.legend(handles, labels, loc="outside lower left", frameon=False, ncols=len(labels))
    return figure


def dynamics_figure(replicas: Mapping[int, Mapping[str, np.ndarray]]) -> Figure:
    """Temperature (K), potential energy (eV, from the first) and, of constant pressure, volume (Å^3) over time.

    replicas: replica -> columns of statistics.csv.
    """
    breathes = all("volume_A3" in columns for columns in replicas.values())
    figure, (temperature, energy, *more) = row_of_axes(3 if breathes else 2, width=4.8)
    longest = max((columns["time_ps"] for columns in replicas.values()), key=len)
    window = _window_of(longest)
    for place, (replica, columns) in enumerate(replicas.items()):
        style = {"label": f"replica {replica}" if 1 < len(replicas) <= _NAMED else "_", **series_style(place)}
        _draw_trace(temperature, columns["time_ps"], columns["temperature_K"], window, **style)
        _draw_trace(energy, columns["time_ps"], columns["potential_eV"] - columns["potential_eV"][0], window, **style)
        for volume in more:
            _draw_trace(volume, columns["time_ps"], columns["volume_A3"], window, **style)
            volume.set(xlabel="time (ps)", ylabel="volume (Å$^3$)")
    temperature.set(xlabel="time (ps)", ylabel="temperature (K)")
    energy.set(xlabel="time (ps)", ylabel="potential energy, from the first (eV)")
    _name_lines(temperature, longest, "")
    legends(figure, [temperature])
    return figure


def relaxation_figure(energies: Mapping[str, np.ndarray], forces: Mapping[str, np.ndarray]) -> Figure:
    """Energy (eV, from the last) and largest force (eV/Å) after each move; label -> values [moves + 1]."""
    figure, (left, right) = row_of_axes(2, width=4.8)
    for place, label in enumerate(energies):
        style = {"markersize": 3.5, "label": label, **series_style(place, points=True)}
        left.plot(energies[label] - energies[label][-1], **style)
        right.plot(forces[label], **style)
    left.set(xlabel="move", ylabel="energy, from the last (eV)")
    right.set(xlabel="move", ylabel="largest force (eV/Å)")
    log_errors(right)
    for axes in (left, right):
        whole_ticks(axes.xaxis)
    legends(figure, [left, right])
    return figure


def _draw_trace(
    axes: Axes, time: np.ndarray, values: np.ndarray, window: int, *, label: str = "_", **style: Any
) -> None:
    """Values over time; with a window (snapshots) the values pale, and their running mean."""
    if not window:
        axes.plot(time, values, linewidth=0.9, marker="o" if len(values) == 1 else None, label=label, **style)
        return
    axes.plot(time, values, linewidth=0.5, alpha=0.25, **style)
    if len(values) >= window:
        mean = np.convolve(values, np.full(window, 1 / window), "valid")
        begin = (window - 1) // 2
        axes.plot(time[begin : begin + len(mean)], mean, linewidth=1.3, label=label, **style)


def _window_of(time: np.ndarray) -> int:
    """Snapshots of a running mean; 0: too few for one."""
    return len(time) // _WINDOW if len(time) >= _MANY else 0


def _name_lines(axes: Axes, time: np.ndarray, name: str) -> None:
    """Labels of what :func:`_draw_trace` draws of the longest series, at these times (ps)."""
    if window := _window_of(time):
        axes.plot([], [], color="0.5", linewidth=0.5, label=f"pale: each {name or 'value'}")
        axes.plot([], [], color="0.5", linewidth=1.3, label=f"running mean over {time[window] - time[0]:.3g} ps")
    elif name:
        axes.plot([], [], color="0.5", linewidth=0.9, label=f"each {name}")


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
    lowest, highest = _range_of(values)
    for replica in range(values.shape[1]):
        there = np.isfinite(values[:, replica])
        _draw_trace(axes, time[there], values[there, replica], _window_of(time), **series_style(replica))
        if replica in ended and there.any():
            last = np.clip(values[np.flatnonzero(there)[-1], replica], lowest, highest)
            axes.plot(ended[replica], last, "x", color=series_style(replica)["color"], clip_on=False)
    if ended and highest > lowest:
        axes.set_ylim(lowest, highest)
    axes.set(xlabel="time (ps)")


def _range_of(values: np.ndarray) -> tuple[float, float]:
    """Lowest and highest value that are not far from all others."""
    known = values[np.isfinite(values)]
    if not known.size:
        return 0.0, 0.0
    low, high = np.quantile(known, [0.25, 0.75])
    margin = _FAR * (high - low)
    return max(known.min(), low - margin), min(known.max(), high + margin)
