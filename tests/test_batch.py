"""Numbers of atoms in a batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from denskit.batch import Batch, System
from denskit.data.base import collate


def padded(batch: Batch, count: int) -> Batch:
    """With ``count`` padding atoms, which belong to the last system."""
    longer = {name: getattr(batch, name) for name in ("positions", "atomic_numbers", "fixed", "tags", "atom_mask")}
    longer = {name: torch.cat([own, own.new_zeros(count, *own.shape[1:])]) for name, own in longer.items()}
    last = batch.system_index.new_full((count,), batch.num_systems - 1)
    return replace(batch, system_index=torch.cat([batch.system_index, last]), **longer)


@pytest.mark.parametrize("padding", [0, 4])
def test_atoms_are_numbered_within_their_systems(systems: dict[str, System], padding: int) -> None:
    """Random numbers are keyed by these: another numbering would change every noise and every simulation."""
    chosen = [systems["water"], systems["ethanol"], systems["water"]]
    batch = padded(collate(chosen)[0], padding)
    assert batch.first_atoms.tolist() == [0, 3, 12]
    assert batch.number_in_system.tolist() == [*range(3), *range(9), *range(3 + padding)]
    assert batch.number_in_system.dtype == torch.int64
    first = torch.searchsorted(batch.system_index, batch.system_index)
    assert torch.equal(batch.number_in_system, torch.arange(batch.num_atoms) - first)
