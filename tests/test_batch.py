"""Numbers of atoms in a batch."""

from __future__ import annotations

import torch

from denskit.batch import System
from denskit.data.base import collate


def test_atoms_are_numbered_within_their_systems(systems: dict[str, System]) -> None:
    """Random numbers are keyed by these: another numbering would change every noise and every simulation."""
    chosen = [systems["water"], systems["ethanol"], systems["water"]]
    batch = collate(chosen)[0]
    assert batch.first_atoms.tolist() == [0, 3, 12]
    assert batch.number_in_system.tolist() == [*range(3), *range(9), *range(3)]
    assert batch.number_in_system.dtype == torch.int64
    first = torch.searchsorted(batch.system_index, batch.system_index)
    assert torch.equal(batch.number_in_system, torch.arange(batch.num_atoms) - first)
