"""Free and boxed molecules: their rotation under a thermostat, their bonds beside crystals, their charges in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from typer.testing import CliRunner

from contract.variants import build
from denskit.cli import app
from denskit.data.periodicity import is_boxed
from denskit.simulation.dynamics import Dynamics, DynamicsSettings, State
from denskit.simulation.dynamics.folder import DynamicsPlan, molecular_dynamics
from denskit.simulation.potential import Potential
from denskit.simulation.structures import batch_of, system_of
from denskit.units import BOLTZMANN
from simulation.springs import Springs

from trained import TRAINED, nearly_free, trained

TETRAHEDRON = ase.Atoms("CHON", positions=1.5 / 8**0.5 * np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]))


def boxed(atoms: ase.Atoms, side: float = 30.0) -> ase.Atoms:
    found = atoms.copy()
    found.set_cell([side] * 3)
    found.pbc = True
    found.center()
    return found


def plan(folder: Path, steps: int = 2, **changes: object) -> DynamicsPlan:
    settings = DynamicsSettings.model_validate({"timestep": 0.25} | changes)
    return DynamicsPlan(settings=settings, steps=steps, folder=folder, frame_every=1)


def angular(state: State) -> torch.Tensor:
    """Angular momenta [B, 3] about the centres of mass."""
    mass = state.masses[:, None]
    centre = state.batch.sum_over_atoms(mass * state.batch.positions) / state.batch.sum_over_atoms(mass)
    return state.batch.sum_over_atoms(
        torch.linalg.cross(state.batch.positions - centre[state.system_index], state.momenta)
    )


@pytest.mark.parametrize(("ensemble", "freedom"), [("nvt", 6), ("langevin", 12)])
def test_vibrations_of_relaxed_molecules_reach_the_temperature(ensemble: str, freedom: int) -> None:
    """Six springs that are nearly harmonic hold kT / 2 each, over 300 molecules.

    A Nosé-Hoover chain with molecules that turn leaves a third less in them: the temperature asked for is that of a
    fast rotation and of cold vibrations.
    """
    coupling = {"relaxation_time": 10.0} if ensemble == "nvt" else {"friction": 0.1}
    chosen = DynamicsSettings.model_validate({"ensemble": ensemble, "temperature": 100.0, **coupling})
    dynamics = Dynamics(Springs(stiffness=20.0), chosen)
    state = dynamics.start(batch_of([TETRAHEDRON] * 300))
    assert state.freedom.tolist() == [freedom] * 300
    found = []
    for step in range(800):
        state = dynamics.step(state)
        if step > 300 and step % 5 == 0:
            found.append(state.energy)
    assert float(torch.stack(found).mean()) == pytest.approx(6 * BOLTZMANN * 100 / 2, rel=0.05)


def test_only_a_nose_hoover_chain_starts_without_rotation() -> None:
    for ensemble, turns in (("nve", True), ("nvt", False), ("langevin", True), ("npt", True)):
        assert DynamicsSettings.model_validate({"ensemble": ensemble}).rotation is turns
        for asked in (True, False):
            assert DynamicsSettings.model_validate({"ensemble": ensemble, "rotation": asked}).rotation is asked
    state = Dynamics(Springs(), DynamicsSettings()).start(batch_of([TETRAHEDRON] * 3))
    assert float(angular(state).abs().max()) < 1e-10 * float(state.momenta.abs().max())
    turning = Dynamics(Springs(), DynamicsSettings(rotation=True)).start(batch_of([TETRAHEDRON] * 3))
    assert float(angular(turning).norm(dim=1).min()) > 1e-3 * float(turning.momenta.abs().max())


@pytest.mark.parametrize(
    ("atoms", "changes", "told"),
    [
        (molecule("H2O"), {}, ""),
        (molecule("H2O"), {"rotation": True}, "a molecule that turns freely: nvt scales all momenta alike"),
        (boxed(molecule("H2O")), {}, "a molecule that turns freely in a periodic box: nvt"),
        (boxed(molecule("H2O")), {"ensemble": "langevin"}, ""),
        (molecule("H2O"), {"ensemble": "langevin"}, ""),
        (boxed(molecule("H2O"), 5.0), {}, ""),  # sees its images
    ],
)
def test_molecules_that_turn_under_a_chain_are_told(
    atoms: ase.Atoms, changes: dict[str, object], told: str, tmp_path: Path
) -> None:
    said: list[str] = []
    molecular_dynamics(Potential(trained()), [atoms], plan(tmp_path / "run", **changes), say=said.append)
    warned = [line for line in said if "turns freely" in line]
    assert len(warned) == bool(told) and told in "".join(warned)


def test_what_is_a_molecule_in_a_box() -> None:
    water = molecule("H2O")
    across = boxed(water)
    across.positions += [15.0, 0.0, 15.0]  # some atoms beyond the faces
    across.wrap()
    flat = boxed(water)
    flat.pbc = [True, True, False]
    for atoms, found in (
        (water, False), (boxed(water), True), (across, True), (flat, True), (boxed(water, 6.0), False),
        (bulk("Cu"), False),
    ):  # fmt: skip
        assert is_boxed(system_of(atoms), 5.0) is found, atoms


def test_bonds_of_molecules_are_watched_beside_crystals(tmp_path: Path) -> None:
    """Nothing holds the molecules together; the crystal is no molecule."""
    structures = [molecule("H2O"), bulk("Ni", "sc", a=1.2).repeat(2), boxed(molecule("H2O"))]
    for atoms in structures:
        atoms.numbers[atoms.numbers == 28] = 8  # an element that the model knows, at its distance of a bond
    chosen = plan(tmp_path / "run", steps=200, temperature=2000.0, ensemble="langevin")
    outcome = molecular_dynamics(Potential(nearly_free()), structures, chosen, say=lambda text: None)
    assert {failure.replica for failure in outcome.failures if failure.check == "bonds"} == {0, 2}


def test_charges_and_spins_go_with_the_frames(tmp_path: Path) -> None:
    """Also into those on which a committee disagrees, which are labelled next."""
    first, second = molecule("H2O"), molecule("H2O")
    first.info |= {"charge": -1, "spin": 2, "name": "anion"}
    second.set_initial_charges([0.5, 0.25, 0.25])
    second.set_initial_magnetic_moments([1.0, 0.0, 0.0])
    potential = Potential([trained(), nearly_free()])
    chosen = DynamicsPlan(
        settings=DynamicsSettings(timestep=0.25), steps=2, folder=tmp_path / "run", frame_every=1, uncertain=1e-9
    )
    molecular_dynamics(potential, [first, second], chosen, say=lambda text: None)
    uncertain = ase.io.read(tmp_path / "run" / "uncertain.extxyz", ":")
    assert {atoms.info["replica"] for atoms in uncertain} == {0, 1}
    written = [ase.io.read(tmp_path / "run" / f"trajectory_{replica:02d}.extxyz", -1) for replica in (0, 1)]
    for atoms in [*uncertain, *written]:
        if atoms.info["replica"] == 0:
            assert (atoms.info["charge"], atoms.info["spin"]) == (-1, 2) and "name" not in atoms.info
            assert not atoms.has("initial_charges")
        else:
            assert "charge" not in atoms.info
            np.testing.assert_array_equal(atoms.get_initial_charges(), second.get_initial_charges())
            np.testing.assert_array_equal(atoms.get_initial_magnetic_moments(), [1.0, 0.0, 0.0])


def test_simulations_of_crystals_go_on_with_either_setting(tmp_path: Path) -> None:
    """Of a crystal the setting has no effect, and earlier versions recorded another default; of a molecule it has."""
    for atoms, name in ((bulk("Cu", cubic=True), "crystal"), (molecule("H2O"), "molecule")):
        atoms.numbers[atoms.numbers == 29] = 8
        potential, folder = Potential(trained()), tmp_path / name
        molecular_dynamics(potential, [atoms], plan(folder, 2, rotation=True), say=lambda text: None)
        if name == "crystal":
            outcome = molecular_dynamics(potential, [atoms], plan(folder, 4), resume=True, say=lambda text: None)
            assert outcome.state.step == 4
        else:
            with pytest.raises(ValueError, match=r"rotation: True then, False now"):
                molecular_dynamics(potential, [atoms], plan(folder, 4), resume=True)


def test_an_option_for_molecules_is_refused_where_there_is_none(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "boxed.extxyz", boxed(molecule("H2O")))
    common = ["md", str(TRAINED), str(tmp_path / "boxed.extxyz"), "--steps", "1", "-o", str(tmp_path / "run")]
    refused = CliRunner().invoke(app, [*common, "--no-rotation"])
    assert refused.exit_code == 1
    assert "--no-rotation acts on molecules that are neither periodic nor have fixed atoms" in refused.output
    assert CliRunner().invoke(app, common).exit_code == 0


@pytest.mark.parametrize("ensemble", ["nve", "nvt", "langevin"])
def test_positions_that_are_not_finite_are_named(ensemble: Any, tmp_path: Path) -> None:
    """By the same error for each, also where moments of inertia are wanted."""
    atoms = molecule("H2O")
    atoms.positions[1] = np.nan
    chosen = DynamicsPlan(settings=DynamicsSettings(ensemble=ensemble), steps=1, folder=tmp_path / "run")
    with pytest.raises(ValueError, match=r"atom 1 is at \[nan, nan, nan\] Å"):
        molecular_dynamics(Potential(build("envelope", torch.float32)), [atoms], chosen)
