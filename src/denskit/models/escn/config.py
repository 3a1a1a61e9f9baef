"""Settings of eSCN."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from denskit.models.config import SO2ModelConfig


class ESCNConfig(SO2ModelConfig):
    """eSCN; the defaults are the paper's model for OC20."""

    name: Literal["escn"] = "escn"
    hidden_channels: int = Field(default=256, ge=1)
    """Channels inside the SO(2) convolutions."""
    basis_width: float = Field(default=2.0, gt=0)
    """Width of the Gaussians in units of their spacing."""
    num_sphere_samples: int = Field(default=128, ge=2, le=10_000)
    """Points of the sphere at which the heads read the features."""
