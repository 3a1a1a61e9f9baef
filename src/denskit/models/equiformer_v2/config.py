"""Settings of EquiformerV2."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from denskit.models.config import ModelConfig
from denskit.nn.packed import PackedNormName
from denskit.nn.so3_linear import Initialisation

Activation = Literal["separable_s2", "s2", "gate"]
PairEmbeddings = Literal["own", "shared", "none"]


class EquiformerV2Config(ModelConfig):
    """EquiformerV2; the defaults are the paper's 83M model for OC20 S2EF-2M."""

    name: Literal["equiformer_v2"] = "equiformer_v2"
    cutoff: float = Field(12.0, gt=0, description="Å, radius of the neighbourhood")
    max_neighbors: int | None = Field(20, ge=1, description="keep only the nearest neighbours of each atom; not smooth")
    num_elements: int = Field(90, ge=1, le=119, description="atomic numbers 0 .. num_elements - 1 have an embedding")
    forces: Literal["gradient", "direct"] = Field(
        "direct", description="forces from -dE/dr or from a head of their own"
    )
    num_layers: int = Field(12, ge=1, description="attention blocks")
    l_max: int = Field(6, ge=1, le=6, description="highest degree of the features")
    m_max: int = Field(2, ge=1, description="highest order kept in the edge frame")
    channels: int = Field(128, ge=2, description="channels of each degree between the blocks")
    hidden_channels: int = Field(64, ge=1, description="channels of the messages inside the attention")
    num_heads: int = Field(8, ge=1, description="attention heads")
    alpha_channels: int = Field(64, ge=1, description="channels of one head's attention logits")
    value_channels: int = Field(16, ge=1, description="channels of one head's values")
    ffn_channels: int = Field(128, ge=1, description="channels inside the feed-forward networks")
    edge_channels: int = Field(128, ge=1, description="hidden width of the radial functions")
    num_basis: int = Field(600, ge=2, description="Gaussians of the distance, two spacings wide")
    atom_pairs: PairEmbeddings = Field(
        "own", description="embeddings of both elements in radial functions: own ones, shared by all, or none"
    )
    norm: PackedNormName = Field("separable_layer_norm", description="normalisation of node features")
    activation: Activation = Field("separable_s2", description="nonlinearity of messages; only gate is exact")
    grid_mlp: bool = Field(True, description="feed-forward networks work at points of the sphere")
    grid_resolution: int = Field(18, ge=2, le=256, description="latitudes and longitudes of the sphere's points; even")
    attention_renormalisation: bool = Field(True, description="layer norm of the attention logits")
    initialisation: Initialisation = Field("uniform", description="distribution of the initial weights")
    envelope: bool = Field(False, description="smooth at the cutoff (the published model is not)")
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="dropout of attention weights in the blocks")
    projection_dropout: float = Field(0.0, ge=0, lt=1, description="equivariant dropout of each block's outputs")
    stochastic_depth: float = Field(0.05, ge=0, lt=1, description="probability of dropping a block for a structure")
    average_degree: float | None = Field(
        23.395238876342773, gt=0, description="usual number of neighbours; published: IS2RE's; null: measured"
    )
    average_atoms: float | None = Field(
        77.81317, gt=0, description="usual number of atoms; published: IS2RE's; null: measured by training"
    )

    @model_validator(mode="after")
    def _sizes_fit(self) -> EquiformerV2Config:
        if self.m_max > self.l_max:
            raise ValueError(f"m_max={self.m_max} is above l_max={self.l_max}")
        if self.uses_grid and (self.grid_resolution % 2 or self.grid_resolution <= 2 * self.l_max):
            raise ValueError(
                f"grid_resolution={self.grid_resolution}: l_max={self.l_max} wants an even number of at least "
                f"{2 * self.l_max + 2}"
            )
        return self

    @property
    def uses_grid(self) -> bool:
        """Functions are sampled at points of the sphere, so that rotations are exact up to a sampling error only."""
        return self.activation != "gate" or self.grid_mlp
