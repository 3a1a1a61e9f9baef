"""Committees in molecular dynamics: their spread, the frames they are not certain of, runs that end there."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase.build import molecule
from typer.testing import CliRunner

from denskit.cli import app
from denskit.models import ForceField
from denskit.models.model_file import save_model
from denskit.simulation.dynamics import DynamicsSettings
from denskit.simulation.dynamics.folder import DynamicsPlan, molecular_dynamics
from denskit.simulation.dynamics.restart import Restart
from denskit.simulation.potential import Potential
from denskit.simulation.structures import batch_of

from trained import trained

STRUCTURES = [molecule("H2O"), molecule("CH4"), molecule("H2O")]
for place, structure in enumerate(STRUCTURES):
    structure.rattle(0.05, seed=place)


@pytest.fixture(scope="module")
def models() -> list[ForceField]:
    """The trained model, and one whose weights are a little different."""
    other, generator = trained(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter *= 1 + 0.02 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return [trained(), other]


@pytest.fixture(scope="module")
def committee(models: list[ForceField]) -> Potential:
    return Potential(models)


def plan(folder: Path, steps: int, **changes: object) -> DynamicsPlan:
    settings = DynamicsSettings(temperature=300.0, timestep=0.25)
    every = {"frame_every": 10, "statistics_every": 10, "restart_every": 10}
    return DynamicsPlan(settings=settings, steps=steps, folder=folder, bonds=False, **(every | changes))


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "statistics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def whole(committee: Potential, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("committee") / "whole"
    molecular_dynamics(committee, STRUCTURES, plan(folder, 40))
    return folder


def test_the_spread_is_in_the_statistics_and_the_frames(models: list[ForceField], whole: Path) -> None:
    found = rows(whole)
    assert len(found) == 3 * 5
    frames = [ase.io.read(whole / f"trajectory_{replica:02d}.extxyz", index=-1) for replica in range(3)]
    for frame, row in zip(frames, found[-3:], strict=True):
        single = [Potential(model)(batch_of([frame])) for model in models]
        forces = np.stack([one.forces.numpy() for one in single])
        largest = np.linalg.norm(forces.std(0, ddof=1), axis=1).max()
        assert frame.info["step"] == int(row["step"]) == 40
        assert float(row["max_forces_std_eV_per_A"]) == pytest.approx(largest, rel=1e-5)
        assert float(row["energy_std_eV"]) == pytest.approx(np.std([float(one.energy) for one in single], ddof=1))
        assert frame.info["max_forces_std"] == pytest.approx(largest, rel=1e-5)
        np.testing.assert_allclose(frame.arrays["forces_std"], forces.std(0, ddof=1), atol=1e-5)
        np.testing.assert_allclose(frame.get_forces(), forces.mean(0), atol=1e-5)
    assert not (whole / "uncertain.extxyz").exists()


def above(folder: Path, threshold: float) -> list[tuple[int, int]]:
    """Replica and step of the lines beyond a threshold."""
    lines = [row for row in rows(folder) if float(row["max_forces_std_eV_per_A"]) > threshold]
    return [(int(row["replica"]), int(row["step"])) for row in lines]


@pytest.fixture
def threshold(whole: Path) -> float:
    """In the middle of the widest gap between spreads of the run, so that no rounding decides who is beyond it."""
    spreads = np.sort([float(row["max_forces_std_eV_per_A"]) for row in rows(whole)])[4:11]
    gap = int(np.diff(spreads).argmax())
    return float(spreads[gap : gap + 2].mean())


def test_frames_beyond_the_threshold_are_kept(
    committee: Potential, whole: Path, threshold: float, tmp_path: Path
) -> None:
    molecular_dynamics(committee, STRUCTURES, plan(tmp_path / "run", 40, uncertain=threshold, uncertain_every=0.0))
    frames = ase.io.read(tmp_path / "run" / "uncertain.extxyz", index=":")
    assert [(frame.info["replica"], frame.info["step"]) for frame in frames] == above(whole, threshold)
    assert all(frame.info["max_forces_std"] > threshold for frame in frames)


def test_kept_frames_are_apart_and_few(committee: Potential, whole: Path, tmp_path: Path) -> None:
    """Steps of 0.25 fs, looked at every 10th: 5 fs between frames are every second look.  Also over a restart."""
    chosen = plan(tmp_path / "apart", 40, uncertain=1e-6, uncertain_every=5.0)
    molecular_dynamics(committee, STRUCTURES, replace(chosen, steps=10))
    molecular_dynamics(committee, STRUCTURES, chosen, resume=True)
    frames = ase.io.read(tmp_path / "apart" / "uncertain.extxyz", index=":")
    expected = [(replica, step) for step in (0, 20, 40) for replica in range(3)]
    assert [(frame.info["replica"], frame.info["step"]) for frame in frames] == expected
    few = replace(chosen, folder=tmp_path / "few", uncertain_frames=4)
    molecular_dynamics(committee, STRUCTURES, replace(few, steps=10))
    molecular_dynamics(committee, STRUCTURES, few, resume=True)
    frames = ase.io.read(tmp_path / "few" / "uncertain.extxyz", index=":")
    assert [(frame.info["replica"], frame.info["step"]) for frame in frames] == expected[:4]


def test_uncertain_runs_end_and_a_restart_knows(
    committee: Potential, whole: Path, threshold: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = plan(tmp_path / "run", 40, uncertain=threshold, stop_uncertain=True)
    outcome = molecular_dynamics(committee, STRUCTURES, chosen)
    first = {replica: step for replica, step in reversed(above(whole, threshold))}
    assert {failure.replica: failure.step for failure in outcome.failures} == first
    assert all(failure.check == "uncertain" for failure in outcome.failures)
    assert "became uncertain at" in str(outcome.failures[0])
    assert "over the models, more than" in str(outcome.failures[0])
    assert outcome.state.replicas.tolist() == [replica for replica in range(3) if replica not in first]
    frames = ase.io.read(tmp_path / "run" / "uncertain.extxyz", index=":")
    assert {frame.info["replica"]: frame.info["step"] for frame in frames} == first

    # killed each time right after a restart file, which still has the replicas that end there
    parts, save = replace(chosen, folder=tmp_path / "parts"), Restart.save

    def dies(restart: Restart, path: Path) -> None:
        save(restart, path)
        if restart.files and restart.state.step != at:
            raise KeyboardInterrupt

    for at in (-1, 0, 10):
        with monkeypatch.context() as patch:
            patch.setattr(Restart, "save", dies)
            with pytest.raises(KeyboardInterrupt):
                molecular_dynamics(committee, STRUCTURES, parts, resume=at >= 0)
    molecular_dynamics(committee, STRUCTURES, parts, resume=True)
    for path in (tmp_path / "run").iterdir():
        assert path.read_bytes() == (tmp_path / "parts" / path.name).read_bytes(), path.name


def test_another_threshold_is_refused(committee: Potential, tmp_path: Path) -> None:
    """The frames in the file would be of two; one that is left out meanwhile is still on record."""
    chosen = plan(tmp_path / "run", 10, uncertain=1e-6, uncertain_every=5.0)
    molecular_dynamics(committee, STRUCTURES, chosen)
    molecular_dynamics(committee, STRUCTURES, replace(chosen, steps=20, uncertain=None), resume=True)
    for changed, told in (
        ({"uncertain": 0.5}, ": 1e-06 then, 0.5 now"),
        ({"uncertain_every": 9.0}, "9.0 now"),
    ):
        with pytest.raises(ValueError, match=f"another simulation:\n  uncertain.*{told}\nContinue"):
            molecular_dynamics(committee, STRUCTURES, replace(chosen, steps=30, **changed), resume=True)
    molecular_dynamics(committee, STRUCTURES, replace(chosen, steps=30), resume=True)


def test_a_threshold_may_come_later(committee: Potential, tmp_path: Path) -> None:
    chosen = plan(tmp_path / "run", 20, uncertain=1e-6)
    molecular_dynamics(committee, STRUCTURES, replace(chosen, steps=10, uncertain=None))
    molecular_dynamics(committee, STRUCTURES, chosen, resume=True)
    with pytest.raises(ValueError, match="uncertain: 1e-06 then, 0.5 now"):
        molecular_dynamics(committee, STRUCTURES, replace(chosen, uncertain=0.5), resume=True)


def test_a_threshold_needs_a_committee(models: list[ForceField], committee: Potential, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give a committee"):
        molecular_dynamics(Potential(models[0]), STRUCTURES, plan(tmp_path / "run", 10, uncertain=0.1))
    with pytest.raises(ValueError, match="give the threshold"):
        molecular_dynamics(committee, STRUCTURES, plan(tmp_path / "run", 10, stop_uncertain=True))
    assert not (tmp_path / "run").exists()


def test_the_program(models: list[ForceField], tmp_path: Path) -> None:
    for name, model in zip("ab", models, strict=True):
        save_model(tmp_path / f"{name}.safetensors", model, {})
    ase.io.write(tmp_path / "water.xyz", STRUCTURES[0])
    arguments = ["md", str(tmp_path / "a.safetensors"), str(tmp_path / "water.xyz"), "--steps", "2"]
    arguments += ["--committee", str(tmp_path / "b.safetensors"), "--timestep", "0.25", "--no-bonds"]
    result = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "go"), "--uncertain", "1000"])
    assert result.exit_code == 0, result.output
    assert "no frame in which forces spread by more than 1000 eV/Å" in result.output
    assert f"give it {tmp_path / 'go'}" in result.output, "there is no uncertain.extxyz to choose from"
    assert float(rows(tmp_path / "go")[0]["max_forces_std_eV_per_A"]) > 0
    stop = [*arguments, "-o", str(tmp_path / "stop"), "--uncertain", "0.001", "--stop-uncertain"]
    result = CliRunner().invoke(app, stop)
    assert result.exit_code == 0, result.output
    assert "replica 0 became uncertain at 0.0000 ps (step 0)" in result.output
    ends = "of 1 runs 0 are stable, 0 became unstable, and 1 ended where the models disagree, stable until then"
    assert ends in result.output
    assert len(ase.io.read(tmp_path / "stop" / "uncertain.extxyz", index=":")) == 1
