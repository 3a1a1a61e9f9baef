"""Padding: batches with the same few shapes, for code that is recorded or compiled for a shape."""

from __future__ import annotations

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


def with_ghosts(part: Prepared) -> Prepared:
    """One more system, of atoms without neighbours and labels, and padding edges: few shapes for all batches.

    The atoms, at least one, have the first atom's element.  No loss and no metric counts them.
    """
    batch = part.batch
    ghosts = rounded_up(batch.num_atoms + 1) - batch.num_atoms
    larger = replace(
        _longer(batch, ghosts),
        atomic_numbers=torch.cat((batch.atomic_numbers, batch.atomic_numbers[:1].expand(ghosts))),
        system_index=torch.cat((batch.system_index, batch.system_index.new_full((ghosts,), batch.num_systems))),
        n_atoms=torch.cat((batch.n_atoms, batch.n_atoms.new_full((1,), ghosts))),
    )
    return replace(
        _longer(part, ghosts),
        batch=with_edges(larger, rounded_up(batch.num_edges)),
        targets=_longer(part.targets, ghosts),
    )


def _longer(container: Container, ghosts: int) -> Container:
    """The container with zeros for the atoms and the system that were added."""
    changed: dict[str, Tensor] = {}
    for field in fields(container):
        value = getattr(container, field.name)
        if isinstance(value, Tensor) and field.name in _OF_ATOMS + _OF_SYSTEMS:
            more = ghosts if field.name in _OF_ATOMS else 1
            changed[field.name] = torch.cat((value, value.new_zeros(more, *value.shape[1:])))
    return replace(container, **changed)  # type: ignore[arg-type]
