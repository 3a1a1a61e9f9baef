"""Systems divided among processes: the results of one process, its errors, and an end when a process dies."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from ase.build import molecule

from contract.variants import build
from denskit.batch import Batch, System, select
from denskit.data.base import collate
from denskit.simulation.divided import DividedPotential, _Shares
from denskit.simulation.dynamics import DynamicsSettings
from denskit.simulation.dynamics.folder import DynamicsPlan, molecular_dynamics
from denskit.simulation.potential import Evaluation, Potential
from denskit.simulation.structures import batch_of

from tolerances import EXACT64

NAMES = ("ethanol", "copper", "slab", "triclinic", "ethanol")


@pytest.fixture
def batch(systems: dict[str, System]) -> Batch:
    return collate([systems[name] for name in NAMES], torch.float64)[0]


@pytest.fixture(scope="module")
def divided() -> Iterator[DividedPotential]:
    """Committee of two models in three processes."""
    models = [build("envelope", torch.float64), build("nonlinear", torch.float64)]
    potential = DividedPotential(models, processes=3, skin=0.5)
    yield potential
    potential.close()


def assert_same(found: Evaluation, wanted: Evaluation) -> None:
    for item in fields(Evaluation):
        one, other = getattr(found, item.name), getattr(wanted, item.name)
        assert (one is None) == (other is None), item.name
        if one is not None:
            torch.testing.assert_close(one, other, rtol=EXACT64, atol=1e-11, msg=item.name)


def test_results_of_one_process(divided: DividedPotential, batch: Batch) -> None:
    """While atoms and cells move, with fewer systems than processes, without a list, with one system."""
    alone = Potential(divided.models, skin=0.5)
    generator = torch.Generator().manual_seed(0)
    for step in range(3):
        moves = 0.1 * torch.randn(batch.positions.shape, generator=generator, dtype=torch.float64)
        batch = replace(batch, positions=batch.positions + moves, cell=batch.cell * 1.001)
        assert_same(divided(batch), alone(batch))
        if step == 1:
            divided.forget()
    for count in (2, 1):
        few = select(batch, torch.arange(batch.num_systems) < count)
        assert_same(divided(few), alone(few))


def test_looking_for_broken_systems_costs_no_list_of_neighbours(divided: DividedPotential, batch: Batch) -> None:
    """As relaxations do before each evaluation."""
    divided.forget()
    before = divided.rebuilds
    for _ in range(3):
        assert not bool(divided.broken(batch).any())
        divided(batch)
    assert divided.rebuilds == before + 2, "one of all systems, one of the own share"


def test_copies_evaluate_in_one_process(divided: DividedPotential, batch: Batch) -> None:
    for copied in (copy.deepcopy(divided), copy.copy(divided)):
        assert copied.processes == 1 and divided.processes > 1
        assert_same(copied(batch), divided(batch))
        copied.close()
    assert_same(divided(batch), Potential(divided.models, skin=0.5)(batch))


def test_stress(divided: DividedPotential, systems: dict[str, System]) -> None:
    crystals = collate([systems[name] for name in ("copper", "triclinic", "copper")], torch.float64)[0]
    found = divided(crystals, stress=True)
    assert found.stress is not None
    assert_same(found, Potential(divided.models)(crystals, stress=True))


@pytest.mark.parametrize("bad", [0, 4])
def test_errors_name_the_system_of_the_whole_batch(divided: DividedPotential, batch: Batch, bad: int) -> None:
    first = int(batch.n_atoms[:bad].sum())
    positions = batch.positions.clone()
    positions[first + 1] = positions[first]
    with pytest.raises(ValueError, match=f"System {bad} of the batch: .* at one place"):
        divided(replace(batch, positions=positions))
    assert torch.isfinite(divided(batch).energy).all()  # and goes on


@pytest.mark.parametrize(("sizes", "count"), [([9, 9, 9, 9], 2), ([9, 1, 1, 1], 3), ([1, 1, 9], 2), ([9, 9], 5)])
def test_shares(sizes: list[int], count: int) -> None:
    """All systems, in order, none twice, no empty share."""
    whole = batch_of([molecule("CH3CH2OH")[:size] for size in sizes])
    parts = _Shares.of(whole, count).moved(whole)
    assert 1 <= len(parts) <= min(count, len(sizes))
    assert [int(size) for part in parts for size in part.n_atoms] == sizes
    torch.testing.assert_close(torch.cat([part.positions for part in parts]), whole.positions)
    if len(set(sizes)) == 1:
        assert len(parts) == min(count, len(sizes))


def test_dynamics_are_those_of_one_process(tmp_path: Path) -> None:
    model = build("envelope", torch.float64)
    settings = DynamicsSettings.model_validate({"temperature": 300.0, "timestep": 0.25})
    ends = []
    for processes in (1, 2):
        potential = DividedPotential(model, processes=processes)
        plan = DynamicsPlan(settings=settings, steps=6, folder=tmp_path / str(processes), bonds=False, restart_every=2)
        structures = [molecule("H2O"), molecule("CH3CH2OH"), molecule("H2O")]
        ends.append(molecular_dynamics(potential, structures, plan).state.batch.positions)
        potential.close()
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-9)


def test_answers_to_an_interrupted_call_are_left_out(
    divided: DividedPotential, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    divided(batch)
    monkeypatch.setattr(Potential, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        divided(batch)
    monkeypatch.undo()
    moved = replace(batch, positions=batch.positions + 0.05 * batch.positions.sin())
    assert_same(divided(moved), Potential(divided.models)(moved))


def interrupted(*args: object, **kwargs: object) -> object:
    raise KeyboardInterrupt


def test_a_process_that_dies_is_named(batch: Batch) -> None:
    potential = DividedPotential(build("envelope", torch.float64), processes=2)
    potential(batch)
    os.kill(potential._helpers[0].process.pid or 0, signal.SIGTERM)  # of a batch system: the first process decides
    potential(batch)
    process = potential._helpers[0].process
    process.kill()
    process.join()
    with pytest.raises(ConnectionError, match=rf"process {process.pid}, .*exit code -9.*--resume"):
        potential(batch)
    potential.close()


def test_processes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="processes is 0"):
        DividedPotential(build("envelope", torch.float64), processes=0)
