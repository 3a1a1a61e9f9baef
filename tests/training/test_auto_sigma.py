"""``task.sigma=auto`` and ``auto_by_element``: the rules, their bounds, and that a run keeps what they found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from denskit.batch import System
from denskit.data.base import collate
from denskit.data.config import DataConfig
from denskit.data.loading import read_file
from denskit.evaluation.denoising import denoise
from denskit.random import keys_for
from denskit.tasks import DeNS, DeNSConfig
from denskit.training.fitted_denoising import fit_sigma_to_data
from denskit.training.load_config import RunConfig, load_config
from denskit.training.run import train

Tiny = Callable[..., RunConfig]


class _Frames(list[System]):
    name, sizes = "frames", None


def _pair(system: System, distance: float) -> System:
    """Two hydrogen atoms."""
    positions = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, distance]])
    rest = {name: getattr(system, name)[1:] for name in ("atomic_numbers", "fixed", "tags")}
    return replace(system, positions=positions, forces=np.zeros((2, 3)), **rest)


@pytest.mark.parametrize(("distance", "sigma"), [(1.0, 0.045), (1.5, 0.068), (2.6, 0.117), (0.4, 0.025), (5.0, 0.15)])
def test_sigma_is_a_share_of_the_median_nearest_distance(
    tiny: Tiny, systems: dict[str, System], distance: float, sigma: float
) -> None:
    water = systems["water"]
    frames = _Frames([_pair(water, distance), _pair(water, distance), _pair(water, 0.3)])  # the median, not the mean
    config, (said,) = fit_sigma_to_data(tiny("task.sigma=auto"), frames)
    assert isinstance(config.task, DeNSConfig) and config.task.sigma == sigma
    assert f"task.sigma=auto: sigma = {sigma:g} Å, 0.045 of the median distance" in said
    assert f"{distance:.3f} Å" in said


def test_a_number_stays_and_lonely_atoms_have_no_distance(tiny: Tiny, systems: dict[str, System]) -> None:
    frames = _Frames([_pair(systems["water"], 7.0)])
    for untouched in (tiny(), tiny("task=energy_forces")):
        assert fit_sigma_to_data(untouched, frames) == (untouched, [])
    with pytest.raises(ValueError, match=r"in frames no atom has another one within 6 Å; give sigma as a number in Å"):
        fit_sigma_to_data(tiny("task.sigma=auto"), frames)


def test_the_run_keeps_the_number(tiny: Tiny) -> None:
    config = tiny("task.sigma=auto", "training.max_steps=2")
    run = train(config)
    saved = load_config(run)
    assert isinstance(saved.task, DeNSConfig) and saved.task.sigma == 0.048  # embedded ethanol: C-H and O-H bonds
    assert "sigma = 0.048 Å" in (run / "train.log").read_text()
    assert [cell.sigma for cell in denoise(run, ratios=[0.5])] == [0.024, 0.048, 0.096]
    # the same command goes on with the run, and so does its folder
    before = len((run / "train.log").read_text().splitlines())
    train(tiny("task.sigma=auto", "training.max_steps=3"), resume=True)
    train(load_config(run, ["training.max_steps=4"]), resume=True)
    later = "\n".join((run / "train.log").read_text().splitlines()[before:])
    assert "changed on resume: task.sigma" not in later
    assert "step 4/4" in later


def test_outside_a_training_a_number_is_wanted(systems: dict[str, System]) -> None:
    task = DeNS(DeNSConfig(sigma="auto"))
    batch, targets = collate([systems["water"]], torch.float64)
    with pytest.raises(ValueError, match="task.sigma=auto is measured on training structures"):
        task.prepare(batch, targets, keys_for(0, 0, [0]), 0.0)


def test_other_words_are_refused(tiny: Tiny) -> None:
    with pytest.raises(
        ValueError, match=r"task.sigma: 'large': write a number above 0 \(Å\), a table of them .*, auto or"
    ):
        tiny("task.sigma=large")


def _with_forces(system: System, scales: dict[int, float]) -> System:
    """The system with forces of this root mean square by atomic number."""
    scale = np.array([scales[number] for number in system.atomic_numbers.tolist()])
    return replace(system, forces=np.tile(scale[:, None], 3) * [1, -1, 1])


@pytest.mark.parametrize(
    ("forces", "table"),
    [
        ({1: 1.0, 8: 1.0}, {"H": 0.045, "O": 0.045}),
        ({1: 1.0, 8: 2.0}, {"H": 0.052, "O": 0.026}),
        ({1: 0.2, 8: 0.3}, {"H": 0.05, "O": 0.033}),  # the unit of forces plays no part
        ({1: 0.0, 8: 3.0}, {"H": 0.055, "O": 0.025}),  # at most six times as far; then the lower bound
    ],
)
def test_sigma_by_element_is_in_inverse_proportion_to_the_forces(
    tiny: Tiny, systems: dict[str, System], forces: dict[int, float], table: dict[str, float]
) -> None:
    water = _with_forces(systems["water"], forces)
    config, (said,) = fit_sigma_to_data(tiny("task.sigma=auto_by_element"), _Frames([water, water]))
    assert isinstance(config.task, DeNSConfig) and config.task.sigma == table
    assert f"task.sigma=auto_by_element: H {table['H']:g}, O {table['O']:g} Å" in said
    squares = np.array([table["H"], table["H"], table["O"]]) ** 2
    number, _ = fit_sigma_to_data(tiny("task.sigma=auto"), _Frames([water]))
    if min(table.values()) > 0.025:  # as much noise as with one sigma
        assert isinstance(number.task, DeNSConfig) and isinstance(number.task.sigma, float)
        assert squares.mean() == pytest.approx(number.task.sigma**2, rel=0.05)


def test_an_element_without_forces_has_noise(tiny: Tiny, systems: dict[str, System]) -> None:
    """Where only structures without forces have it."""
    water, ethanol = _with_forces(systems["water"], {1: 1.0, 8: 2.0}), replace(systems["ethanol"], forces=None)
    config, _ = fit_sigma_to_data(tiny("task.sigma=auto_by_element"), _Frames([water, ethanol]))
    number, _ = fit_sigma_to_data(tiny("task.sigma=auto"), _Frames([water, ethanol]))
    assert isinstance(config.task, DeNSConfig) and isinstance(config.task.sigma, dict)
    assert isinstance(number.task, DeNSConfig)
    assert set(config.task.sigma) == {"H", "C", "O"} and config.task.sigma["C"] == number.task.sigma


def test_forces_of_fixed_atoms_play_no_part(tiny: Tiny, systems: dict[str, System]) -> None:
    water = _with_forces(systems["water"], {1: 1.0, 8: 2.0})
    assert water.forces is not None
    held = water.atomic_numbers == 1
    held[np.argmax(held)] = False  # one hydrogen atom is held, and pulled hard
    frames = _Frames([water, replace(water, fixed=held, forces=np.where(held[:, None], 50.0, water.forces))])
    config, _ = fit_sigma_to_data(tiny("task.sigma=auto_by_element"), frames)
    assert isinstance(config.task, DeNSConfig) and isinstance(config.task.sigma, dict)
    assert config.task.sigma["H"] == pytest.approx(2 * config.task.sigma["O"], rel=0.05)
    with pytest.raises(ValueError, match="frames has no forces on free atoms; use task.sigma=auto"):
        fit_sigma_to_data(tiny("task.sigma=auto_by_element"), _Frames([replace(water, forces=None)]))


def test_a_missing_element_is_named_with_its_structures(tiny: Tiny, systems: dict[str, System]) -> None:
    water, ethanol = systems["water"], systems["ethanol"]
    frames = _Frames([replace(water if number % 4 == 1 else ethanol, index=number) for number in range(40)])
    config = tiny("task.sigma={H: 0.1, O: 0.05}")
    with pytest.raises(
        ValueError, match=r"lacks .*: frames: C in 30 of 40 structures, frames 0, 2, 3, 4, 6, ..., 30 in"
    ):
        fit_sigma_to_data(config, frames)
    assert fit_sigma_to_data(config, _Frames([water])) == (config, [])


def test_the_run_keeps_the_table(tiny: Tiny) -> None:
    run = train(tiny("task.sigma=auto_by_element", "training.max_steps=2"))
    saved = load_config(run)
    assert isinstance(saved.task, DeNSConfig) and isinstance(saved.task.sigma, dict)
    assert set(saved.task.sigma) == {"H", "C", "O"} and saved.task.sigma["H"] > saved.task.sigma["C"]
    mean = sum(saved.task.sigma.values()) / 3
    assert [cell.sigma for cell in denoise(run, ratios=[0.5])] == pytest.approx([mean / 2, mean, 2 * mean])
    train(tiny("task.sigma=auto_by_element", "training.max_steps=3"), resume=True)
    assert "changed on resume: task.sigma" not in (run / "train.log").read_text()


def test_the_rule_on_published_sets(data_dir: Path) -> None:
    """Where the paper has numbers: 0.05 Å on MD17, 0.1 to 0.15 on OC20."""
    config = load_config("equiformer", ["task=dens", "task.sigma=auto", "data.path=unused.extxyz"])
    for name, sigma in (("rmd17_aspirin_train.extxyz", 0.05), ("oc20_s2ef_sample.lmdb", 0.118)):
        source, _ = read_file(data_dir / name, DataConfig(missing="mask"))
        fitted, _ = fit_sigma_to_data(config, source)
        assert isinstance(fitted.task, DeNSConfig) and fitted.task.sigma == sigma
