"""Micro-batches of fixed shapes: padded to the bucket that their sizes fall into.

A bucket is a function of a micro-batch and of settings, never of what came before, so that a resumed run pads as one
that was never stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from denskit.batch import Batch, Prepared, Targets

DENSE = 24  # atoms of the largest molecule whose pairs are all made into edges, on the device
RUNGS = 4  # sizes of buckets between a number and its double

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Raw:
    """A batch before its corruption, which then happens inside the step."""

    batch: Batch  # without edges
    targets: Targets
    keys: Tensor  # [B] int64


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Shapes of a micro-batch."""

    systems: int
    atoms: int
    edges: int
    molecule: int | None  # of so many atoms all pairs are edges, made in the step; None: edges come with the batch

    def __str__(self) -> str:
        return f"{self.systems} structures, {self.atoms} atoms, {self.edges} edges"


@dataclass(frozen=True, kw_only=True)
class StaticPart:
    """A micro-batch in the shapes of its bucket."""

    bucket: Bucket
    content: Raw | Prepared


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Chooses buckets and fills them.

    systems: structures of an ordinary micro-batch.
    largest: atoms of the largest training structure; None: not known.
    pairs: whether all pairs within the cutoff are edges (the model has no limit on neighbours).
    """

    systems: int
    largest: int | None
    pairs: bool

    def is_dense(self, batch: Batch) -> bool:
        """Whether edges are all pairs of atoms, so that the step itself can make them: small molecules."""
        return self.pairs and self.largest is not None and self.largest <= DENSE and not bool(batch.pbc.any())

    def fit(self, content: Raw | Prepared) -> StaticPart:
        """The micro-batch, with padding."""
        batch = content.batch
        systems = max(self.systems, batch.num_systems)
        atoms = rung(batch.num_atoms + systems - batch.num_systems)
        if self.largest is not None:
            atoms = min(atoms, systems * self.largest)
        if isinstance(content, Raw):
            assert self.largest is not None, "only then is a batch dense"
            edges, molecule = systems * self.largest * (self.largest - 1), self.largest
        else:
            assert batch.edge_shift is not None, "build neighbours first"
            edges, molecule = rung(max(1, len(batch.edge_shift))), None
        bucket = Bucket(systems=systems, atoms=atoms, edges=edges, molecule=molecule)
        return StaticPart(bucket=bucket, content=_padded(content, bucket))


def rung(size: int) -> int:
    """The next of the sizes that buckets have: at most 1 / RUNGS larger."""
    step = 1 << max(0, (size - 1).bit_length() - 1 - (RUNGS.bit_length() - 1))
    return -(-size // step) * step


def tensors_of(value: object) -> list[Tensor]:
    """All tensors of a container and of the containers in it, in the order of their fields."""
    if isinstance(value, Tensor):
        return [value]
    if not is_dataclass(value):
        return []
    return [tensor for item in fields(value) for tensor in tensors_of(getattr(value, item.name))]


def with_tensors(like: T, tensors: Iterator[Tensor]) -> T:
    """A container like another one, with other tensors."""
    if isinstance(like, Tensor):
        return next(tensors)  # type: ignore[return-value]
    if not is_dataclass(like):
        return like
    changed: dict[str, Any] = {item.name: with_tensors(getattr(like, item.name), tensors) for item in fields(like)}
    return replace(like, **changed)  # type: ignore[return-value,type-var]


def pinned(part: StaticPart) -> StaticPart:
    """The part in memory that a GPU copies from while the host goes on."""
    content = with_tensors(part.content, (tensor.pin_memory() for tensor in tensors_of(part.content)))
    return replace(part, content=content)


def _padded(content: Raw | Prepared, bucket: Bucket) -> Raw | Prepared:
    batch, targets = content.batch, content.targets
    systems, atoms = bucket.systems - batch.num_systems, bucket.atoms - batch.num_atoms
    assert 0 <= systems <= atoms or systems == 0 <= atoms, (bucket, batch.num_systems, batch.num_atoms)
    batch, targets = _padded_batch(batch, systems, atoms, bucket), _padded_targets(targets, systems, atoms)
    if isinstance(content, Raw):
        return Raw(batch=batch, targets=targets, keys=_longer(content.keys, systems))
    return Prepared(
        batch=_padded_edges(batch, bucket.edges),
        targets=targets,
        force_input=_longer(content.force_input, atoms),
        noise=_longer(content.noise, atoms),
        noise_mask=_longer(content.noise_mask, atoms),
    )


def _padded_batch(batch: Batch, systems: int, atoms: int, bucket: Bucket) -> Batch:
    """Padding systems have one atom each, which does not exist, so that nothing is divided by zero atoms; what padding
    atoms are left belong to the last system."""
    index = torch.arange(batch.num_systems, batch.num_systems + atoms).clamp(max=bucket.systems - 1)
    return replace(
        batch,
        positions=_longer(batch.positions, atoms),
        atomic_numbers=torch.cat((batch.atomic_numbers, batch.atomic_numbers[-1:].expand(atoms))),
        cell=_longer(batch.cell, systems),
        pbc=_longer(batch.pbc, systems),
        system_index=torch.cat((batch.system_index, index)),
        n_atoms=_longer(batch.n_atoms, systems, 1),
        fixed=_longer(batch.fixed, atoms),
        tags=_longer(batch.tags, atoms),
        denoise=_longer(batch.denoise, systems),
        atom_mask=_longer(batch.atom_mask, atoms),
    )


def _padded_edges(batch: Batch, edges: int) -> Batch:
    assert batch.edge_index is not None and batch.edge_shift is not None
    missing = edges - len(batch.edge_shift)
    last = batch.edge_index.new_full((2, missing), batch.num_atoms - 1)  # targets stay in order
    mask = batch.atom_mask.new_ones(len(batch.edge_shift)) if batch.edge_mask is None else batch.edge_mask
    return replace(
        batch,
        edge_index=torch.cat((batch.edge_index, last), 1),
        edge_shift=_longer(batch.edge_shift, missing),
        edge_mask=_longer(mask, missing),
    )


def _padded_targets(targets: Targets, systems: int, atoms: int) -> Targets:
    return Targets(
        energy=_longer(targets.energy, systems),
        forces=_longer(targets.forces, atoms),
        stress=_longer(targets.stress, systems),
        energy_mask=_longer(targets.energy_mask, systems),
        forces_mask=_longer(targets.forces_mask, atoms),
        stress_mask=_longer(targets.stress_mask, systems),
    )


def _longer(tensor: Tensor, rows: int, value: int = 0) -> Tensor:
    return torch.cat((tensor, tensor.new_full((rows, *tensor.shape[1:]), value)))
