"""Plots and pages are written, and say the numbers that they are drawn from."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from denskit.analysis.error_plots import calibration_figure, histogram_figure, trend_figure
from denskit.analysis.plots import (
    COLOURS,
    curves_figure,
    legends,
    parity_figure,
    plot_overview,
    png_of,
    row_of_axes,
    save_figure,
    series_style,
    wrapped,
)
from denskit.analysis.report.page import Picture
from denskit.analysis.report.simulation import dynamics
from denskit.analysis.simulation_plots import dynamics_figure, relaxation_figure, stability_figure
from denskit.simulation.distributions import DistanceHistogram
from denskit.simulation.dynamics.loop import Failure
from denskit.simulation.stability.folder import StudyFiles
from denskit.simulation.stability.protocol import StudySettings
from denskit.simulation.stability.results import Series, Study
from denskit.training.overview import metrics_of
from denskit.training.run_folder import RunFolder

PNG = b"\x89PNG\r\n\x1a\n"


def test_parity_draws_one_panel_a_label(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    energy = {"energy (meV)": {"": (rng.normal(size=20), rng.normal(size=20))}}
    forces = {"force (meV/Å)": {"": (rng.normal(size=(20, 9, 3)), rng.normal(size=(20, 9, 3)))}}
    both = save_figure(parity_figure(energy | forces), tmp_path / "deep" / "both.png")
    one = save_figure(parity_figure(forces), tmp_path / "one.png")
    widths = [int.from_bytes(path.read_bytes()[16:20], "big") for path in (both, one)]
    assert both.read_bytes().startswith(PNG)
    assert widths[0] == 2 * widths[1]
    with pytest.raises(ValueError, match="nothing to draw"):
        parity_figure({})


@pytest.mark.filterwarnings("error")
def test_zeros_alone_are_drawn_on_a_linear_axis() -> None:
    """As forces that vanish by symmetry, or labels of zero; a logarithm of them has no picture, and warned."""
    zero, steps = np.zeros(3), np.arange(3.0)
    relaxed = relaxation_figure({"a": steps}, {"a": zero})
    columns = {"step": steps, "train_forces_mae_meV_per_A": zero, "valid_forces_mae_meV_per_A": zero}
    curves = curves_figure({"a": columns | {"train_energy_mae_meV": steps + 1, "valid_energy_mae_meV": steps + 1}})
    trend = trend_figure({"force (eV/Å)": (np.ones(3), np.ones(3))})
    assert [axes.get_yscale() for axes in (*relaxed.axes, *curves.axes)] == ["linear", "linear", "log", "linear"]
    for figure in (relaxed, curves, trend):
        assert png_of(figure).startswith(PNG)


def test_the_legend_of_h_of_r_is_beside_the_curves() -> None:
    histogram = DistanceHistogram(1, torch.device("cpu"))
    histogram.counts += 1
    settings = StudySettings(seeds=1)
    series = Series(settings=settings, histogram=histogram, time=[0.0], temperature=[[500.0]], energy=[[-1.0]])
    study = Study(
        settings=settings, simulated=1.0, failures=(), series=series, reference=histogram, interrupted=False,
        conservation=None,
    )  # fmt: skip
    figure = stability_figure(StudyFiles.of(study))
    assert all(axes.get_legend() is None for axes in figure.axes)
    assert png_of(figure).startswith(PNG)
    (legend,) = figure.legends
    shown = legend.get_window_extent()
    assert not any(shown.overlaps(axes.get_window_extent()) for axes in figure.axes)
    assert "reference" in [text.get_text() for text in legend.get_texts()]


def _study(settings: StudySettings, temperature: np.ndarray) -> Study:
    """A study of the temperatures [T, S] (K)."""
    histogram = DistanceHistogram(settings.seeds, torch.device("cpu"))
    histogram.counts += 1
    time, energy = 0.05 * np.arange(len(temperature)), -temperature
    series = Series(
        settings=settings, histogram=histogram, time=time.tolist(), temperature=temperature.tolist(),
        energy=energy.tolist(),
    )  # fmt: skip
    failure = Failure(replica=0, step=30, time=1.5, check="bond", reason="a bond is broken")
    return Study(
        settings=settings, simulated=10.0, failures=(failure,), series=series, reference=histogram, interrupted=False,
        conservation=None,
    )  # fmt: skip


def test_a_simulation_that_falls_apart_does_not_set_the_scale() -> None:
    temperature = 500 + 100 * np.random.default_rng(0).normal(size=(200, 2))
    temperature[20, 0], temperature[21:, 0] = 9000.0, np.nan
    figure = stability_figure(StudyFiles.of(_study(StudySettings(seeds=2), temperature)))
    _, panel, energy = figure.axes
    assert panel.get_ylim()[1] < 2000 and energy.get_ylim()[0] > -2000
    (cross,) = [line for line in panel.lines if line.get_marker() == "x" and np.size(line.get_xdata())]
    assert cross.get_ydata() == [panel.get_ylim()[1]]
    assert png_of(figure).startswith(PNG)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "running mean over 0.5 ps" in labels and "thermostat" in labels


def _many_figures() -> dict[str, Figure]:
    """With nine long names each."""
    values = np.arange(1.0, 40.0)
    names = [f"runs/{place}_with_a_name_as_long_as_people_write_them_in_yaml" for place in range(9)]
    columns = {"step": values, "valid_energy_mae_meV": values, "valid_forces_mae_meV_per_A": values}
    figure, (axes,) = row_of_axes(1, width=4.4)
    for name in names:
        axes.plot(values, label=name)
    axes.set_ylabel("error (meV)")
    legends(figure, [axes])
    return {
        "any": figure,
        "curves": curves_figure(dict.fromkeys(names, columns)),
        "parity": parity_figure({"force (meV/Å)": dict.fromkeys(names, (values, values))}),
        "histogram": histogram_figure({"error (meV)": dict.fromkeys(names, values)}),
        "relaxation": relaxation_figure(dict.fromkeys(names, values), dict.fromkeys(names, values)),
        "dynamics": dynamics_figure(
            {n: {name: values for name in ("time_ps", "temperature_K", "potential_eV")} for n in range(9)}
        ),
    }


@pytest.mark.parametrize("name", ["any", "curves", "parity", "histogram", "relaxation", "dynamics"])
def test_many_long_names_stand_beside_the_panels(name: str) -> None:
    figure = _many_figures()[name]
    assert png_of(figure).startswith(PNG)
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 9 and all(axes.get_legend() is None for axes in figure.axes)
    shown, whole = legend.get_window_extent(), figure.bbox
    for axes in figure.axes:
        assert not shown.overlaps(axes.get_window_extent())
        assert axes.get_window_extent().width > 300, "panels keep their size"
        assert axes.yaxis.label.get_window_extent().x0 >= 0
    assert shown.x1 <= whole.x1 and shown.y1 <= whole.y1 and shown.y0 >= 0


def test_names_break_after_underscores_and_lines_are_of_similar_length() -> None:
    assert wrapped("a_long_name_without_a_space", 12).splitlines() == ["a_long_", "name_", "without_", "a_space"]
    title = wrapped("3BPA, 50 structures at 300 K: mean and range over 3 seeds", 50)
    assert min(map(len, title.splitlines())) > 20, "no word alone"
    assert wrapped("x^$2$", 34) == r"x^\$2\$"


def test_each_series_of_a_parity_plot_is_seen() -> None:
    one, other = np.arange(600.0), np.arange(600.0)
    figure = parity_figure({"force (meV/Å)": {"a": (one, one + 1), "b": (other, other + 2)}})
    clouds = figure.axes[0].collections
    assert sum(len(cloud.get_offsets()) for cloud in clouds) == 1200
    first = [tuple(cloud.get_facecolor()[0]) == tuple(clouds[0].get_facecolor()[0]) for cloud in clouds]
    assert first[:4] == [True, False, True, False], "in turns"


def test_calibration_has_plain_ticks_and_all_bins() -> None:
    figure = calibration_figure(np.array([0.003, 0.009]), np.array([0.006, 0.02]))
    assert png_of(figure).startswith(PNG)
    (axes,) = figure.axes
    assert axes.get_ylim()[0] < 6 and axes.get_xlim()[0] < 3
    assert not any("times" in text.get_text() for text in axes.get_xticklabels(which="both"))


def _lab(colour: str, seen: np.ndarray) -> np.ndarray:
    """CIELAB of a colour by a matrix of linear RGB."""
    rgb = np.array(to_rgb(colour))
    linear = np.clip(seen @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4), 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ linear / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize(
    "seen",
    [
        np.eye(3),
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    ],
    ids=["all", "deuteranopia", "protanopia"],
)
def test_colours_are_told_apart_by_colour_blind_readers(seen: np.ndarray) -> None:
    """Matrices of Machado et al. 2009."""
    pairs = combinations([_lab(colour, np.asarray(seen)) for colour in COLOURS], 2)
    assert min(np.linalg.norm(one - other) for one, other in pairs) > 20
    assert len({tuple(series_style(place).values()) for place in range(18)}) == 18
    assert len({series_style(place, points=True)["marker"] for place in range(6)}) == 6


def test_learning_curves_of_runs_with_other_columns(tmp_path: Path) -> None:
    for name, header in (
        ("a", "step,train_energy_mae_meV,valid_forces_mae_meV_per_A"),
        ("b", "step,valid_energy_mae_meV,lr"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.csv").write_text(f"{header}\n10,5,\n20,4,3\n")
    curves = {name: metrics_of(RunFolder(tmp_path / name)) for name in ("a", "b")}
    assert png_of(curves_figure(curves)).startswith(PNG)
    pair = (np.arange(6.0), np.arange(6.0) + 0.1)
    runs = {"a": tmp_path / "a", "b": tmp_path / "b"}
    assert plot_overview(runs, {"a": pair, "b": pair}, tmp_path / "all.png").read_bytes().startswith(PNG)


def test_one_validation_shows_as_a_dot_with_its_value() -> None:
    columns = {"step": np.array([5.0, 10.0]), "valid_forces_mae_meV_per_A": np.array([np.nan, 41.5])}
    forces = curves_figure({"short": columns}).axes[1]
    (line,) = [line for line in forces.lines if len(line.get_xdata())]
    assert line.get_marker() == "o"
    assert [text.get_text() for text in forces.get_legend().get_texts()] == ["validation: 41.5 meV/Å"]
    curves = curves_figure({name: {"step": np.array([20.0]), "valid_energy_mae_meV": np.ones(1)} for name in "ab"})
    energy, forces = curves.axes
    png_of(curves)
    low, high = energy.get_xlim()
    assert [tick for tick in energy.get_xticks() if low <= tick <= high] == [20], "no step 19.99"
    assert [text.get_text() for text in forces.texts] == ["not measured"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("summary.json", '{"models": "ab"}'), ("statistics.csv", "replica,step\n0,1\n"), ("statistics.csv", "a\n1\n")],
)
def test_damaged_files_of_a_simulation_are_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=rf"{name} .*damaged"):
        dynamics(tmp_path)


def test_dynamics_at_constant_pressure_show_the_volume(tmp_path: Path) -> None:
    header = "replica,step,time_ps,temperature_K,potential_eV,volume_A3"
    (tmp_path / "statistics.csv").write_text(f"{header}\n0,0,0.0,300,-1,9\n0,1,0.1,301,-2,8\n")
    (picture,) = (part for section in dynamics(tmp_path) for part in section.parts if isinstance(part, Picture))
    assert len(picture.figure.axes) == 3
    columns = {name: np.arange(1.0, 4.0) for name in ("time_ps", "temperature_K", "potential_eV")}
    assert len(dynamics_figure({0: columns}).axes) == 2
    *_, volume = dynamics_figure({0: columns | {"volume_A3": np.array([9.0, 8.0, 7.0])}}).axes
    assert volume.get_ylabel().startswith("volume") and volume.lines[0].get_ydata().tolist() == [9.0, 8.0, 7.0]
