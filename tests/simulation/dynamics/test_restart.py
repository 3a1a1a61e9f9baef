"""Files from which simulations go on."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import ase
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from denskit.simulation.dynamics import Dynamics, DynamicsSettings, State
from denskit.simulation.dynamics.restart import Restart
from denskit.simulation.structures import batch_of
from simulation.springs import Springs


def saved(path: Path) -> State:
    dynamics = Dynamics(Springs(atoms=2), DynamicsSettings(seed=3))
    state = dynamics.step(dynamics.start(batch_of([ase.Atoms("CO", [[0, 0, 0], [0, 0, 1.5]])] * 2)))
    Restart(state=state, settings=dynamics.settings, origin={"positions": "abc"}).save(path)
    return state


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    state = saved(tmp_path / "restart.safetensors")
    restart = Restart.load(tmp_path / "restart.safetensors")
    assert restart.settings == DynamicsSettings(seed=3)
    assert restart.origin == {"positions": "abc"}
    assert restart.state.step == 1
    for found, wanted in ((restart.state, state), (restart.state.batch, state.batch)):
        for item in fields(wanted):
            value = getattr(wanted, item.name)
            if isinstance(value, Tensor):
                assert torch.equal(getattr(found, item.name), value), item.name


@pytest.mark.parametrize("damage", ["no tensor", "no settings", "no safetensors"])
def test_what_is_no_restart_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "restart.safetensors"
    saved(path)
    with safe_open(path, framework="pt") as file:
        tensors, notes = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    if damage == "no tensor":
        del tensors["state.momenta"]
    if damage == "no settings":
        notes = {name: text.replace('"settings"', '"others"') for name, text in notes.items()}
    save_file(tensors, path, notes)
    if damage == "no safetensors":
        path.write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"restart.safetensors is (damaged|no saved simulation|no restart file)"):
        Restart.load(path)
