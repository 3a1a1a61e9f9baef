"""Padding of batches to few shapes."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from denskit.batch import Batch, Prepared, System
from denskit.data.base import collate
from denskit.geometry.neighbors import build_neighbors
from denskit.geometry.padding import LEAST, padded_shape, rounded_up, smallest_holding, with_ghosts
from denskit.random import keys_for
from denskit.tasks import CellDeNS, CellDeNSConfig


@pytest.fixture
def part(systems: dict[str, System]) -> Prepared:
    """A batch with every tensor that there is."""
    batch, targets = collate([systems["copper"], systems["triclinic"]], torch.float64)
    task = CellDeNS(CellDeNSConfig(probability=1.0, stress_weight=1.0))
    prepared = task.prepare(batch, targets, keys_for(0, 0, torch.arange(2)), 0.0)
    relaxation = torch.zeros_like(batch.positions)
    return replace(
        prepared,
        batch=build_neighbors(prepared.batch, 4.0),
        targets=replace(targets, relaxation=relaxation, relaxation_mask=batch.fixed),
        noise_penalty=relaxation[:, 0],
    )


def test_sizes_are_few_and_waste_at_most_an_eighth() -> None:
    sizes = {rounded_up(count) for count in range(1, 4097)}
    assert len(sizes) == 8 + 8 * 4  # 32, 64, ..., 256; then eight an octave
    for count in range(1, 4097):
        assert count <= rounded_up(count) < max(count + LEAST, count * 1.125 + 1)
        assert rounded_up(count) % 2 == 0


def test_every_tensor_grows_with_the_atoms_or_the_systems(part: Prepared) -> None:
    """A field that is new in a container must be named in padding.py."""
    larger, (atoms, systems) = (
        with_ghosts(part, padded_shape(part.batch)),
        (part.batch.num_atoms, part.batch.num_systems),
    )
    assert larger.batch.num_systems == systems + 1 and larger.batch.num_atoms == rounded_up(atoms + 1)
    for before, after in ((part, larger), (part.targets, larger.targets), (part.batch, larger.batch)):
        for field in fields(before):
            value, padded = getattr(before, field.name), getattr(after, field.name)
            if field.name in ("batch", "targets", "edges"):
                continue
            assert isinstance(value, Tensor), f"{field.name}: give it to the batch of this test"
            wanted = {atoms: larger.batch.num_atoms, systems: systems + 1}[len(value)]
            assert len(padded) == wanted, field.name
            assert torch.equal(padded[: len(value)], value), field.name
    assert not larger.targets.energy_mask[-1] and not larger.targets.forces_mask[atoms:].any()
    assert not larger.noise_mask[atoms:].any()


def test_edges_are_those_of_the_batch_then_masked_ones(part: Prepared) -> None:
    larger, count = with_ghosts(part, padded_shape(part.batch)).batch, part.batch.num_edges
    edges = larger.built_edges
    assert larger.num_edges == rounded_up(count)
    assert edges.mask is not None and edges.mask[:count].all() and not edges.mask[count:].any()
    assert torch.equal(edges.index[:, :count], part.batch.built_edges.index)
    assert (edges.index[:, count:] == larger.num_atoms - 1).all()


def test_the_smallest_shape_that_holds_another() -> None:
    shapes = [(3, 64, 512), (3, 32, 640), (3, 96, 512), (5, 64, 512), (3, 64, 2048)]
    assert smallest_holding((3, 64, 480), shapes, 2.0) == (3, 64, 512)
    assert smallest_holding((3, 96, 480), shapes, 2.0) == (3, 96, 512)
    assert smallest_holding((3, 32, 608), shapes, 2.0) == (3, 32, 640)
    for none in ((3, 64, 1000), (3, 128, 512), (4, 64, 512)):  # too wasteful, too few atoms, other systems
        assert smallest_holding(none, shapes, 2.0) is None


def test_tensors_come_back_in_their_order(part: Prepared) -> None:
    doubled = part.with_tensors([2 * tensor if tensor.is_floating_point() else tensor for tensor in part.tensors()])
    assert torch.equal(doubled.noise, 2 * part.noise)
    assert torch.equal(doubled.targets.forces, 2 * part.targets.forces)
    assert isinstance(doubled.batch, Batch)
    assert torch.equal(doubled.batch.built_edges.index, part.batch.built_edges.index)
