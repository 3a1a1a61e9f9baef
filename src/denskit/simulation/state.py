"""States of many systems of different sizes in a few tensors; the structures that systems come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from denskit.batch import Batch, System, select


class Structures(Protocol):
    """Structures by position: any data source, or a list."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> System: ...


@dataclass(frozen=True, kw_only=True)
class SystemState(ABC):
    """Base of states of B systems: tensors [B, ...], tensors [R, ...] with a row for each atom, states, a batch.

    Nothing is changed in place.
    """

    by_row: ClassVar[frozenset[str]] = frozenset()  # names of the tensors [R, ...]

    @property
    @abstractmethod
    def system_index(self) -> Tensor:
        """The system of each row, [R] int64."""

    def select(self, keep: Tensor) -> Self:
        """The systems where ``keep`` [B] is True."""
        rows = keep[self.system_index]

        def kept(name: str, value: Any) -> Any:
            if isinstance(value, Batch):
                return select(value, keep)
            if isinstance(value, SystemState):
                return value.select(keep)
            return value[rows if name in self.by_row else keep]

        return self._with_each(kept)

    def to(self, device: torch.device | str) -> Self:
        """A copy on a device."""
        return self._with_each(lambda name, value: value.to(device))

    @staticmethod
    def join(parts: Sequence[SystemState]) -> Any:
        """All systems of the parts, which are of one class, in order."""

        def joined(name: str, value: Any) -> Any:
            values = [getattr(part, name) for part in parts]
            return SystemState.join(values) if isinstance(value, SystemState) else torch.cat(values)

        return parts[0]._with_each(joined)

    def _with_each(self, change: Callable[[str, Any], Any]) -> Self:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        changed = (Tensor, SystemState, Batch)
        return replace(self, **{name: change(name, v) for name, v in values.items() if isinstance(v, changed)})


@dataclass(frozen=True, kw_only=True)
class RowState(SystemState):
    """A state that knows the numbers of rows; a row is an atom, or one of the three rows of a cell's deformation."""

    counts: Tensor  # [B] int64, rows of each system

    @property
    def num_systems(self) -> int:
        """B."""
        return len(self.counts)

    @cached_property
    def system_index(self) -> Tensor:
        """The system of each row, [R] int64."""
        return torch.arange(self.num_systems, device=self.counts.device).repeat_interleave(self.counts)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Inner products [B] of vectors [R, 3] of each system; independent of the other systems."""
        return a.new_zeros(self.num_systems).index_add(0, self.system_index, torch.linalg.vecdot(a, b))

    def longest(self, vectors: Tensor) -> Tensor:
        """The largest norm [B] of a row of each system, of vectors [R, 3]; NaN where a row is NaN."""
        norms = torch.linalg.vector_norm(vectors, dim=-1)
        return norms.new_zeros(self.num_systems).scatter_reduce(0, self.system_index, norms, "amax", include_self=True)

    def spread(self, values: Tensor) -> Tensor:
        """Values [B] of systems at their rows: [R, 1]."""
        return values.index_select(0, self.system_index)[:, None]


def tensors_of(state: Any, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a state or batch by name, without those of its parts."""
    values = {f"{prefix}{item.name}": getattr(state, item.name) for item in fields(state)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}
