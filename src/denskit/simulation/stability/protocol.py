"""The protocol of a simulation study, and the reference that it judges by.

That for molecules of MD17 of Fu et al. (2023), "Forces are not Enough": Nosé-Hoover at 500 K with 0.5 fs for 300 ps, a
frame every 100 steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from denskit.batch import System
from denskit.data.base import Source
from denskit.simulation.dynamics import DynamicsSettings


class StudySettings(BaseModel):
    """The protocol; the defaults are those of MD17 in Fu et al. (2023)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    length: float = Field(300.0, gt=0, description="ps")
    seeds: int = Field(5, ge=1, description="simulations, side by side; they differ in their first momenta")
    seed: int = Field(0, ge=0, description="of all of them")
    temperature: float = Field(500.0, gt=0, description="K")
    timestep: float = Field(0.5, gt=0, description="fs")
    every: int = Field(100, ge=1, description="steps between two frames")
    relaxation_time: float = Field(10.0, gt=0, description="fs, of the thermostat; published: 20 steps")
    nve: float = Field(
        5.0, ge=0, description="ps without a thermostat, at most `length`, for the energy drift; 0: none"
    )

    @model_validator(mode="after")
    def _is_long_enough(self) -> Self:
        if not self.steps(self.length):
            raise ValueError(f"length {self.length:g} ps is less than a time step of {self.timestep:g} fs")
        return self

    def steps(self, length: float) -> int:
        """Time steps in so many ps."""
        return round(length * 1000 / self.timestep)

    def dynamics(self, ensemble: str) -> DynamicsSettings:
        """Settings of the integrator: as published one thermostat, not a chain."""
        chosen = self.model_dump(include={"temperature", "timestep", "seed", "relaxation_time"})
        return DynamicsSettings.model_validate({"ensemble": ensemble, "links": 1, **chosen})


@dataclass(frozen=True, kw_only=True)
class Reference:
    """True frames of a molecule, from which bond lengths and h(r) are taken."""

    first: System  # from which simulations start
    positions: np.ndarray  # [F, n, 3] Å

    @classmethod
    def of(cls, frames: Source) -> Reference:
        """From the frames of one molecule; raises ValueError where they are none, or of a periodic system."""
        if not len(frames):
            raise ValueError(f"{frames.name} has no frames; at least one is wanted")
        first = frames[0]
        if first.pbc.any():
            raise ValueError(f"{frames.name} is periodic; bonds and h(r) are compared for molecules only")
        positions = np.empty((len(frames), len(first), 3))
        for place in range(len(frames)):
            system = frames[place]
            if not np.array_equal(system.atomic_numbers, first.atomic_numbers):
                raise ValueError(
                    f"{frames.name}: frame {place} is another molecule than frame 0, or orders its atoms otherwise; "
                    "frames of one molecule are wanted"
                )
            positions[place] = system.positions
        return cls(first=first, positions=positions)
