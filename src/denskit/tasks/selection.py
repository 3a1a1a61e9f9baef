"""Which atoms count."""

from __future__ import annotations

from torch import Tensor

from denskit.batch import Batch


def free_atoms(batch: Batch) -> Tensor:
    """Atoms [N] bool that may move: real and not fixed.  Only these are corrupted, and only their forces count."""
    return batch.atom_mask & ~batch.fixed


def count_atoms(mask: Tensor, batch: Batch) -> Tensor:
    """How many atoms of each system [B] int64 the mask [N] bool selects."""
    return batch.sum_over_atoms(mask.to(batch.n_atoms.dtype))
