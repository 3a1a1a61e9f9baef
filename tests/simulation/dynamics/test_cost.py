"""What a simulation costs, before it runs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import ase.io
import pytest
from ase.build import molecule
from typer.testing import CliRunner

from denskit.cli import app
from denskit.simulation.dynamics import DynamicsSettings
from denskit.simulation.dynamics.cost import cost_of
from denskit.simulation.dynamics.folder import DynamicsPlan, molecular_dynamics
from denskit.simulation.dynamics.integrators import State
from denskit.simulation.dynamics.recorders import TrajectoryWriter
from denskit.simulation.potential import Potential

from trained import TRAINED, trained

WATER = molecule("H2O")


def plan(folder: Path, steps: int) -> DynamicsPlan:
    settings = DynamicsSettings(ensemble="langevin", temperature=100.0, timestep=0.1)
    return DynamicsPlan(settings=settings, steps=steps, folder=folder, bonds=False, frame_every=4)


def test_a_trial_measures_and_writes_nothing(tmp_path: Path) -> None:
    """The bytes of a frame are those that a whole simulation writes."""
    whole = plan(tmp_path / "run", 8)
    cost = cost_of(Potential(trained()), [WATER, WATER], whole)
    assert cost.step > 0 and cost.memory > 0
    assert not whole.folder.exists()
    assert cost.seconds(8, whole) == pytest.approx(8 * cost.step + 2 * cost.frame_seconds)
    molecular_dynamics(Potential(trained()), [WATER, WATER], whole, say=pytest.fail)
    written = sum(path.stat().st_size for path in whole.folder.glob("trajectory_*"))
    assert cost.disk(whole) * 2**20 == pytest.approx(written, rel=0.05)  # numbers have more digits later


def test_frames_cost_time_as_often_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However rare they are, a trial of a few steps times them; and a step is timed without them."""
    write, slow = TrajectoryWriter.__call__, 0.2

    def slowly(self: TrajectoryWriter, state: State) -> None:
        time.sleep(slow)
        write(self, state)

    monkeypatch.setattr(TrajectoryWriter, "__call__", slowly)
    often, rarely = (replace(plan(tmp_path / "run", 1000), frame_every=every) for every in (1, 100))
    cost = cost_of(Potential(trained()), [WATER], often)
    assert cost.frame_seconds >= slow
    assert cost.seconds(1000, often) - cost.seconds(1000, rarely) == pytest.approx(990 * cost.frame_seconds)
    monkeypatch.setattr("denskit.simulation.dynamics.cost._frame_seconds", lambda write, state: 0.0)
    frames: list[int] = []
    monkeypatch.setattr(TrajectoryWriter, "__call__", lambda self, state: frames.append(state.step))
    cost_of(Potential(trained()), [WATER], often)
    assert frames == [0]


def test_the_program_says_what_a_simulation_costs(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "water.xyz", WATER)
    arguments = ["md", str(TRAINED), str(tmp_path / "water.xyz"), "--steps", "1000", "-o", str(tmp_path / "run")]
    said = CliRunner().invoke(app, [*arguments, "--timestep", "0.1", "--dry-run"])
    assert said.exit_code == 0, said.output
    assert "for 1000 steps, at" in said.stdout
    assert not (tmp_path / "run").exists()


def test_a_trial_says_what_became_unstable(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "water.xyz", WATER)
    arguments = ["md", str(TRAINED), str(tmp_path / "water.xyz"), "--steps", "50", "-o", str(tmp_path / "run")]
    said = CliRunner().invoke(app, [*arguments, "--timestep", "50", "--dry-run"])
    assert said.exit_code == 0, said.output
    assert "in the trial replica 0 became unstable" in said.stdout
    said = CliRunner().invoke(app, [*arguments, "--temperature", "1e6", "--dry-run"])
    assert said.exit_code == 1 and "no step can be timed: replica 0 became unstable" in said.output, said.output


def test_a_resumed_simulation_costs_what_is_left(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "water.xyz", WATER)
    arguments = ["md", str(TRAINED), str(tmp_path / "water.xyz"), "--timestep", "0.1", "-o", str(tmp_path / "run")]
    assert CliRunner().invoke(app, [*arguments, "--steps", "10"]).exit_code == 0
    said = CliRunner().invoke(app, [*arguments, "--steps", "50", "--resume", "--dry-run"])
    assert "for the last 40 of 50 steps" in said.stdout, said.output
