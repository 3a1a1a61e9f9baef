"""Containers of the pipeline: one structure, a batch of structures, their labels, a prepared training batch.

Units are eV, Å and eV/Å (see :mod:`denskit.units`).  N atoms, B systems, E edges.  All containers are frozen; changes
return a new container (``dataclasses.replace``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

MAX_ATOMIC_NUMBER = 118
ISOLATED = 6.0  # Å between periodic images of one atom from which it counts as isolated


@dataclass(frozen=True, kw_only=True)
class System:
    """One structure with the labels of its source (numpy, float64).

    Missing labels are ``None``; others are finite (the sources check this).
    """

    positions: np.ndarray  # [n, 3] Å
    atomic_numbers: np.ndarray  # [n] int64
    cell: np.ndarray  # [3, 3] Å, rows are lattice vectors (ASE); zeros are allowed along directions without periodicity
    pbc: np.ndarray  # [3] bool
    fixed: np.ndarray  # [n] bool, atoms held in a relaxation
    tags: np.ndarray  # [n] int64, 0 subsurface, 1 surface, 2 adsorbate (OC20); 0 where the source has no tags
    energy: float | None = None  # eV, total
    forces: np.ndarray | None = None  # [n, 3] eV/Å, without constraints applied
    stress: np.ndarray | None = None  # [3, 3] eV/Å^3, ASE sign
    denoise: bool = True  # False: DeNS never corrupts this structure (OC20's MD split)
    index: int = 0  # position in its source, used in messages
    group: str = ""  # of splits by group (system, material), or empty
    sid: str = ""  # the source's name of the system (OC20, OC22), or empty
    fid: int | None = None  # frame number in the relaxation or trajectory of that system
    electrons: tuple[tuple[str, float], ...] = ()  # fields such as total charge and spin, which no model sees
    unconverged: bool = False  # the labels are of electrons that did not converge, as the program's output tells
    of_model: bool = False  # the labels are a model's own predictions, as fields beside them in the file tell
    relaxed_energy: float | None = None  # eV, at the end of the relaxation from this structure (IS2RE)
    relaxed_positions: np.ndarray | None = None  # [n, 3] Å, likewise (IS2RS)

    def __post_init__(self) -> None:
        n = len(self.positions)
        assert self.positions.shape == (n, 3), self.positions.shape
        assert self.atomic_numbers.shape == (n,), self.atomic_numbers.shape
        assert self.cell.shape == (3, 3) and self.pbc.shape == (3,), (self.cell.shape, self.pbc.shape)
        assert self.fixed.shape == (n,) and self.tags.shape == (n,), (self.fixed.shape, self.tags.shape)
        assert self.forces is None or self.forces.shape == (n, 3), self.forces
        assert self.stress is None or self.stress.shape == (3, 3), self.stress
        assert self.relaxed_positions is None or self.relaxed_positions.shape == (n, 3), self.relaxed_positions

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def is_isolated(self) -> bool:
        """Whether it is a single atom without a periodic image nearby."""
        lengths = np.linalg.norm(self.cell[self.pbc], axis=1)
        return len(self) == 1 and bool((lengths >= ISOLATED).all())


class _Tensors:
    """Device and dtype conversion of the containers of tensors."""

    def _changed(self, change: Callable[[str, Tensor], Tensor]) -> Self:
        """A copy with ``change(name, tensor)`` of every tensor, those of contained containers at their place."""
        changed: dict[str, object] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, _Tensors):
                changed[field.name] = value._changed(change)
            elif isinstance(value, Tensor):
                changed[field.name] = change(field.name, value)
        return replace(self, **changed)  # type: ignore[type-var]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Copy with every tensor on ``device``; floating-point tensors other than target energies cast to ``dtype``."""

        def moved(name: str, value: Tensor) -> Tensor:
            keep = dtype is None or not value.is_floating_point() or name == "energy"
            return value.to(device=device, dtype=value.dtype if keep else dtype, non_blocking=True)

        return self._changed(moved)

    def tensors(self) -> list[Tensor]:
        """All tensors, those of contained containers at their place."""
        found: list[Tensor] = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            found += value.tensors() if isinstance(value, _Tensors) else [value] if isinstance(value, Tensor) else []
        return found

    def with_tensors(self, tensors: Iterable[Tensor]) -> Self:
        """A copy with other tensors, in the order of :meth:`tensors`."""
        coming = iter(tensors)
        return self._changed(lambda _, value: next(coming))


@dataclass(frozen=True, kw_only=True)
class Edges(_Tensors):
    """The neighbour list of a batch.  Padding edges have ``mask`` False and join an atom to itself with zero shift."""

    index: Tensor  # [2, E] int64, row 0 source j (neighbour), row 1 target i (centre)
    shift: Tensor  # [E, 3] int64, cell shifts of the source
    mask: Tensor | None = None  # [E] bool, True for real edges; None: all are
    pairs: Tensor | None = None  # [E/2, 2] int64, rows of each edge and its reverse; None: models search for them


@dataclass(frozen=True, kw_only=True)
class Batch(_Tensors):
    """Structures as one graph, without labels: a model never sees them."""

    positions: Tensor  # [N, 3] Å; in float32 usually relative to the first atom of the structure (collate)
    atomic_numbers: Tensor  # [N] int64
    cell: Tensor  # [B, 3, 3] Å, rows are lattice vectors
    pbc: Tensor  # [B, 3] bool
    system_index: Tensor  # [N] int64, ascending
    n_atoms: Tensor  # [B] int64
    fixed: Tensor  # [N] bool
    tags: Tensor  # [N] int64
    denoise: Tensor  # [B] bool, False: never corrupted by DeNS
    edges: Edges | None = None  # None: neighbours were not built yet

    @property
    def num_systems(self) -> int:
        """B."""
        return len(self.n_atoms)

    @property
    def num_atoms(self) -> int:
        """N."""
        return self.positions.shape[0]

    @property
    def num_edges(self) -> int:
        """E, padding included; 0 before neighbours are built."""
        return 0 if self.edges is None else self.edges.index.shape[1]

    @property
    def built_edges(self) -> Edges:
        """The edges; ValueError before neighbours are built."""
        if self.edges is None:
            raise ValueError(
                "the batch has no edges; build its neighbours first, with model.config.with_neighbors(batch) or "
                "denskit.geometry.neighbors.build_neighbors(batch, cutoff)"
            )
        return self.edges

    @property
    def first_atoms(self) -> Tensor:
        """Number [B] int64, in the batch, of the first atom of each system."""
        return self.n_atoms.cumsum(0) - self.n_atoms

    @property
    def number_in_system(self) -> Tensor:
        """Number [N] int64 of each atom within its own system, from 0; random numbers of atoms are keyed by it."""
        return torch.arange(self.num_atoms, device=self.n_atoms.device) - self.first_atoms[self.system_index]

    def sum_over_atoms(self, values: Tensor) -> Tensor:
        """Sums [B, ...] of values [N, ...] over the atoms of each system."""
        return values.new_zeros(self.num_systems, *values.shape[1:]).index_add(0, self.system_index, values)

    @property
    def free_atoms(self) -> Tensor:
        """Atoms [N] bool that are not fixed: tasks corrupt them, and losses and metrics count their forces."""
        return ~self.fixed

    def count_atoms(self, mask: Tensor) -> Tensor:
        """Number [B] int64 of each system's atoms in a mask [N] bool."""
        return self.sum_over_atoms(mask.to(self.n_atoms.dtype))

    def count_elements(self) -> Tensor:
        """Atoms [B, 119] int64 of each atomic number in each system."""
        counts = self.n_atoms.new_zeros(self.num_systems, MAX_ATOMIC_NUMBER + 1)
        where = (self.system_index, self.atomic_numbers)
        return counts.index_put_(where, counts.new_ones(()), accumulate=True)

    def edge_vectors(self) -> Tensor:
        """Vectors [E, 3] (Å) from target to source, r_j + shift @ cell - r_i, differentiable in positions and cell."""
        edges = self.built_edges
        source, target = edges.index
        vectors = self.positions[source] - self.positions[target]
        shift = edges.shift.to(vectors.dtype)
        return vectors + torch.einsum("ei,eij->ej", shift, self.cell[self.system_index[target]])


def strained(batch: Batch, strain: Tensor) -> Batch:
    """The batch with positions and cells under the symmetric part of strains [B, 3, 3]."""
    symmetric = (strain + strain.mT) / 2
    positions = batch.positions + torch.einsum("ni,nij->nj", batch.positions, symmetric[batch.system_index])
    return replace(batch, positions=positions, cell=batch.cell + batch.cell @ symmetric)


def select(batch: Batch, keep: Tensor) -> Batch:
    """The systems of a batch where ``keep`` [B] bool is True, in order, without edges."""
    atoms = keep[batch.system_index]
    new_index = keep.long().cumsum(0) - 1
    return Batch(
        positions=batch.positions[atoms],
        atomic_numbers=batch.atomic_numbers[atoms],
        cell=batch.cell[keep],
        pbc=batch.pbc[keep],
        system_index=new_index[batch.system_index[atoms]],
        n_atoms=batch.n_atoms[keep],
        fixed=batch.fixed[atoms],
        tags=batch.tags[atoms],
        denoise=batch.denoise[keep],
    )


@dataclass(frozen=True, kw_only=True)
class Targets(_Tensors):
    """Labels of a batch.  A missing label is 0 with mask False and counts in no loss and no metric."""

    energy: Tensor  # [B] eV, float64 until scaled (total energies lose meV in float32)
    forces: Tensor  # [N, 3] eV/Å
    stress: Tensor  # [B, 3, 3] eV/Å^3
    energy_mask: Tensor  # [B] bool
    forces_mask: Tensor  # [N] bool
    stress_mask: Tensor  # [B] bool
    relaxation: Tensor | None = None  # [N, 3] Å, from each position to the relaxed one; None: no structure has it
    relaxation_mask: Tensor | None = None  # [N] bool


@dataclass(frozen=True, kw_only=True)
class Prepared(_Tensors):
    """A batch prepared by a task: the possibly corrupted batch, its targets and the model's force input."""

    batch: Batch
    targets: Targets
    force_input: Tensor  # [N, 3] eV/Å, zero on atoms that were not corrupted; [N, 9]: then a virial, see ForceEncoding
    noise: Tensor  # [N, 3] to predict, in units of sigma; zero where noise_mask is False
    noise_mask: Tensor  # [N] bool, corrupted atoms
    strain: Tensor | None = None  # [B, 3, 3] to predict, in units of its sigma; None: the task strains no cells
    strain_mask: Tensor | None = None  # [B] bool, strained structures
    noise_penalty: Tensor | None = None  # [N], of noise that a task learns; None: it learns none
