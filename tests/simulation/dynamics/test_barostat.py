"""Constant pressure: the exact distribution of volumes, the account of energy, restarts, what is refused."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from ase.constraints import FixAtoms
from torch import Tensor
from typer.testing import CliRunner

from contract.variants import build
from denskit.batch import Batch
from denskit.cli import app
from denskit.simulation.dynamics import Dynamics, DynamicsSettings
from denskit.simulation.dynamics.folder import DynamicsPlan, molecular_dynamics
from denskit.simulation.potential import Evaluation, Potential
from denskit.simulation.structures import batch_of
from denskit.units import BOLTZMANN, GPA
from simulation.morse import Morse

from tolerances import SAME_MOTION64
from trained import TRAINED, trained


@dataclass(frozen=True)
class Balloon:
    """E = stiffness / 2 (V - rest)^2: no forces between atoms; 0: an ideal gas."""

    stiffness: float = 0.0  # eV/Å^6
    rest: float = 0.0  # Å^3
    stress: bool = True
    device = torch.device("cpu")

    def __call__(self, batch: Batch) -> Evaluation:
        stretch = batch.cell.det().abs() - self.rest
        energies = torch.zeros(batch.num_atoms, dtype=torch.float64)
        stress = self.stiffness * stretch[:, None, None] * torch.eye(3, dtype=torch.float64)
        forces = torch.zeros_like(batch.positions)
        return Evaluation(energy=self.stiffness / 2 * stretch**2, energies=energies, forces=forces, stress=stress)

    def broken(self, batch: Batch) -> Tensor:
        return ~batch.positions.reshape(batch.num_systems, -1).isfinite().all(1)


def isobaric(**changes: object) -> DynamicsSettings:
    chosen = {"ensemble": "npt", "temperature": 300.0, "timestep": 1.0, "friction": 0.05, "pressure_time": 30.0}
    return DynamicsSettings.model_validate(chosen | changes)


@pytest.mark.parametrize("stiffness", [0.0, 0.004])
def test_volumes_have_their_exact_distribution(stiffness: float) -> None:
    """P(V) ~ V^n exp(-(E(V) + P V) / kT), by quadrature; 300 replicas of 8 atoms at 1 GPa.

    The statistical errors are about 0.3 % and 2 %.  Without the term kT / 2V of x, or with the pressure of n - 1 atoms,
    the mean of the gas would be 6 % or 11 % off.
    """
    n, heat, pressure = 8, BOLTZMANN * 300.0, 1.0 * GPA
    balloon = Balloon(stiffness=stiffness, rest=40.0)
    volumes = np.linspace(0.01, 300.0, 200_000)
    exponent = n * np.log(volumes) - (stiffness / 2 * (volumes - 40.0) ** 2 + pressure * volumes) / heat
    weight = np.exp(exponent - exponent.max())
    mean = (weight * volumes).sum() / weight.sum()
    variance = (weight * (volumes - mean) ** 2).sum() / weight.sum()
    atoms = ase.Atoms("Ar" * n, np.random.default_rng(0).uniform(size=(n, 3)), cell=[mean ** (1 / 3)] * 3, pbc=True)
    dynamics = Dynamics(balloon, isobaric(pressure=1.0))
    state = dynamics.start(batch_of([atoms] * 300))
    found, pressures = [], []
    for step in range(1500):
        state = dynamics.step(state)
        if step >= 500 and step % 10 == 0:
            found.append(state.volume)
            pressures.append(state.pressure)
    volume = torch.stack(found)
    assert float(volume.mean()) == pytest.approx(mean, rel=0.02)
    assert float(volume.var()) == pytest.approx(variance, rel=0.1)
    assert float(torch.stack(pressures).mean()) == pytest.approx(pressure, rel=0.03)
    assert state.freedom.tolist() == [3 * n] * 300


def test_a_crystal_has_the_pressure_that_is_asked_for() -> None:
    """Crystals of Morse atoms at 5 GPa: the mean pressure, and that of constant volume at the mean volume."""
    crystal = bulk("Cu", "fcc", a=2.9, cubic=True) * (2, 2, 2)
    potential, copies = Morse(stress=True), 4
    chosen = isobaric(timestep=2.0, pressure=5.0, pressure_time=100.0, friction=0.02)
    dynamics = Dynamics(potential, chosen)
    state = dynamics.start(batch_of([crystal] * copies))
    volumes, pressures = [], []
    for step in range(600):
        state = dynamics.step(state)
        if step >= 300:
            volumes.append(state.volume)
            pressures.append(state.pressure)
    volume = float(torch.stack(volumes).mean())
    assert float(torch.stack(pressures).mean()) / GPA == pytest.approx(5.0, abs=0.4)
    still = Dynamics(potential, chosen.model_copy(update={"ensemble": "langevin"}))
    crystal.set_cell(crystal.cell * (volume / crystal.get_volume()) ** (1 / 3), scale_atoms=True)
    state = still.start(batch_of([crystal] * copies))
    pressures = []
    for step in range(300):
        state = still.step(state)
        if step >= 150:
            pressures.append(state.pressure)
    assert float(torch.stack(pressures).mean()) / GPA == pytest.approx(5.0, abs=0.4)


def test_the_account_of_energy_closes_with_the_square_of_the_time_step() -> None:
    """The energy less all heat and work; where the stress were wrong by a tenth, it would not fall at all."""
    crystal = bulk("Cu", "fcc", a=2.9, cubic=True)
    errors = []
    for timestep in (2.0, 1.0):
        dynamics = Dynamics(Morse(stress=True), isobaric(timestep=timestep, pressure=3.0, temperature=600.0))
        state = dynamics.start(batch_of([crystal] * 32))
        changes = []
        for _ in range(round(100 / timestep)):
            state = dynamics.step(state)
            changes.append(dynamics.conserved(state) - state.conserved_at_start)
        errors.append(float(torch.stack(changes).square().mean().sqrt()))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.25)


def test_replicas_do_what_they_do_alone() -> None:
    crystals = [bulk("Cu", "fcc", a=a, cubic=True) for a in (2.85, 2.9)]
    dynamics = Dynamics(Morse(stress=True), isobaric(pressure=3.0))
    both, alone = dynamics.start(batch_of(crystals)), dynamics.start(batch_of(crystals[1:]), replicas=[1])
    for _ in range(40):  # more than a block of noise
        both, alone = dynamics.step(both), dynamics.step(alone)
    own = both.batch.system_index == 1
    torch.testing.assert_close(both.batch.positions[own], alone.batch.positions, rtol=0, atol=SAME_MOTION64)
    torch.testing.assert_close(both.batch.cell[1:], alone.batch.cell, rtol=0, atol=SAME_MOTION64)
    assert float((both.volume[1] - both.volume[0]).abs()) > 0.1


def test_a_resumed_run_ends_as_one_that_was_not(tmp_path: Path) -> None:
    crystals = [bulk("Cu", "fcc", a=3.6, cubic=True), bulk("Cu", "fcc", a=3.7)]
    settings = isobaric(pressure=1.0, timestep=0.5)

    def run(folder: Path, steps: int, resume: bool = False) -> None:
        plan = DynamicsPlan(
            settings=settings, steps=steps, folder=folder, frame_every=4, statistics_every=3, restart_every=5
        )
        molecular_dynamics(Potential(trained(), stress=True), crystals, plan, resume=resume, say=lambda text: None)

    run(tmp_path / "whole", 16)
    run(tmp_path / "parts", 7)
    run(tmp_path / "parts", 16, resume=True)
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "parts" / path.name).read_bytes(), path.name
    with (tmp_path / "whole" / "statistics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["replica"] == "0"]
    frames = ase.io.read(tmp_path / "whole" / "trajectory_00.extxyz", index=":")
    assert len({round(float(row["volume_A3"]), 6) for row in rows}) == len(rows)
    assert frames[3].get_volume() == pytest.approx(float(rows[4]["volume_A3"]), rel=1e-6)  # step 12 of both
    assert float(rows[0]["pressure_GPa"]) == pytest.approx(_pressure(frames[0]), abs=0.01)


def _pressure(atoms: ase.Atoms) -> float:
    """GPa, by ASE, from stress and momenta of a frame."""
    return -float(np.trace(atoms.get_stress(voigt=False, include_ideal_gas=True))) / 3 / GPA


def test_an_exploding_cell_ends_its_run(tmp_path: Path) -> None:
    """An ideal gas far above its pressure: its volume would grow twentyfold."""
    gas = ase.Atoms("Ar4", np.eye(4, 3), cell=[3.0] * 3, pbc=True)
    plan = DynamicsPlan(settings=isobaric(pressure=0.01, pressure_time=5.0), steps=2000, folder=tmp_path / "run")
    said: list[str] = []
    outcome = molecular_dynamics(_Recorded(), [gas], plan, say=said.append)  # type: ignore[arg-type]
    assert any("was not trained on stress" in text for text in said)
    assert [failure.check for failure in outcome.failures] == ["volume"]
    assert "volume is" in str(outcome.failures[0]) and "Å^3" in str(outcome.failures[0])


@pytest.mark.parametrize(("ensemble", "told"), [("npt", 1), ("langevin", 0)])
def test_vacuum_at_constant_pressure_is_warned_of(tmp_path: Path, ensemble: str, told: int) -> None:
    gas = ase.Atoms("Ar4", np.eye(4, 3), cell=[3.0] * 3, pbc=True)
    slab = ase.Atoms("Ar4", np.eye(4, 3), cell=[3.0, 3.0, 12.0], pbc=True)
    settings = DynamicsSettings.model_validate({"ensemble": ensemble, "timestep": 0.1})
    said: list[str] = []
    plan = DynamicsPlan(settings=settings, steps=1, folder=tmp_path / "run")
    molecular_dynamics(_Recorded(), [slab, slab, gas], plan, say=said.append)  # type: ignore[arg-type]
    assert len(found := [text for text in said if "vacuum" in text]) == told, said
    assert all(text.startswith("warning: Ar4: it has vacuum, like a slab or a molecule in a box") for text in found)


class _Recorded(Balloon):
    """With what a folder asks of a potential besides."""

    direct_forces, smooth, learned_stress = False, True, False
    dtype = torch.float64
    models: tuple[()] = ()
    files: tuple[()] = ()

    def weights_sha256(self) -> str:
        return ""

    def forget(self) -> None:
        pass


def test_what_has_no_pressure_is_refused() -> None:
    direct = build("direct", torch.float64)
    with pytest.raises(ValueError, match="forces=direct"):
        Potential(direct, stress=True)
    with pytest.raises(ValueError, match="make the potential with stress=True"):
        Dynamics(Potential(trained()), isobaric())
    with pytest.raises(ValueError, match="All three directions must be periodic"):
        Dynamics(Potential(trained(), stress=True), isobaric()).start(batch_of([molecule("H2O")]))
    held = bulk("Cu", "fcc", a=3.6, cubic=True)
    held.set_constraint(FixAtoms([0]))
    with pytest.raises(ValueError, match="release the fixed atoms"):
        Dynamics(Potential(trained(), stress=True), isobaric()).start(batch_of([held]))


def test_the_program(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "copper.extxyz", bulk("Cu", "fcc", a=3.6, cubic=True))
    ase.io.write(tmp_path / "water.xyz", molecule("H2O"))
    arguments = ["--steps", "3", "--ensemble", "npt", "--statistics-every", "1"]
    common = ["md", str(TRAINED), str(tmp_path / "copper.extxyz"), *arguments, "--pressure", "2"]
    result = CliRunner().invoke(app, [*common, "-o", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert "1 of 1 runs are stable" in result.output
    assert "bulk modulus" in result.output
    assert "pressure_GPa" in (tmp_path / "run" / "statistics.csv").read_text()
    for wrong, message in (
        ([*common[:3], "--steps", "3", "--pressure", "2"], "--pressure acts with --ensemble npt only"),
        ([*common[:3], "--steps", "3", "--friction", "0.1"], "--friction acts with --ensemble langevin and npt only"),
        ([*common, "--relaxation-time", "9"], "--relaxation-time acts with --ensemble nvt only"),
        (["md", str(TRAINED), str(tmp_path / "water.xyz"), *arguments], "All three directions must be periodic"),
    ):
        result = CliRunner().invoke(app, [*wrong, "-o", str(tmp_path / "wrong")])
        assert result.exit_code == 1
        assert message in result.output.replace("\n", " ")
    assert not (tmp_path / "wrong").exists()
