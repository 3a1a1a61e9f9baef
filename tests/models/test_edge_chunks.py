"""Edges in groups: the same numbers as all at once, in a fraction of the memory; what is computed again is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ase.build import molecule
from torch import Tensor

from contract.variants import VARIANTS, build
from denskit.batch import Batch, Edges, System
from denskit.data.base import collate
from denskit.geometry.neighbors import build_neighbors
from denskit.models import ForceField
from denskit.models.execution import Execution
from denskit.models.recompute import edge_groups
from denskit.simulation.potential import Potential
from denskit.simulation.structures import batch_of

from tolerances import EQUIVARIANCE64, EXACT64, FINITE_DIFFERENCE64

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def batch(systems: dict[str, System]) -> Batch:
    """Molecules and a crystal, an atom without neighbours, padding edges at the last atom and among the others."""
    far = np.array([[0.0, 0.0, 90.0]])
    ethanol = systems["ethanol"]
    lonely = replace(
        ethanol,
        positions=np.concatenate([ethanol.positions, far]),
        atomic_numbers=np.append(ethanol.atomic_numbers, 1),
        fixed=np.append(ethanol.fixed, False),
        tags=np.append(ethanol.tags, 0),
        forces=None,
    )
    found = build_neighbors(collate([lonely, systems["slab"], systems["water"]], torch.float64)[0], 3.0)
    edges = found.built_edges
    last = torch.full((2, 5), found.num_atoms - 1)
    mask = torch.ones(found.num_edges + 5, dtype=torch.bool)
    mask[-5:] = False
    mask[3] = False
    index, shift = torch.cat((edges.index, last), 1), torch.cat((edges.shift, edges.shift.new_zeros(5, 3)))
    return replace(found, edges=Edges(index=index, shift=shift, mask=mask))


def force_input_for(force_field: ForceField, batch: Batch) -> Tensor | None:
    return torch.sin(3 * batch.positions) if "noise" in force_field.heads else None


def learned(force_field: ForceField, batch: Batch) -> dict[str, Tensor]:
    """Predictions in training, and the gradient of a loss of all of them in all parameters."""
    force_field.train().zero_grad()
    torch.manual_seed(0)
    out = force_field(batch, force_input_for(force_field, batch))
    torch.stack([value.square().sum() for value in out.values()]).sum().backward()
    zeros = ((p, torch.zeros_like(p) if p.grad is None else p.grad) for p in force_field.parameters())
    return {**out, "gradient": torch.cat([grad.flatten() for _, grad in zeros])}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 10 * EXACT64) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = float(value.detach().square().mean().sqrt())
        assert scale > 0
        assert float((found[name] - value).detach().abs().max()) <= tolerance * scale, name


@pytest.mark.parametrize("name", VARIANTS)
def test_groups_change_nothing(name: str, batch: Batch) -> None:
    """Predictions and, in training, derivatives of them and of forces that are derivatives themselves."""
    force_field = build(name, torch.float64)
    predicted, taught = force_field.predict(batch), learned(force_field, batch)
    force_field.execution = Execution(edge_chunk=60)
    assert_same(force_field.predict(batch), predicted)
    assert_same(learned(force_field, batch), taught)


def test_groups_of_single_atoms(batch: Batch) -> None:
    force_field = build("envelope", torch.float64)
    expected = force_field.predict(batch)
    force_field.execution = Execution(edge_chunk=1)
    assert_same(force_field.predict(batch), expected)


def test_groups_without_edges(systems: dict[str, System]) -> None:
    """A setting that is larger than the system, and one for a system without an edge, change nothing."""
    force_field = build("envelope", torch.float64)
    positions = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 50.0], [0.0, 50.0, 0.0]])
    far = replace(systems["water"], positions=positions)
    empty = build_neighbors(collate([far], torch.float64)[0], 4.0)
    expected = force_field.predict(empty, ("energy",))
    for size in (1, 1000):
        force_field.execution = Execution(edge_chunk=size)
        assert torch.equal(force_field.predict(empty, ("energy",))["energy"], expected["energy"])


@pytest.mark.parametrize("execution", [Execution(edge_chunk=60), Execution(recompute=True)])
def test_what_is_computed_again_draws_the_same(execution: Execution, batch: Batch) -> None:
    """With dropout, the gradient of the loss is its slope only if every derivative sees the same random numbers."""
    force_field = build("envelope", torch.float64, attention_dropout=0.3, projection_dropout=0.2, stochastic_depth=0.2)
    force_field.execution = execution
    gradient = learned(force_field, batch)["gradient"]
    direction = gradient / torch.linalg.vector_norm(gradient)
    losses = []
    for step in (1e-5, -1e-5):
        moved = build("envelope", torch.float64, attention_dropout=0.3, projection_dropout=0.2, stochastic_depth=0.2)
        moved.execution = execution
        with torch.no_grad():
            at = 0
            for parameter in moved.parameters():
                parameter += step * direction[at : at + parameter.numel()].view_as(parameter)
                at += parameter.numel()
        out = {name: value for name, value in learned(moved, batch).items() if name != "gradient"}
        losses.append(torch.stack([value.detach().square().sum() for value in out.values()]).sum())
    slope = (losses[0] - losses[1]) / 2e-5
    torch.testing.assert_close(slope, gradient @ direction, rtol=FINITE_DIFFERENCE64, atol=0)


@pytest.mark.parametrize("name", ["envelope", "v2_envelope", "escn_gradient"])
def test_blocks_computed_again_change_nothing(name: str, batch: Batch) -> None:
    """Also where forces are derivatives that training differentiates, and in groups."""
    force_field = build(name, torch.float64)
    expected = learned(force_field, batch)
    force_field.execution = Execution(recompute=True)
    assert_same(learned(force_field, batch), expected)
    force_field.execution = Execution(recompute=True, edge_chunk=60)
    assert_same(learned(force_field, batch), expected)


def test_groups_partition_edges_and_atoms(batch: Batch) -> None:
    index = batch.built_edges.index
    source, target = index
    groups = edge_groups(index, batch.num_atoms, 50)
    degree = int(torch.bincount(target).max())
    assert len(groups) == 3
    for group in groups:
        assert torch.equal(group.rows[group.source], source[group.edges])
        assert torch.equal(group.rows[group.target], target[group.edges])
        assert group.rows.unique().numel() == len(group.rows)
        assert len(group.source) <= 50 + degree
    edges = [group.edges for group in groups]
    assert edges[0].start == 0 and edges[-1].stop == len(source)
    assert [part.start for part in edges[1:]] == [part.stop for part in edges[:-1]]
    atoms = [group.targets for group in groups]
    assert atoms[0].start == 0 and atoms[-1].stop == batch.num_atoms
    assert [part.start for part in atoms[1:]] == [part.stop for part in atoms[:-1]]


def test_edges_in_any_order_are_refused(batch: Batch) -> None:
    force_field = build("envelope", torch.float64)
    force_field.execution = Execution(edge_chunk=10)
    edges = batch.built_edges
    assert edges.mask is not None
    turned = Edges(index=edges.index.flip(1), shift=edges.shift.flip(0), mask=edges.mask.flip(0))
    with pytest.raises(ValueError, match=r"not sorted by target.*sort index"):
        force_field.predict(replace(batch, edges=turned))


PEAK = """
import json, sys
from pathlib import Path
import torch
from contract.variants import VARIANTS, build
from denskit.models.execution import Execution
from denskit.simulation.structures import batch_of
from ase.build import molecule
torch.set_num_threads(1)
chunk, again = json.loads(sys.argv[1])
model = build("envelope", torch.float32)
def evaluate(repeats):
    atoms = molecule("CH3CH2OH", cell=[4.6] * 3, pbc=True).repeat(repeats)
    batch = model.config.with_neighbors(batch_of([atoms]).to(dtype=torch.float32))
    out = model(batch)
    out["forces"].square().sum().backward()
    return batch.num_edges
def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
model.train()
model.execution = Execution(edge_chunk=chunk, recompute=again)
evaluate((2, 2, 2))  # in groups, too, so that what is loaded for them does not count
before = peak()
edges = evaluate((3, 3, 3))
print(json.dumps([edges, peak() - before]))
"""


def peak_growth(chunk: int | None, *, again: bool = False) -> float:
    """MiB that a fresh process grows by in a training step on a liquid of 243 atoms."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PEAK, json.dumps([chunk, again])]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    edges, growth = json.loads(said)
    assert edges > 4_000
    return float(growth)


@pytest.mark.one_thread
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_training_by_forces_needs_a_fraction_of_the_memory() -> None:
    """Blocks computed again save some; groups of edges almost all, for only one is held at a time."""
    plain, again, divided = peak_growth(None), peak_growth(None, again=True), peak_growth(500)
    assert again < 0.8 * plain
    assert divided < 0.5 * plain


def test_five_thousand_atoms() -> None:
    """One periodic cell, in groups; a copy of a cell has its energy and its forces."""
    model = build("envelope", torch.float64)
    cell = molecule("CH3CH2OH", cell=[4.6] * 3, pbc=True).repeat(2)
    cell.rattle(0.05, seed=1)
    small, large = (
        Potential(model, edge_chunk=chunk)(batch_of([atoms]))
        for chunk, atoms in ((None, cell), (8192, cell.repeat((4, 4, 4))))
    )
    atoms = len(cell)
    assert len(large.energies) == 64 * atoms > 4500
    shift = model.scaling.energy_shift  # of a structure, whatever its size
    torch.testing.assert_close(large.energy - shift, 64 * (small.energy - shift), rtol=EXACT64, atol=0)
    scale = float(small.forces.abs().max())
    torch.testing.assert_close(large.forces, small.forces.repeat(64, 1), rtol=0, atol=EQUIVARIANCE64 * scale)


def test_groups_in_a_compiled_potential_are_refused() -> None:
    model = build("envelope", torch.float32)
    with pytest.raises(ValueError, match="edge_chunk is 0; give at least 1"):
        Potential(model, edge_chunk=0)
    with pytest.raises(ValueError, match="edge_chunk is 100 with compile"):
        Potential(model, edge_chunk=100, compile=True)
