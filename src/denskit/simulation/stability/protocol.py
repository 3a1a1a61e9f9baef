"""Protocol and reference of a stability study.

The protocol for molecules of MD17 of Fu et al. (2023), "Forces are not Enough": Nosé-Hoover at 500 K with 0.5 fs for
300 ps, a snapshot every 100 steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from denskit.batch import System
from denskit.data.base import Source
from denskit.settings import Seed, Settings
from denskit.simulation.dynamics import DynamicsSettings


class StudySettings(Settings):
    """The protocol; the defaults are those of Fu et al. (2023) for MD17."""

    length: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    """ps."""
    seeds: int = Field(default=5, ge=1)
    """Simulations in one batch, with different initial momenta."""
    seed: Seed = 0
    """Of all momenta."""
    temperature: float = Field(default=500.0, gt=0)
    """K."""
    timestep: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    """fs."""
    every: int = Field(default=100, ge=1)
    """Steps between two snapshots."""
    relaxation_time: float = Field(default=10.0, gt=0)
    """fs, of the thermostat; published: 20 steps."""
    nve: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    """ps without a thermostat for the energy drift, at most `length`; 0: none."""

    @model_validator(mode="after")
    def _is_long_enough(self) -> Self:
        if not self.steps(self.length):
            raise ValueError(f"length {self.length:g} ps is less than a time step of {self.timestep:g} fs")
        return self

    def steps(self, length: float) -> int:
        """Time steps in ``length`` ps."""
        return round(length * 1000 / self.timestep)

    def dynamics(self, ensemble: str) -> DynamicsSettings:
        """Settings of the integrator; as published, one thermostat instead of a chain, and molecules that turn."""
        chosen = self.model_dump(include={"temperature", "timestep", "seed"})
        if ensemble == "nvt":
            chosen |= {"relaxation_time": self.relaxation_time, "links": 1}
        return DynamicsSettings.model_validate({"ensemble": ensemble, "rotation": True, **chosen})


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Reference structures of a molecule, which give bond lengths and h(r)."""

    first: System  # where simulations start
    positions: np.ndarray  # [F, n, 3] Å

    @classmethod
    def of(cls, source: Source) -> Reference:
        """From structures of one molecule.  Raises ValueError for none, another molecule or periodic structures."""
        if not len(source):
            raise ValueError(f"{source.name} has no structures; at least one is wanted")
        first = source[0]
        if first.pbc.any():
            raise ValueError(f"{source.name} is periodic; bonds and h(r) are compared for molecules only")
        positions = np.empty((len(source), len(first), 3))
        for place, system in enumerate(source):
            if not np.array_equal(system.atomic_numbers, first.atomic_numbers):
                raise ValueError(
                    f"{source.name}: structure {place} is another molecule than structure 0, or orders its atoms "
                    "otherwise; structures of one molecule are wanted"
                )
            positions[place] = system.positions
        return cls(first=first, positions=positions)
