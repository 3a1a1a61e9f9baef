"""``task.sigma=auto``: the rule, its bounds, and that every later step of a run sees the number."""

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
from denskit.training.fitted_settings import fit_sigma_to_data
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
    with pytest.raises(ValueError, match=r"task.sigma: 'large': write a number above 0 \(Å\), or auto"):
        tiny("task.sigma=large")


def test_the_rule_on_published_sets(data_dir: Path) -> None:
    """Where the paper has numbers: 0.05 Å on MD17, 0.1 to 0.15 on OC20."""
    config = load_config("equiformer", ["task=dens", "task.sigma=auto", "data.path=unused.extxyz"])
    for name, sigma in (("rmd17_aspirin_train.extxyz", 0.05), ("oc20_s2ef_sample.lmdb", 0.118)):
        source, _ = read_file(data_dir / name, DataConfig(missing="mask"))
        fitted, _ = fit_sigma_to_data(config, source)
        assert isinstance(fitted.task, DeNSConfig) and fitted.task.sigma == sigma
