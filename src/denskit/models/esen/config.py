"""Settings of eSEN."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from denskit.models.config import PackedModelConfig, RadialOrigin


class ESENConfig(RadialOrigin, PackedModelConfig):
    """eSEN; the defaults are the published 30M model for MPtrj, with direct forces."""

    name: Literal["esen"] = "esen"
    cutoff: float = Field(default=6.0, gt=0)
    """Å, radius of the neighbourhood."""
    max_neighbors: int | None = Field(default=300, ge=1)
    """Keep only the nearest neighbours of each atom; not smooth where the limit acts."""
    strict_neighbors: bool = False
    """With max_neighbors: exactly the nearest ones; false keeps neighbours as near as the next one."""
    num_elements: int = Field(default=100, ge=1, le=119)
    """Atomic numbers 0 .. num_elements - 1 have an embedding."""
    num_layers: int = Field(default=10, ge=1)
    """Message-passing blocks."""
    l_max: int = Field(default=3, ge=1, le=6)
    """Highest degree of the features."""
    hidden_channels: int = Field(default=128, ge=1)
    """Channels inside the messages, the atomwise networks and the energy head."""
    edge_channels: int = Field(default=128, ge=1)
    """Hidden width of the radial functions, and of the embeddings of both elements."""
    num_basis: int = Field(default=10, ge=2)
    """Radial basis functions."""
    radial_basis: Literal["gaussian", "bessel", "exponential_normal"] = "gaussian"
    """Gaussians two spacings wide, trained Bessel functions with an envelope, or the functions of Equiformer."""
    atomwise: Literal["spectral", "grid"] = "spectral"
    """Networks of single atoms: with gates, or at points of the sphere, where equivariance is approximate."""
    envelope: bool = True
    """Weight messages by a polynomial that vanishes at the cutoff."""
    average_degree: float | None = Field(default=5.0, gt=0)
    """Divides the degree embedding, as published."""

    atom_pairs: Literal["shared"] = "shared"
    """Embeddings of both elements in the radial functions, shared by all blocks: the only published form."""
