"""Plots and pages are written, and say the numbers that they are drawn from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from denskit.analysis.error_plots import trend_figure
from denskit.analysis.plots import curves_figure, parity_figure, plot_overview, png_of, save_figure
from denskit.analysis.report.page import Picture
from denskit.analysis.report.simulation import dynamics
from denskit.analysis.simulation_plots import dynamics_figure, relaxation_figure, stability_figure
from denskit.simulation.distributions import DistanceHistogram
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
    assert [text.get_text() for text in forces.texts] == ["41.5"]


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
