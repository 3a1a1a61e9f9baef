"""A training of few molecules to the end takes the weight of the noise that was measured for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from denskit.batch import System
from denskit.tasks import FOR_FEW_MOLECULES, DeNSConfig
from denskit.training import fitted_settings
from denskit.training.fitted_settings import fit_dens_to_few_molecules
from denskit.training.forecast import forecasts_of
from denskit.training.load_config import RunConfig, load_config
from denskit.training.run import train

LONG = ("data.path=x", "training.lr=1e-3", "training.batch_size=8", "training.max_steps=6000")


class _Frames(list[System]):
    name, sizes = "frames", None


def _weight(*settings: str, frames: list[System], preset: str = "equiformer") -> float | None:
    """The weight that a training takes, where it takes another one than it would have."""
    config = load_config(preset, ["task=dens", *LONG, *settings])
    fitted, said = fit_dens_to_few_molecules(config, _Frames(frames))
    assert (fitted == config) == (not said)
    assert isinstance(fitted.task, DeNSConfig)
    return fitted.task.coefficient if said else None


def test_few_molecules_trained_to_the_end_take_it(systems: dict[str, System]) -> None:
    frames = [systems["ethanol"]] * 50  # 6,000 steps are 1,000 epochs
    assert _weight(frames=frames) == FOR_FEW_MOLECULES["coefficient"]
    assert _weight("task.sigma=auto", frames=frames) == FOR_FEW_MOLECULES["coefficient"]
    assert _weight("training.max_steps=3600", frames=frames) is not None
    assert _weight("training.max_steps=3594", frames=frames) is None
    assert _weight("training.max_steps=7800", frames=[*frames, *frames[1:]]) is not None
    assert _weight("training.max_steps=9000", frames=frames * 2) is None


@pytest.mark.parametrize(
    "given",
    [
        "task.coefficient=5", "task.loss=paper", "training.lr=5e-4", "training.init_from=trained",
        "model.forces=direct", "task=energy_forces",
    ],
)  # fmt: skip
def test_what_was_not_measured_keeps_the_default(systems: dict[str, System], given: str) -> None:
    config = load_config("equiformer", ["task=dens", *LONG, given])
    assert fit_dens_to_few_molecules(config, _Frames([systems["ethanol"]] * 50)) == (config, [])


def test_other_models_and_periodic_structures_keep_the_default(systems: dict[str, System]) -> None:
    frames = [systems["ethanol"]] * 50
    assert _weight(frames=frames, preset="esen") is None
    assert _weight(frames=[*frames[1:], replace(systems["ethanol"], pbc=np.ones(3, bool))]) is None


@pytest.mark.parametrize("length", ["training.max_steps=10", "training.budget=20 seconds"])
def test_the_run_and_its_forecast_have_it(
    tiny: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    monkeypatch.setattr(fitted_settings, "PAYING_EPOCHS", 2)
    config = tiny("training.max_steps=null", length)
    config = config.model_copy(update={"task": DeNSConfig()})  # no weight is given
    [forecast] = forecasts_of(config)
    assert isinstance(forecast.planned.config.task, DeNSConfig)
    assert forecast.planned.config.task.coefficient == FOR_FEW_MOLECULES["coefficient"]
    assert forecast.messages[-1].endswith("so DeNS takes task.coefficient=20 (docs/dens.md)")


def test_a_run_keeps_what_it_began_with(tiny: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitted_settings, "PAYING_EPOCHS", 2)

    def trained(steps: int, name: str, *, resume: bool = False) -> float:
        config = tiny(f"training.max_steps={steps}", name=name).model_copy(update={"task": DeNSConfig()})
        train(config, resume=resume)
        task = load_config(config.output).task
        assert isinstance(task, DeNSConfig)
        return task.coefficient

    assert trained(10, "long") == FOR_FEW_MOLECULES["coefficient"]
    assert trained(11, "long", resume=True) == FOR_FEW_MOLECULES["coefficient"]
    assert trained(5, "short") == trained(10, "short", resume=True) == DeNSConfig().coefficient
