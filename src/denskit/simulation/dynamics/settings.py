"""Settings of molecular dynamics."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from denskit.settings import Seed, Settings


class DynamicsSettings(Settings):
    """Ensemble, thermostat, barostat and time step."""

    ensemble: Literal["nve", "nvt", "langevin", "npt"] = Field(default="nvt")
    """Nvt: Nosé-Hoover chain; npt: Langevin with stochastic cell rescaling."""
    temperature: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    """K, of the initial momenta and the thermostat."""
    timestep: float = Field(default=0.5, gt=0)
    """fs."""
    seed: Seed = 0
    """Of the initial momenta and all noise."""
    relaxation_time: float = Field(default=50.0, gt=0)
    """fs, of the Nosé-Hoover chain."""
    links: int = Field(default=3, ge=1)
    """Length of the Nosé-Hoover chain."""
    friction: float = Field(default=0.01, gt=0, allow_inf_nan=False)
    """1/fs, of the Langevin thermostat."""
    pressure: float = Field(default=0.0, allow_inf_nan=False)
    """GPa, of npt."""
    pressure_time: float = Field(default=500.0, gt=0)
    """fs, in which the volume relaxes in npt."""
    rotation: bool = Field(default=None, validate_default=True)
    """Molecules start with angular momentum; default: but for nvt, whose chain scales all momenta alike, so that the
    energy of a free molecule's rotation would never reach its vibrations."""

    @field_validator("rotation", mode="before")
    @classmethod
    def _as_the_ensemble_needs(cls, value: Any, info: ValidationInfo) -> Any:
        return info.data.get("ensemble") != "nvt" if value is None else value
