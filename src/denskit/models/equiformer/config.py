"""Settings of Equiformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from denskit.models.config import ModelConfig, RadialOrigin
from denskit.nn.so3_linear import Initialisation
from denskit.settings import OnFineTuning


class EquiformerConfig(RadialOrigin, ModelConfig):
    """Equiformer; the defaults are the paper's L_max = 2 model for MD17."""

    name: Literal["equiformer"] = "equiformer"
    num_layers: int = Field(default=6, ge=1)
    """Attention blocks."""
    channels: tuple[int, ...] = Field(default=(128, 64, 32))
    """Channels of degrees l = 0, 1, ... between the blocks."""
    feature_channels: tuple[int, ...] = Field(default=(512, 256, 128))
    """Channels after the last block."""
    head_channels: tuple[int, ...] = Field(default=(32, 16, 8))
    """Channels of one attention head."""
    num_heads: int = Field(default=4, ge=1)
    """Attention heads."""
    ffn_channels: tuple[int, ...] = Field(default=(384, 192, 96))
    """Channels inside the feed-forward networks."""
    radial_basis: Literal["exponential_normal", "gaussian", "bessel"] = "exponential_normal"
    """Basis of distances."""
    num_basis: int = Field(default=32, ge=1)
    """Radial basis functions."""
    radial_hidden: tuple[int, ...] = Field(default=(64, 64))
    """Hidden layers of the radial functions."""
    attention: Literal["mlp", "dot_product", "none"] = "mlp"
    """How messages are weighted."""
    messages: Literal["nonlinear", "linear"] = "nonlinear"
    """One or two tensor products a message."""
    message_channels: tuple[int, ...] | Literal["input"] | None = None
    """Channels of the messages; null: those between the blocks, input: those of the features that the attention reads
    (the noise head reads feature_channels)."""
    rescale_degree: bool = False
    """Multiply each atom's summed messages by its number of neighbours (attention=dot_product: over average_degree);
    with an envelope, by the sum of the envelope over its neighbours."""
    norm: Literal["layer", "merged", "none"] = "layer"
    """Normalisation of node features: merged has one scale for all degrees and is smooth at symmetric sites; layer is
    the published one, which is not."""
    parity: bool = False
    """Equal energies and mirrored forces of mirror images (E(3)): couple even l1 + l2 + l3 alone. The published model
    couples all, and tells left from right (SE(3))."""
    initialisation: OnFineTuning[Initialisation] = "normal"
    """Distribution of the initial weights."""
    envelope: bool = False
    """Smooth at the cutoff (the published model is not)."""
    attention_dropout: OnFineTuning[float] = Field(default=0.0, ge=0, lt=1)
    """Dropout of attention weights."""
    projection_dropout: OnFineTuning[float] = Field(default=0.0, ge=0, lt=1)
    """Equivariant dropout of each block's outputs."""
    output_dropout: OnFineTuning[float] = Field(default=0.0, ge=0, lt=1)
    """Equivariant dropout of the final features."""
    stochastic_depth: OnFineTuning[float] = Field(default=0.0, ge=0, lt=1)
    """Probability of dropping a block for a structure."""
    average_degree: float | None = Field(default=15.57930850982666, gt=0)
    """Usual number of neighbours; published: QM9's; null: measured by training."""
    average_atoms: float | None = Field(default=18.03065905448718, gt=0)
    """Usual number of atoms; published: QM9's; null: measured by training."""

    @model_validator(mode="after")
    def _same_degrees(self) -> EquiformerConfig:
        lists = {
            "feature_channels": self.feature_channels,
            "head_channels": self.head_channels,
            "ffn_channels": self.ffn_channels,
            "message_channels": self.messages_of(self.channels),
        }
        for key, value in lists.items():
            if len(value) != len(self.channels):
                raise ValueError(
                    f"{key} has {len(value)} degrees and channels has {len(self.channels)}; give one number a degree"
                )
        if min(self.messages_of(self.channels)) < 1:
            raise ValueError(f"message_channels is {self.message_channels}; at least 1 channel a degree is wanted")
        if self.attention == "dot_product" and self.messages == "nonlinear":
            raise ValueError("dot-product attention has linear messages; set messages=linear or attention=mlp")
        if self.attention == "none" and self.attention_dropout > 0:
            raise ValueError("attention_dropout would be ignored with attention=none; set it to 0")
        if self.norm != "none" and min(self.channels) < 2:
            raise ValueError(f"layer norm needs at least 2 channels a degree, found channels={self.channels}")
        return self

    @property
    def l_max(self) -> int:
        """Highest degree of the features."""
        return len(self.channels) - 1

    def messages_of(self, channels_in: Sequence[int]) -> tuple[int, ...]:
        """Channels of the messages of an attention that reads features of ``channels_in``."""
        if self.message_channels is None:
            return self.channels
        return tuple(channels_in) if self.message_channels == "input" else self.message_channels

    @property
    def value_channels(self) -> tuple[int, ...]:
        """Channels of the attention's values, all heads together."""
        return tuple(self.num_heads * c for c in self.head_channels)

    @property
    def radial_widths(self) -> tuple[int, ...]:
        """Inputs and hidden layers of the radial functions."""
        return (self.num_basis, *self.radial_hidden)
