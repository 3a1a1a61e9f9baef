"""A task that a script adds: its settings, its run folder, and what is said of a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from ase import Atoms
from pydantic import Field

from denskit.settings import OnResume
from denskit.tasks import TASKS, DeNS, DeNSConfig, EnergyForces, LossConfig, TaskEntry
from denskit.training.load_config import RunConfig, load_config, settings_classes
from denskit.workflow import Run, train

Tiny = Callable[..., RunConfig]


class MineConfig(LossConfig):
    """Settings of a task of a script."""

    name: Literal["mine"] = "mine"
    """Name of the task."""
    forces_weight: float = Field(default=3.0, ge=0, le=5)
    """No more than 5."""
    patience: OnResume[int] = 3
    """May be another when the run is resumed."""
    strictness: int = 1
    """May not."""


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "mine", TaskEntry(MineConfig, EnergyForces))


@pytest.mark.usefixtures("mine")
def test_it_trains_its_folder_opens_and_it_resumes(tiny: Tiny) -> None:
    run = train(tiny("task=mine", "task.patience=4", "training.max_steps=2"))
    assert Run(run).config.task == MineConfig(patience=4)
    config = load_config(run, ["task.patience=5", "training.max_steps=4"])
    again = train(config, resume=True)
    assert again.config.task.patience == 5 and again.state == "finished"
    with pytest.raises(ValueError, match=r"task.strictness"):
        train(load_config(run, ["task.strictness=2", "training.max_steps=6"]), resume=True)


@pytest.mark.usefixtures("mine")
def test_its_settings_are_checked_and_named(tiny: Tiny) -> None:
    with pytest.raises(ValueError, match=r"override: task.forces_weight: 9.0: wanted a number of 5 or less"):
        tiny("task=mine", "task.forces_weight=9.0")
    with pytest.raises(ValueError, match=r"unknown key task.patiense; did you mean task.patience"):
        tiny("task=mine", "task.patiense=9")
    with pytest.raises(ValueError, match=r"task.patience belongs to task=mine, which is not chosen here"):
        tiny("task=dens", "task.patience=9")
    assert settings_classes()["task=mine"] is MineConfig


@pytest.mark.usefixtures("mine")
def test_its_run_says_what_is_missing_where_it_is_not_added(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(tiny("task=mine", "training.max_steps=1"))
    monkeypatch.delitem(TASKS, "mine")
    with pytest.raises(ValueError, match=r"config.yaml: no task 'mine' here: it is of a package that is not installed"):
        load_config(run)
    with pytest.raises(ValueError, match=r"override: no task 'mines'; valid are energy_forces, dens, "):
        tiny("task=mines")
    with pytest.raises(ValueError, match=r"override: no task 'denz'; did you mean dens\?"):
        tiny("task=denz")


def test_settings_of_a_task_that_was_not_added_are_refused_before_the_training(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny().model_copy(update={"task": MineConfig()})
    with pytest.raises(ValueError, match=r"task=mine is not in denskit.tasks.TASKS"):
        train(config)
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (EnergyForces, "class 'denskit.tasks.energy_forces.EnergyForces'"),
        (MineConfig, "test_own_tasks.MineConfig'"),
        ("mine", "'mine'"),
        (TaskEntry(DeNSConfig, DeNS), "'dens'"),
        (TaskEntry(LossConfig, EnergyForces), "class 'denskit.tasks.energy_forces.LossConfig'"),
        (TaskEntry(Atoms, EnergyForces), "class 'ase.atoms.Atoms'"),
    ],
)
def test_a_wrong_entry_is_named(entry: Any, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "mine", entry)
    with pytest.raises(
        ValueError, match=rf"TASKS\['mine'\]: wanted TaskEntry\(Config, Task\), .*'mine', found .*{found}"
    ):
        load_config("demo")
