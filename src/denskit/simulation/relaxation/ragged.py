"""Numbers of many systems of different sizes, side by side in a few tensors: what a batched relaxation works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """Tensors of B systems, [B, ...] in ``systems``, and of their R rows, [R, ...] in ``rows``, system after system.

    A row is an atom, or one of three rows of a cell's deformation.  Systems leave by :meth:`select` and enter by
    :meth:`join`; nothing is ever changed in place.
    """

    counts: Tensor  # [B] int64, rows of each system
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    systems: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def num_systems(self) -> int:
        """B."""
        return len(self.counts)

    @cached_property
    def system(self) -> Tensor:
        """The system of each row, [R] int64."""
        return torch.arange(self.num_systems, device=self.counts.device).repeat_interleave(self.counts)

    def having(
        self, *, rows: Mapping[str, Tensor] | None = None, systems: Mapping[str, Tensor] | None = None
    ) -> Ragged:
        """The same with some tensors replaced or added."""
        return replace(self, rows={**self.rows, **(rows or {})}, systems={**self.systems, **(systems or {})})

    def select(self, keep: Tensor) -> Ragged:
        """Only the systems where ``keep`` [B] is True."""
        kept_rows = keep[self.system]
        return Ragged(
            self.counts[keep],
            {name: value[kept_rows] for name, value in self.rows.items()},
            {name: value[keep] for name, value in self.systems.items()},
        )

    @staticmethod
    def join(parts: Sequence[Ragged]) -> Ragged:
        """All systems of the parts, in order.  The parts hold tensors of the same names."""
        first = parts[0]
        return Ragged(
            torch.cat([part.counts for part in parts]),
            {name: torch.cat([part.rows[name] for part in parts]) for name in first.rows},
            {name: torch.cat([part.systems[name] for part in parts]) for name in first.systems},
        )

    def to(self, device: torch.device | str) -> Ragged:
        """Copy on a device."""
        return Ragged(
            self.counts.to(device),
            {name: value.to(device) for name, value in self.rows.items()},
            {name: value.to(device) for name, value in self.systems.items()},
        )

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Inner product of two vectors [R, 3] of each system: [B].  What other systems there are does not matter."""
        return a.new_zeros(self.num_systems).index_add(0, self.system, torch.linalg.vecdot(a, b))

    def longest(self, vectors: Tensor) -> Tensor:
        """The largest norm of a row of each system, of vectors [R, 3]: [B]; NaN where a row is NaN."""
        norms = torch.linalg.vector_norm(vectors, dim=-1)
        return norms.new_zeros(self.num_systems).scatter_reduce(0, self.system, norms, "amax", include_self=True)

    def spread(self, values: Tensor) -> Tensor:
        """Values [B] of systems at their rows: [R, 1]."""
        return values.index_select(0, self.system)[:, None]
