"""State of many systems of different sizes in a few tensors; the structures that systems come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from denskit.batch import System


class Structures(Protocol):
    """Structures by position: any data source, or a list."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> System: ...


@dataclass(frozen=True)
class SystemTensors:
    """Tensors of B systems, [B, ...] in ``systems``, and of their R rows, [R, ...] in ``rows``, system after system.

    A row is an atom, or one of the three rows of a cell's deformation.  Nothing is changed in place.
    """

    counts: Tensor  # [B] int64, rows of each system
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    systems: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def num_systems(self) -> int:
        """B."""
        return len(self.counts)

    @cached_property
    def system_index(self) -> Tensor:
        """The system of each row, [R] int64."""
        return torch.arange(self.num_systems, device=self.counts.device).repeat_interleave(self.counts)

    def having(
        self, *, rows: Mapping[str, Tensor] | None = None, systems: Mapping[str, Tensor] | None = None
    ) -> SystemTensors:
        """A copy with some tensors replaced or added."""
        return replace(self, rows={**self.rows, **(rows or {})}, systems={**self.systems, **(systems or {})})

    def select(self, keep: Tensor) -> SystemTensors:
        """The systems where ``keep`` [B] is True."""
        kept_rows = keep[self.system_index]
        return SystemTensors(
            self.counts[keep],
            {name: value[kept_rows] for name, value in self.rows.items()},
            {name: value[keep] for name, value in self.systems.items()},
        )

    @staticmethod
    def join(parts: Sequence[SystemTensors]) -> SystemTensors:
        """All systems of the parts, in order.  The parts hold tensors of the same names."""
        first = parts[0]
        return SystemTensors(
            torch.cat([part.counts for part in parts]),
            {name: torch.cat([part.rows[name] for part in parts]) for name in first.rows},
            {name: torch.cat([part.systems[name] for part in parts]) for name in first.systems},
        )

    def to(self, device: torch.device | str) -> SystemTensors:
        """A copy on a device."""
        return SystemTensors(
            self.counts.to(device),
            {name: value.to(device) for name, value in self.rows.items()},
            {name: value.to(device) for name, value in self.systems.items()},
        )

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Inner products [B] of vectors [R, 3] of each system; the same numbers whatever other systems are there."""
        return a.new_zeros(self.num_systems).index_add(0, self.system_index, torch.linalg.vecdot(a, b))

    def longest(self, vectors: Tensor) -> Tensor:
        """The largest norm [B] of a row of each system, of vectors [R, 3]; NaN where a row is NaN."""
        norms = torch.linalg.vector_norm(vectors, dim=-1)
        return norms.new_zeros(self.num_systems).scatter_reduce(0, self.system_index, norms, "amax", include_self=True)

    def spread(self, values: Tensor) -> Tensor:
        """Values [B] of systems at their rows: [R, 1]."""
        return values.index_select(0, self.system_index)[:, None]
