"""The TorchSim adapter against TorchSim itself: its own validator, the same numbers, its optimizer and its dynamics."""

from __future__ import annotations

import ase
import numpy as np
import pytest
import torch
from ase.build import bulk, molecule

from denskit.geometry.neighbors import build_neighbors
from denskit.models import build_force_field
from denskit.models.base import ForceField
from denskit.models.equiformer import EquiformerConfig
from denskit.models.scaling import Scaling
from denskit.simulation.potential import Potential
from denskit.simulation.structures import batch_of

from tolerances import EXACT64
from trained import trained

torch_sim = pytest.importorskip("torch_sim", reason="TorchSim is not installed (extra torchsim)")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> ForceField:
    config = EquiformerConfig(
        cutoff=4.0, num_layers=1, channels=(4, 2), feature_channels=(4, 2), head_channels=(2, 2), num_heads=1,
        ffn_channels=(4, 2), num_basis=4, radial_hidden=(4,), envelope=True, stress="strain",
    )  # fmt: skip
    torch.manual_seed(0)
    return build_force_field(config, heads={}, scaling=Scaling(elements=[1, 6, 8, 14, 26])).double().eval()


def state_of(structures: list[ase.Atoms]) -> object:
    return torch_sim.io.atoms_to_state(structures, CPU, torch.float64)


def test_torchsims_own_validator_accepts_it(model: ForceField) -> None:
    from torch_sim.models.interface import validate_model_outputs

    from denskit.simulation.torchsim import DenskitModel

    validate_model_outputs(DenskitModel(model, compute_stress=True), CPU, torch.float64)


def test_numbers_are_those_of_predict(model: ForceField) -> None:
    from denskit.simulation.torchsim import DenskitModel

    cells = [bulk("Si", cubic=True), bulk("Fe").repeat(2)]
    for atoms in cells:
        atoms.rattle(0.05, seed=1)
        atoms.set_cell(atoms.cell.array @ np.array([[1, 0.1, 0], [0, 1, 0], [0.05, 0, 1]]))  # no symmetric cell
    found = DenskitModel(model, compute_stress=True)(state_of(cells))
    wanted = model.predict(build_neighbors(batch_of(cells), model.cutoff))
    for name in ("energy", "forces", "stress"):
        assert torch.allclose(found[name], wanted[name], rtol=EXACT64, atol=EXACT64), name


def test_molecules_and_dicts_without_stress(model: ForceField) -> None:
    from denskit.simulation.torchsim import DenskitModel

    molecules = [molecule("CH3CH2OH"), molecule("H2O")]
    state = state_of(molecules)
    adapter = DenskitModel(model)
    found = adapter(state)
    wanted = Potential(model)(batch_of(molecules))
    assert set(found) == {"energy", "forces"}
    assert torch.allclose(found["forces"], wanted.forces, rtol=EXACT64, atol=EXACT64)
    names = ("positions", "cell", "pbc", "atomic_numbers", "system_idx")
    again = adapter({name: getattr(state, name) for name in names})
    assert torch.equal(again["energy"], found["energy"])


def test_torchsim_moves_atoms_with_it() -> None:
    from torch_sim.integrators import nve

    from denskit.simulation.torchsim import DenskitModel

    init, step = nve(DenskitModel(trained()), dt=torch.tensor(0.0005), kT=torch.tensor(0.0259))
    state = init(state_of([molecule("H2O")] * 2), seed=0)
    start = state.energy + torch_sim.calc_kinetic_energy(
        momenta=state.momenta, masses=state.masses, system_idx=state.system_idx
    )
    for _ in range(20):
        state = step(state)
    end = state.energy + torch_sim.calc_kinetic_energy(
        momenta=state.momenta, masses=state.masses, system_idx=state.system_idx
    )
    assert (end - start).abs().max() < 1e-4  # eV
    assert not torch.equal(state.positions[:3], state.positions[3:])
