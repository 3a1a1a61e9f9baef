"""Settings of molecular dynamics."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from denskit.settings import Seed, Settings

# ensembles that use a setting; all use the others
ACTS_WITH = {
    "relaxation_time": ("nvt",), "links": ("nvt",), "friction": ("langevin", "npt"), "pressure": ("npt",),
    "pressure_time": ("npt",),
}  # fmt: skip


class DynamicsSettings(Settings):
    """Ensemble, thermostat, barostat and time step.

    Raises ValueError for a setting that the ensemble does not use, unless it is the default, as in restart files.
    """

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

    @model_validator(mode="after")
    def _acts(self) -> DynamicsSettings:
        for name, ensembles in ACTS_WITH.items():
            value = getattr(self, name)
            if self.ensemble not in ensembles and value != type(self).model_fields[name].default:
                wanted = " and ".join(ensembles)
                raise ValueError(f"{name}={value:g} acts with ensemble {wanted} only, not with {self.ensemble}")
        return self
