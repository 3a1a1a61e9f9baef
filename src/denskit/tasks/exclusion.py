"""Which structures DeNS may corrupt: a list of small questions, each with one answer per structure.

A policy gets the batch, its targets (eV, Å) and the atoms [N] that were drawn for corruption, and says [B] which
structures it allows.  A structure that any policy refuses is trained as an ordinary one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from denskit.batch import Batch, Targets
from denskit.tasks.selection import count_atoms, free_atoms

Policy = Callable[[Batch, Targets, Tensor], Tensor]


def has_consent(batch: Batch, targets: Targets, drawn: Tensor) -> Tensor:
    """Refuse what its source marked as not to be denoised (the MD part of OC20)."""
    return batch.denoise


def has_all_forces(batch: Batch, targets: Targets, drawn: Tensor) -> Tensor:
    """Refuse a structure where a free atom has no force label: its force could not be encoded."""
    return count_atoms(free_atoms(batch) & ~targets.forces_mask, batch) == 0


def at_least_atoms(minimum: int) -> Policy:
    """Refuse structures with fewer than ``minimum`` atoms."""
    return lambda batch, targets, drawn: batch.n_atoms >= minimum


def forces_up_to(maximum: float) -> Policy:
    """Refuse structures where the force on some free atom is larger than ``maximum`` (norm, eV/Å)."""

    def allow(batch: Batch, targets: Targets, drawn: Tensor) -> Tensor:
        too_large = torch.linalg.vector_norm(targets.forces, dim=-1) > maximum
        return count_atoms(too_large & free_atoms(batch) & targets.forces_mask, batch) == 0

    return allow


def drawn_share_up_to(maximum: float) -> Policy:
    """Refuse structures with a larger share of the free atoms drawn than this (EquiformerV3's ``strict_max_ratio``)."""

    def allow(batch: Batch, targets: Targets, drawn: Tensor) -> Tensor:
        return count_atoms(drawn, batch) <= maximum * count_atoms(free_atoms(batch), batch).double()

    return allow
