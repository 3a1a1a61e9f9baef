"""Settings of molecular dynamics."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from denskit.settings import Settings


class DynamicsSettings(Settings):
    """Ensemble, thermostat and time step."""

    ensemble: Literal["nve", "nvt", "langevin"] = Field("nvt", description="nvt: Nosé-Hoover chain")
    temperature: float = Field(300.0, gt=0, description="K, of the initial momenta and the thermostat")
    timestep: float = Field(0.5, gt=0, description="fs")
    seed: int = Field(0, ge=0, description="of the initial momenta and the Langevin noise")
    relaxation_time: float = Field(50.0, gt=0, description="fs, of the Nosé-Hoover chain")
    links: int = Field(3, ge=1, description="length of the Nosé-Hoover chain")
    friction: float = Field(0.01, gt=0, description="1/fs, of the Langevin thermostat")
    rotation: bool = Field(True, description="molecules start with angular momentum")
