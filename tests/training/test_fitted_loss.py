"""A training on many materials weighs energies by the atom, except where the loss is given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import ase
import ase.io
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from pydantic import Field

from denskit.batch import System
from denskit.tasks import FOR_MANY_MATERIALS, TASKS, EnergyForces, LossConfig, TaskEntry
from denskit.training.fitted_loss import FAR_APART, energy_spread, fit_loss_to_energies
from denskit.training.load_config import RunConfig, load_config
from denskit.training.run import train


class _Frames(list[System]):
    name, sizes = "frames", None


def _materials(count: int = 60, spread: float = 0.5) -> list[ase.Atoms]:
    """Cells of two to four of six elements; energies that no sum over elements gives, small forces."""
    generator, frames = np.random.default_rng(0), []
    for _ in range(count):
        symbols = generator.choice(["H", "Li", "O", "Na", "Cl", "Cu"], size=generator.integers(2, 5))
        frame = ase.Atoms(symbols, scaled_positions=generator.random((len(symbols), 3)), cell=4 * np.eye(3), pbc=True)
        energy = len(frame) * generator.normal(scale=spread) - 3.0 * len(frame)
        frame.calc = SinglePointCalculator(
            frame, energy=energy, forces=generator.normal(scale=0.1, size=(len(frame), 3))
        )
        frames.append(frame)
    return frames


def _systems(frames: list[ase.Atoms]) -> _Frames:
    return _Frames(
        System(
            positions=a.positions, atomic_numbers=a.numbers, cell=np.array(a.cell), pbc=a.pbc,
            fixed=np.zeros(len(a), bool), tags=np.zeros(len(a), int),
            energy=a.get_potential_energy(), forces=a.get_forces(),
        )
        for a in frames
    )  # fmt: skip


def _run(**settings: object) -> RunConfig:
    return load_config("equiformer", {"data.path": "unused.extxyz", **settings})


@pytest.mark.parametrize("task", ["energy_forces", "dens", "cell_dens", "noisy_nodes"])
def test_energies_far_apart_are_weighed_by_the_atom(task: str) -> None:
    fitted, (said,) = fit_loss_to_energies(_run(task=task), _systems(_materials()))
    assert {name: getattr(fitted.task, name) for name in FOR_MANY_MATERIALS} == FOR_MANY_MATERIALS
    assert "task.energy_loss=mae_per_atom task.energy_weight=20.0 task.forces_weight=20.0" in said
    assert "forces 79 meV/Å" in said or "forces 80 meV/Å" in said, said


def test_others_keep_the_loss() -> None:
    config = _run()
    near = _systems(_materials(spread=0.02))
    assert fit_loss_to_energies(config, near) == (config, [])
    for given in FOR_MANY_MATERIALS:
        config = _run(**{f"task.{given}": "mae" if given == "energy_loss" else 3.0})
        assert fit_loss_to_energies(config, _systems(_materials())) == (config, [])
    huber = _run(**{"task.loss": "huber"})
    assert fit_loss_to_energies(huber, _systems(_materials())) == (huber, [])
    esen = load_config("esen", {"data.path": "unused.extxyz"})
    assert fit_loss_to_energies(esen, _systems(_materials())) == (esen, []), "its preset gives them"


class _GentleConfig(LossConfig):
    name: Literal["gentle"] = "gentle"
    forces_weight: float = Field(default=3.0, ge=0, le=5)


def test_a_task_with_defaults_of_its_own_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run could not be opened with a weight that it does not allow."""
    monkeypatch.setitem(TASKS, "gentle", TaskEntry(_GentleConfig, EnergyForces))
    config = _run(task="gentle")
    assert not {*FOR_MANY_MATERIALS, "loss"} & config.task.model_fields_set
    assert fit_loss_to_energies(config, _systems(_materials())) == (config, [])


def test_isolated_atoms_do_not_count() -> None:
    """Their energies are eV above those of bound atoms."""
    near = _systems(_materials(spread=0.02))
    copper = replace(near[0], energy=40.0, positions=np.zeros((1, 3)), atomic_numbers=np.array([29]),
                     fixed=np.zeros(1, bool), tags=np.zeros(1, int), forces=np.zeros((1, 3)),
                     cell=20 * np.eye(3))  # fmt: skip
    assert energy_spread([*near, copper])[0] == energy_spread(near)[0]


def test_an_element_of_one_structure_does_not_count() -> None:
    """Its energy, of keV with all electrons, cannot be told from the others."""
    near = _systems(_materials(spread=0.02))
    other = replace(near[0], atomic_numbers=np.full(len(near[0]), 79), energy=-5e5)
    assert energy_spread([*near, other])[0] == energy_spread(near)[0]
    config = _run()
    assert fit_loss_to_energies(config, _Frames([*near, other])) == (config, [])


def test_missing_labels_decide_nothing() -> None:
    config, frames = _run(), _systems(_materials())
    for unlabelled in (
        [],
        frames[:1],
        [replace(s, energy=None) for s in frames],
        [replace(s, forces=None) for s in frames],
    ):
        assert fit_loss_to_energies(config, _Frames(unlabelled)) == (config, [])
    fixed = [replace(s, fixed=np.ones(len(s), bool)) for s in frames]
    assert fit_loss_to_energies(config, _Frames(fixed)) == (config, [])


def test_what_is_compared() -> None:
    """Two structures of one composition: each is predicted by the other."""
    first = _systems(_materials())[0]
    size = len(first)
    pair = [replace(first, energy=energy * size, forces=np.full((size, 3), 0.05)) for energy in (-3.0, -3.3)]
    spread, force = energy_spread(pair)
    assert (spread, force) == (pytest.approx(0.3), pytest.approx(0.05)) and spread > FAR_APART * force


def _small(folder: Path, **settings: object) -> RunConfig:
    sizes = {"channels": [8, 4], "feature_channels": [8, 4], "head_channels": [4, 2], "ffn_channels": [8, 4]}
    model = {f"model.{key}": value for key, value in {"num_layers": 1, **sizes}.items()}
    return load_config(
        "equiformer", {"data.path": folder / "many.extxyz", "output": folder / "run", **model, **settings}
    )


def test_the_run_has_it_and_keeps_it(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "many.extxyz", _materials())
    train(_small(tmp_path, **{"training.max_steps": 2}))
    assert load_config(tmp_path / "run").task.energy_loss == "mae_per_atom"
    log = tmp_path / "run" / "train.log"
    assert "energies are weighed by the atom" in log.read_text()
    train(_small(tmp_path, **{"training.max_steps": 3}), resume=True)
    assert load_config(tmp_path / "run").task.forces_weight == 20.0
    assert "changed on resume: task" not in log.read_text()


def test_a_run_that_began_with_the_defaults_keeps_them(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "many.extxyz", _materials())
    defaults = {"task.energy_loss": "mae", "task.energy_weight": 1.0, "task.forces_weight": 80.0}
    train(_small(tmp_path, **{"training.max_steps": 1, **defaults}))
    train(_small(tmp_path, **{"training.max_steps": 2}), resume=True)
    assert load_config(tmp_path / "run").task.energy_loss == "mae"
    assert "changed on resume: task" not in (tmp_path / "run" / "train.log").read_text()
