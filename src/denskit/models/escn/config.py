"""Settings of eSCN."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from denskit.models.config import ModelConfig


class ESCNConfig(ModelConfig):
    """eSCN; the defaults are the paper's model for OC20."""

    name: Literal["escn"] = "escn"
    cutoff: float = Field(12.0, gt=0, description="Å, radius of the neighbourhood")
    max_neighbors: int | None = Field(20, ge=1, description="keep only the nearest neighbours of each atom; not smooth")
    num_elements: int = Field(90, ge=1, le=119, description="atomic numbers 0 .. num_elements - 1 have an embedding")
    forces: Literal["gradient", "direct"] = Field(
        "direct", description="forces from -dE/dr or from a head of their own"
    )
    num_layers: int = Field(12, ge=1, description="message-passing layers")
    l_max: int = Field(6, ge=1, le=6, description="highest degree of the features")
    m_max: int = Field(2, ge=0, description="highest order of the messages in the edge frame")
    channels: int = Field(128, ge=1, description="channels of each degree")
    hidden_channels: int = Field(256, ge=1, description="channels inside the SO(2) convolutions")
    edge_channels: int = Field(128, ge=1, description="invariant channels of an edge")
    num_basis: int = Field(600, ge=2, description="Gaussians between 0 and the cutoff that a distance is expanded in")
    basis_width: float = Field(2.0, gt=0, description="width of the Gaussians in units of their spacing")
    num_sphere_samples: int = Field(
        128, ge=2, le=10_000, description="points of the sphere at which the heads read the features"
    )

    @model_validator(mode="after")
    def _orders_of_degrees(self) -> ESCNConfig:
        if self.m_max > self.l_max:
            raise ValueError(f"m_max={self.m_max} is above l_max={self.l_max}: no degree has such an order")
        return self
