"""Settings of molecular dynamics."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from denskit.settings import Settings


class DynamicsSettings(Settings):
    """Ensemble, thermostat and time step."""

    ensemble: Literal["nve", "nvt", "langevin"] = Field("nvt")
    """Nvt: Nosé-Hoover chain."""
    temperature: float = Field(300.0, gt=0)
    """K, of the initial momenta and the thermostat."""
    timestep: float = Field(0.5, gt=0)
    """fs."""
    seed: int = Field(0, ge=0)
    """Of the initial momenta and the Langevin noise."""
    relaxation_time: float = Field(50.0, gt=0)
    """fs, of the Nosé-Hoover chain."""
    links: int = Field(3, ge=1)
    """Length of the Nosé-Hoover chain."""
    friction: float = Field(0.01, gt=0)
    """1/fs, of the Langevin thermostat."""
    rotation: bool = Field(True)
    """Molecules start with angular momentum."""
