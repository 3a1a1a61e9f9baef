"""Integrators and heat baths: what physics says of them."""

from __future__ import annotations

from dataclasses import replace

import ase
import ase.units
import numpy as np
import pytest
import torch
from ase.build import molecule
from ase.md.verlet import VelocityVerlet
from ase.optimize import BFGS

from denskit.batch import Batch
from denskit.simulation.calculator import DenskitCalculator
from denskit.simulation.dynamics import BrokenSystems, Dynamics, DynamicsSettings, State
from denskit.simulation.dynamics.momenta import kinetic_energy, masses_of
from denskit.simulation.potential import Evaluation, Potential
from denskit.simulation.structures import batch_of
from denskit.units import AMU, BOLTZMANN
from simulation.springs import Springs

from tolerances import SAME_MOTION64
from trained import trained

TETRAHEDRON = ase.Atoms("CHON", positions=1.5 / 8**0.5 * np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]))

BATHS = {"nvt": {"relaxation_time": 10.0}, "langevin": {"friction": 0.1}}  # that act fast


def molecules(count: int, atoms: ase.Atoms = TETRAHEDRON) -> Batch:
    return batch_of([atoms] * count)


def settings(**changes: object) -> DynamicsSettings:
    return DynamicsSettings.model_validate({"ensemble": "nve", "temperature": 300.0, "timestep": 0.5} | changes)


def stepped(dynamics: Dynamics, state: State, steps: int) -> State:
    for _ in range(steps):
        state = dynamics.step(state)
    return state


def energy_error(dynamics: Dynamics, state: State, steps: int) -> float:
    """Root mean square (eV) of the conserved quantity's change over a run."""
    start = dynamics.conserved(state)
    changes = []
    for _ in range(steps):
        state = dynamics.step(state)
        changes.append(dynamics.conserved(state) - start)
    return float(torch.stack(changes).square().mean().sqrt())


@pytest.mark.parametrize(
    ("ensemble", "idle"), [("nvt", "pressure"), ("nvt", "friction"), ("nve", "relaxation_time"), ("langevin", "links")]
)
def test_settings_that_the_ensemble_does_not_use_are_refused(ensemble: str, idle: str) -> None:
    with pytest.raises(ValueError, match=f"{idle}=7 acts with ensemble .* only, not with {ensemble}"):
        settings(ensemble=ensemble, **{idle: 7})
    usual = settings(ensemble=ensemble)
    assert DynamicsSettings.model_validate(usual.model_dump(mode="json")) == usual, "as a restart file has them"


@pytest.mark.parametrize("ensemble", ["nve", "nvt", "langevin"])
def test_the_error_falls_with_the_square_of_the_time_step(ensemble: str) -> None:
    """Over the same 30 fs; of the Langevin bath what the integrator alone adds, along another path at each step."""
    errors = []
    for timestep in (0.5, 0.25, 0.125):
        dynamics = Dynamics(Springs(), settings(ensemble=ensemble, timestep=timestep))
        errors.append(energy_error(dynamics, dynamics.start(molecules(64)), round(30 / timestep)))
    tolerance = 0.25 if ensemble == "langevin" else 0.15
    assert errors[0] / errors[1] == pytest.approx(4, rel=tolerance)
    assert errors[1] / errors[2] == pytest.approx(4, rel=tolerance)


def test_a_model_conserves_energy_to_second_order() -> None:
    """Gradient forces of a smooth model, at three time steps."""
    potential = Potential(trained())
    errors = []
    for timestep in (0.4, 0.2, 0.1):
        dynamics = Dynamics(potential, settings(timestep=timestep))
        errors.append(energy_error(dynamics, dynamics.start(batch_of([molecule("H2O")])), round(4 / timestep)))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.2)


def test_velocity_verlet_is_that_of_ase() -> None:
    model = trained()
    atoms = molecule("CH3CH2OH")
    dynamics = Dynamics(Potential(model), settings())
    state = dynamics.start(batch_of([atoms]))
    atoms.calc = DenskitCalculator(model)
    atoms.set_momenta((state.momenta / AMU / ase.units.fs).numpy())
    VelocityVerlet(atoms, 0.5 * ase.units.fs).run(10)
    # the units of ASE are of CODATA 2014
    np.testing.assert_allclose(stepped(dynamics, state, 10).batch.positions, atoms.positions, atol=1e-7)


@pytest.mark.parametrize("ensemble", ["nvt", "langevin"])
def test_temperature_has_the_canonical_mean_and_variance(ensemble: str) -> None:
    """Of f degrees of freedom the kinetic temperature has mean T and variance 2 T^2 / f; over 300 molecules.

    The statistical errors are 0.5% and 1.5%, and the time step takes 3% of the variance.
    """
    chosen = settings(ensemble=ensemble, temperature=400.0, timestep=0.5, **BATHS[ensemble])
    dynamics = Dynamics(Springs(), chosen)
    state = stepped(dynamics, dynamics.start(molecules(300)), 200)
    found = []
    for step in range(600):
        state = dynamics.step(state)
        if step % 5 == 0:
            found.append(state.temperature)
    temperature = torch.stack(found)
    freedom = 12 if ensemble == "langevin" else 6
    assert state.freedom.tolist() == [freedom] * 300
    assert float(temperature.mean()) == pytest.approx(400, rel=0.03)
    assert float(temperature.var()) == pytest.approx(2 * 400**2 / freedom, rel=0.12)


@pytest.mark.parametrize(("ensemble", "freedom"), [("nvt", 6), ("langevin", 9)])
def test_a_models_temperature_has_the_canonical_mean_and_variance(ensemble: str, freedom: int) -> None:
    """As above, of 64 replicas in the minimum of a force field; without a bath half of mean and variance would be left.

    Water turns here, since three stiff vibrations alone would want a longer run.  The statistical errors are 2% and
    9%; bounds are at five of them.
    """
    model = trained()
    atoms = molecule("H2O")
    atoms.calc = DenskitCalculator(model)
    assert BFGS(atoms, logfile=None).run(fmax=0.01, steps=200)
    chosen = settings(ensemble=ensemble, rotation=True, **BATHS[ensemble])
    dynamics = Dynamics(Potential(model), chosen)
    state = stepped(dynamics, dynamics.start(molecules(64, atoms)), 100)
    assert state.freedom.tolist() == [freedom] * 64
    found = []
    for _ in range(50):
        state = stepped(dynamics, state, 4)
        found.append(state.temperature)
    temperature = torch.stack(found)
    assert float(temperature.mean()) == pytest.approx(300, rel=0.1)
    assert float(temperature.var()) == pytest.approx(2 * 300**2 / freedom, rel=0.45)


class Pushed(Springs):
    """As a model with direct forces, which do not sum to 0."""

    direct_forces = True

    def __call__(self, batch: Batch) -> Evaluation:
        found = super().__call__(batch)
        return replace(found, forces=found.forces + torch.tensor([0.05, 0.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("ensemble", ["nve", "nvt"])
def test_direct_forces_do_not_accelerate_the_centre_of_mass(ensemble: str) -> None:
    dynamics = Dynamics(Pushed(), settings(ensemble=ensemble))
    batch = molecules(3)
    held = replace(batch, fixed=torch.arange(12) == 5)  # the second is not free to move as a whole
    state = stepped(dynamics, dynamics.start(held), 200)
    total = state.batch.sum_over_atoms(state.momenta)
    assert float(total[[0, 2]].abs().max()) < 1e-12
    assert float(total[1].abs().max()) > 1e-3
    assert float(state.forces.sum(0)[0]) == pytest.approx(12 * 0.05), "those of the model are written"


def test_a_nose_hoover_chain_keeps_momentum_and_what_it_conserves() -> None:
    dynamics = Dynamics(Springs(), settings(ensemble="nvt", temperature=500.0, timestep=0.25))
    state = dynamics.start(molecules(16))
    state = stepped(dynamics, state, 600)
    assert state.batch.sum_over_atoms(state.momenta).abs().max() < 1e-10
    drift = dynamics.conserved(state) - state.conserved_at_start
    assert drift.abs().max() < 1e-3  # eV, where the energy itself wanders by tenths
    assert (state.energy + state.kinetic - state.conserved_at_start).abs().max() > 0.1


def test_langevin_noise_does_not_repeat() -> None:
    """Free particles (no springs): momenta of different steps, atoms and replicas are independent."""
    dynamics = Dynamics(Springs(stiffness=0.0, farthest=1e9), settings(ensemble="langevin", friction=100.0))
    state = dynamics.start(molecules(50))
    scale = (state.masses * BOLTZMANN * 300).sqrt()[:, None]
    samples = []
    for _ in range(100):  # more than a block of noise
        state = dynamics.step(state)
        samples.append((state.momenta / scale).flatten())
    draws = torch.stack(samples)  # [steps, atoms x 3]
    assert float(draws.mean()) == pytest.approx(0, abs=0.02)
    assert float(draws.var()) == pytest.approx(1, abs=0.02)
    assert float((draws[1:] * draws[:-1]).mean()) == pytest.approx(0, abs=0.02)
    assert float((draws[33:65] * draws[1:33]).mean()) == pytest.approx(0, abs=0.02)
    assert len(draws.flatten().unique()) == draws.numel()


@pytest.mark.parametrize("ensemble", ["nve", "nvt", "langevin"])
def test_replicas_in_a_batch_do_what_they_do_alone(ensemble: str) -> None:
    """Different molecules, too."""
    potential = Potential(trained())
    dynamics = Dynamics(potential, settings(ensemble=ensemble, seed=3))
    structures = [molecule(name) for name in ("CH3CH2OH", "H2O", "CH3CH2OH")]
    together = stepped(dynamics, dynamics.start(batch_of(structures)), 10)
    for replica, atoms in enumerate(structures):
        alone = Dynamics(potential, dynamics.settings)
        state = stepped(alone, alone.start(batch_of([atoms]), replicas=[replica]), 10)
        own = together.batch.system_index == replica
        torch.testing.assert_close(together.batch.positions[own], state.batch.positions, rtol=0, atol=SAME_MOTION64)
        torch.testing.assert_close(together.momenta[own], state.momenta, rtol=0, atol=100 * SAME_MOTION64)
        torch.testing.assert_close(dynamics.conserved(together)[replica], alone.conserved(state)[0], rtol=0, atol=1e-8)
    assert not torch.equal(together.momenta[:9], together.momenta[12:])


def test_start_is_maxwell_boltzmann() -> None:
    dynamics = Dynamics(Springs(), settings(temperature=250.0))
    state = dynamics.start(molecules(4000))
    assert state.batch.sum_over_atoms(state.momenta).abs().max() < 1e-12
    assert float(state.temperature.mean()) == pytest.approx(250, rel=0.02)
    assert float(state.temperature.var()) == pytest.approx(2 * 250**2 / 9, rel=0.08)
    again = Dynamics(Springs(), settings(temperature=250.0)).start(molecules(4000))
    assert torch.equal(again.momenta, state.momenta)
    other = Dynamics(Springs(), settings(temperature=250.0, seed=1)).start(molecules(4000))
    assert not torch.equal(other.momenta, state.momenta)


@pytest.mark.parametrize(("name", "axes"), [("CH3CH2OH", 3), ("CO2", 2)])
def test_molecules_may_start_without_rotation(name: str, axes: int) -> None:
    atoms = molecule(name)
    dynamics = Dynamics(Springs(len(atoms)), settings(rotation=False, timestep=0.2))
    state = dynamics.start(molecules(300, atoms))
    assert state.freedom.tolist() == [3 * len(atoms) - 3 - axes] * 300
    for now in (state, stepped(dynamics, state, 20)):
        r = now.batch.positions - now.batch.positions[0]
        angular = now.batch.sum_over_atoms(torch.linalg.cross(r, now.momenta))
        assert angular.abs().max() < 1e-9
    assert float(state.temperature.mean()) == pytest.approx(300, rel=0.1)


@pytest.mark.parametrize("ensemble", ["nve", "nvt", "langevin"])
def test_fixed_atoms_do_not_move(ensemble: str) -> None:
    atoms = TETRAHEDRON.copy()
    atoms.set_constraint(ase.constraints.FixAtoms([1]))
    dynamics = Dynamics(Springs(), settings(ensemble=ensemble, timestep=0.25))
    state = dynamics.start(molecules(2, atoms))
    assert state.freedom.tolist() == [9, 9]
    after = stepped(dynamics, state, 50)
    assert torch.equal(after.batch.positions[1::4], state.batch.positions[1::4])
    assert not torch.equal(after.batch.positions[0::4], state.batch.positions[0::4])
    assert (dynamics.conserved(after) - state.conserved_at_start).abs().max() < 2e-3


def test_nothing_to_move_is_refused() -> None:
    dynamics = Dynamics(Springs(1), settings())
    with pytest.raises(ValueError, match="no degree of freedom"):
        dynamics.start(batch_of([ase.Atoms("H")]))


def test_a_broken_system_is_named_and_the_others_can_go_on() -> None:
    dynamics = Dynamics(Springs(), settings(ensemble="langevin"))
    state = dynamics.start(molecules(3))
    momenta = state.momenta.clone()
    momenta[5] = torch.inf
    with pytest.raises(BrokenSystems) as caught:
        dynamics.step(replace(state, momenta=momenta))
    assert caught.value.systems == [1]
    kept = state.select(torch.tensor([True, False, True]))
    assert kept.replicas.tolist() == [0, 2]
    after, wanted = stepped(dynamics, kept, 5), stepped(dynamics, state, 5)
    torch.testing.assert_close(after.batch.positions[4:], wanted.batch.positions[8:], rtol=0, atol=1e-12)
    torch.testing.assert_close(after.heat, wanted.heat[[0, 2]])


def test_kinetic_energy_in_si_units() -> None:
    """One hydrogen atom at 1 km/s."""
    batch = batch_of([ase.Atoms("H")])
    momenta = masses_of(batch)[:, None] * torch.tensor([[0.01, 0.0, 0.0]], dtype=torch.float64)  # Å/fs
    expected = 0.5 * 1.008 * 1.66053906660e-27 * 1000.0**2 / 1.602176634e-19
    assert float(kinetic_energy(batch, momenta, masses_of(batch))) == pytest.approx(expected, rel=1e-12)
