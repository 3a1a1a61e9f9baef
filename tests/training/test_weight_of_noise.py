"""The weight of the noise that a training takes where none is given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from denskit.batch import System
from denskit.data import load_data
from denskit.runtime.processes import join_processes
from denskit.tasks import FOR_CRYSTALS, DeNSConfig
from denskit.training import forecast
from denskit.training.cost import Cost
from denskit.training.fitted_denoising import SOME_MOLECULES, TO_THE_END, fit_dens_to_crystals, fit_weight_to_length
from denskit.training.forecast import forecasts_of
from denskit.training.load_config import RunConfig, load_config
from denskit.training.run import train

FEWEST, MOST = SOME_MOLECULES


class _Frames(list[System]):
    name, sizes = "frames", None


def _weight(
    systems: list[System], *overrides: str, batch: int = 4, epochs: int | None = None, preset: str = "equiformer"
) -> float:
    """Of a training on these structures for so many epochs, of a model that may tell mirror images apart."""
    config = load_config(
        preset,
        [
            *["model.parity=false"] * (preset == "equiformer"),
            "data.path=any.extxyz", "task=dens", f"training.batch_size={batch}", "training.drop_last=true",
            f"training.max_steps={(epochs or TO_THE_END) * (len(systems) // batch)}", *overrides,
        ],
    )  # fmt: skip
    fitted, said = fit_weight_to_length(fit_dens_to_crystals(config, _Frames(systems))[0], _Frames(systems))
    assert isinstance(config.task, DeNSConfig) and isinstance(fitted.task, DeNSConfig)
    assert bool(said) == (fitted.task != config.task and not systems[0].pbc.any())
    return fitted.task.coefficient


def test_some_molecules_trained_to_the_end_take_the_larger_weight(systems: dict[str, System]) -> None:
    frames = [systems["ethanol"]] * (MOST + 1)
    for count, expected in ((FEWEST - 1, 5), (FEWEST, 20), (MOST, 20), (MOST + 1, 5)):
        assert _weight(frames[:count]) == expected
    few = frames[:FEWEST]
    for batch in (4, 8):
        assert _weight(few, batch=batch, epochs=TO_THE_END - 1) == 5
        assert _weight(few, batch=batch) == 20


def test_what_was_not_measured_keeps_the_default(systems: dict[str, System]) -> None:
    frames = [systems["ethanol"]] * FEWEST
    others = (
        "loss=paper",
        "force_encoding=false",
        "energy_on_corrupted=false",
        "sigma=0.1",
        "forces_weight=1",
        "min_atoms=10",
    )
    tasks = (*(f"task.{one}" for one in (*others, "probability=0")), "task=cell_dens")
    for other in (*tasks, "model.forces=direct", "model.parity=true"):
        assert _weight(frames, other) == 5
    assert _weight(frames, preset="esen") == 5
    liquid = replace(systems["ethanol"], pbc=np.ones(3, bool), cell=20 * np.eye(3))
    assert _weight([liquid] * FEWEST) == 5
    assert _weight([systems["copper"]] * FEWEST) == FOR_CRYSTALS["coefficient"]


def test_given_weights_stay_and_auto_undoes_them(systems: dict[str, System]) -> None:
    frames = [systems["ethanol"]] * FEWEST
    assert _weight(frames, "task.coefficient=5") == 5
    assert _weight(frames, "task.coefficient=7", "task.coefficient=auto") == 20
    assert _weight([systems["copper"]] * FEWEST, "task.coefficient=auto") == FOR_CRYSTALS["coefficient"]
    with pytest.raises(ValueError, match="coefficient"):
        _weight(frames, "task.coefficient=automatic")


def _kept(run: Path) -> float:
    """The weight in the settings that a run has written."""
    task = load_config(str(run / "config.yaml")).task
    assert isinstance(task, DeNSConfig)
    return task.coefficient


def _short(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: object) -> RunConfig:
    """A training of some steps, which are enough epochs here."""
    monkeypatch.setattr("denskit.training.fitted_denoising.SOME_MOLECULES", (10, 20))
    monkeypatch.setattr("denskit.training.fitted_denoising.TO_THE_END", 1)
    small = {"channels": [8, 4], "feature_channels": [8, 4], "head_channels": [4, 2], "ffn_channels": [8, 4]}
    model = {f"model.{key}": value for key, value in {"num_layers": 1, **small}.items()}
    data = {"data.split": {"train": 12, "valid": 4, "test": 4}, "output": folder / "run", "task": "dens"}
    return load_config("demo", {**data, **model, "training.batch_size": 4, "model.parity": False, **settings})


def test_run_and_forecast_say_and_keep_the_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = _short(tmp_path, monkeypatch, **{"training.max_steps": 4})
    (found,) = forecasts_of(config)
    assert isinstance(found.planned.config.task, DeNSConfig)
    assert found.planned.config.task.coefficient == 20
    assert any("task.coefficient=20" in line for line in found.messages)
    run = train(config, progress=True)
    assert "1 epochs of 12 molecules with DeNS: task.coefficient=20" in capsys.readouterr().out
    assert _kept(run) == 20
    monkeypatch.setattr("denskit.training.fitted_denoising.TO_THE_END", 1000)
    train(config.model_copy(update={"training": config.training.model_copy(update={"max_steps": 6})}), resume=True)
    assert _kept(run) == 20, "it goes on with the weight that it began with"


def test_a_budget_decides_the_length_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = _short(tmp_path, monkeypatch, **{"training.budget": "1 minutes"})
    data, cost = load_data(config.data, config.seed), Cost(1.0, 0.0, 12, 0, 0)  # a second a step, 3 steps an epoch
    monkeypatch.setattr(forecast, "_sized", lambda *_: (config, cost, []))
    for epochs, weight in ((15, 20), (30, 5)):
        monkeypatch.setattr("denskit.training.fitted_denoising.TO_THE_END", epochs)
        task = forecast.settled(config, data, join_processes("cpu"), None, print)[0].task
        assert isinstance(task, DeNSConfig) and task.coefficient == weight
