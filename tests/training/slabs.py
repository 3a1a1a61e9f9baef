"""Small slabs with ids, as OC20 has them, and a model for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from denskit.batch import System
from denskit.data.base import Source
from denskit.models import build_force_field
from denskit.models.base import ForceField
from denskit.models.equiformer import EquiformerConfig
from denskit.models.scaling import Scaling


@dataclass(frozen=True)
class Slabs(Source):
    """Structures in memory."""

    systems: Sequence[System]
    name: str = "slabs"
    sizes: None = None  # atoms of the structures, which nobody counted

    def __len__(self) -> int:
        return len(self.systems)

    def __getitem__(self, index: int) -> System:
        return self.systems[index]


def slabs(slab: System, count: int, *, seed: int = 0, **changes: object) -> Slabs:
    """Rattled copies of a slab; their ids do not sort as text as they do as numbers."""
    generator = np.random.default_rng(seed)
    return Slabs(
        [
            replace(
                slab,
                positions=slab.positions + generator.normal(scale=0.05, size=slab.positions.shape),
                forces=generator.normal(size=slab.positions.shape),
                energy=float(generator.normal()),
                sid=f"{8 + index // 2}",
                fid=5 + 95 * (index % 2),
                index=index,
                **changes,  # type: ignore[arg-type]
            )
            for index in range(count)
        ]
    )


def small_model() -> ForceField:
    """Direct forces, and energies with references: a few thousand weights."""
    torch.manual_seed(3)
    config = EquiformerConfig(
        num_layers=1, channels=(8, 8), feature_channels=(16, 8), head_channels=(4, 4), num_heads=2,
        ffn_channels=(12, 12), num_basis=8, radial_hidden=(8,), cutoff=4.0, max_neighbors=8, forces="direct",
    )  # fmt: skip
    scaling = Scaling(
        elements=[6, 8, 29], references={"C": -9.0, "O": -7.0, "Cu": -3.5}, energy_shift=-0.5, energy_scale=2.0,
        force_scale=3.0,
    )  # fmt: skip
    return build_force_field(config, heads={"forces": "1"}, scaling=scaling)
