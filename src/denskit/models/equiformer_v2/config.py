"""Settings of EquiformerV2."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from denskit.models.config import PackedModelConfig
from denskit.nn.packed import PackedNormName
from denskit.nn.so3_linear import Initialisation
from denskit.settings import OnFineTuning

Activation = Literal["separable_s2", "s2", "gate"]


class EquiformerV2Config(PackedModelConfig):
    """EquiformerV2; the defaults are the paper's 83M model for OC20 S2EF-2M."""

    name: Literal["equiformer_v2"] = "equiformer_v2"
    hidden_channels: int = Field(default=64, ge=1)
    """Channels of the messages inside the attention."""
    num_heads: int = Field(default=8, ge=1)
    """Attention heads."""
    alpha_channels: int = Field(default=64, ge=1)
    """Channels of one head's attention logits."""
    value_channels: int = Field(default=16, ge=1)
    """Channels of one head's values."""
    ffn_channels: int = Field(default=128, ge=1)
    """Channels inside the feed-forward networks."""
    norm: PackedNormName = "separable_layer_norm"
    """Normalisation of node features."""
    activation: Activation = "separable_s2"
    """Nonlinearity of messages; only gate is exact."""
    grid_mlp: bool = True
    """Feed-forward networks act at points of the sphere."""
    grid_resolution: int = Field(default=18, ge=2, le=256)
    """Latitudes and longitudes of the sphere's points; even."""
    attention_renormalisation: bool = True
    """Layer norm of the attention logits."""
    initialisation: OnFineTuning[Initialisation] = "uniform"
    """Distribution of the initial weights."""
    attention_dropout: OnFineTuning[float] = Field(default=0.1, ge=0, lt=1)
    """Dropout of attention weights in the blocks."""
    projection_dropout: OnFineTuning[float] = Field(default=0.0, ge=0, lt=1)
    """Equivariant dropout of each block's outputs."""
    stochastic_depth: OnFineTuning[float] = Field(default=0.05, ge=0, lt=1)
    """Probability of dropping a block for a structure."""
    average_atoms: float | None = Field(default=77.81317, gt=0)
    """Usual number of atoms; published: IS2RE's; null: measured by training."""

    @model_validator(mode="after")
    def _grid_is_fine_enough(self) -> EquiformerV2Config:
        if self.uses_grid and (self.grid_resolution % 2 or self.grid_resolution <= 2 * self.l_max):
            raise ValueError(
                f"grid_resolution={self.grid_resolution}: l_max={self.l_max} wants an even number of at least "
                f"{2 * self.l_max + 2}"
            )
        return self

    @property
    def uses_grid(self) -> bool:
        """Activations act on samples on the sphere: equivariant up to a sampling error."""
        return self.activation != "gate" or self.grid_mlp
