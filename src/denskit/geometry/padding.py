"""Padding: batches with the same few shapes, for code that is recorded or compiled for a shape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from denskit.batch import Batch, Edges, Prepared, Targets

LEAST = 32  # step between sizes, which keeps the number of edges even
_OF_ATOMS = ("positions", "fixed", "tags", "forces", "forces_mask", "force_input", "noise", "noise_mask",
             "relaxation", "relaxation_mask", "noise_penalty")  # fmt: skip
_OF_SYSTEMS = ("cell", "pbc", "denoise", "energy", "stress", "energy_mask", "stress_mask", "strain", "strain_mask")
Container = TypeVar("Container", Batch, Targets, Prepared)
Shape = tuple[int, int, int]  # systems, atoms, edges


def rounded_up(count: int) -> int:
    """The next of a few sizes: eight from each power of two to the next, so at most an eighth is padding."""
    step = max(LEAST, 1 << max(count.bit_length() - 4, 0))
    return -(-count // step) * step


def with_edges(batch: Batch, capacity: int) -> Batch:
    """The batch with padding edges up to ``capacity``: from the last atom to itself, masked."""
    edges, count = batch.built_edges, batch.num_edges
    missing = capacity - count
    assert missing >= 0, (capacity, count)
    mask = batch.fixed.new_ones(count) if edges.mask is None else edges.mask
    last = edges.index.new_full((2, missing), batch.num_atoms - 1)
    pairs = edges.pairs
    if pairs is not None:
        assert missing % 2 == 0, "pairs of padding edges"
        pairs = torch.cat((pairs, torch.arange(count, capacity, device=pairs.device).view(-1, 2)))
    padded_edges = Edges(
        index=torch.cat((edges.index, last), 1),
        shift=torch.cat((edges.shift, edges.shift.new_zeros(missing, 3))),
        mask=torch.cat((mask, mask.new_zeros(missing))),
        pairs=pairs,
    )
    return replace(batch, edges=padded_edges)


def padded_shape(batch: Batch) -> Shape:
    """The smallest of few shapes that holds a batch, at least one more atom and one more system."""
    return batch.num_systems + 1, rounded_up(batch.num_atoms + 1), rounded_up(batch.num_edges)


def smallest_holding(shape: Shape, shapes: Iterable[Shape], waste: float) -> Shape | None:
    """The smallest of ``shapes`` for ``shape``: as many systems, no fewer atoms, up to ``waste`` times the edges."""
    systems, atoms, edges = shape
    held = [
        other for other in shapes if other[0] == systems and other[1] >= atoms and edges <= other[2] <= waste * edges
    ]
    return min(held, key=lambda other: (other[2], other[1]), default=None)


def with_ghosts(part: Prepared, shape: Shape) -> Prepared:
    """One more system, of atoms without neighbours and labels, and padding edges, up to ``shape``.

    The atoms, at least one, have the first atom's element.  No loss and no metric counts them.
    """
    batch, (systems, atoms, edges) = part.batch, shape
    ghosts = atoms - batch.num_atoms
    assert systems == batch.num_systems + 1 and ghosts > 0, (shape, batch.num_systems, batch.num_atoms)
    larger = replace(
        _longer(batch, ghosts),
        atomic_numbers=torch.cat((batch.atomic_numbers, batch.atomic_numbers[:1].expand(ghosts))),
        system_index=torch.cat((batch.system_index, batch.system_index.new_full((ghosts,), batch.num_systems))),
        n_atoms=torch.cat((batch.n_atoms, batch.n_atoms.new_full((1,), ghosts))),
    )
    return replace(_longer(part, ghosts), batch=with_edges(larger, edges), targets=_longer(part.targets, ghosts))


def _longer(container: Container, ghosts: int) -> Container:
    """The container with zeros for the atoms and the system that were added."""
    changed: dict[str, Tensor] = {}
    for field in fields(container):
        value = getattr(container, field.name)
        if isinstance(value, Tensor) and field.name in _OF_ATOMS + _OF_SYSTEMS:
            more = ghosts if field.name in _OF_ATOMS else 1
            changed[field.name] = torch.cat((value, value.new_zeros(more, *value.shape[1:])))
    return replace(container, **changed)  # type: ignore[arg-type]
