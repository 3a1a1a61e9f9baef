"""Settings of EquiformerV3."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from denskit.models.config import PackedModelConfig, RadialOrigin
from denskit.settings import OnFineTuning

NormName = Literal["merged_layer_norm", "merged_rms_norm", "separable_layer_norm"]
Activation = Literal["swiglu_s2", "silu_swiglu_s2", "separable_s2"]


class EquiformerV3Config(RadialOrigin, PackedModelConfig):
    """EquiformerV3; the defaults are the published model for MPtrj (L = 4), with direct forces and dropout.

    The released models have 128 rows for elements, of which the last nine are of none.
    """

    name: Literal["equiformer_v3"] = "equiformer_v3"
    cutoff: float = Field(default=6.0, gt=0)
    """Å, radius of the neighbourhood."""
    max_neighbors: int | None = Field(default=300, ge=1)
    """Keep only the nearest neighbours of each atom; not smooth where the limit acts."""
    num_elements: int = Field(default=119, ge=1, le=128)
    """Atomic numbers 0 .. num_elements - 1 have an embedding."""
    num_layers: int = Field(default=7, ge=1)
    """Attention blocks."""
    l_max: int = Field(default=4, ge=1, le=6)
    """Highest degree of the features."""
    hidden_channels: int = Field(default=32, ge=1)
    """Channels of the messages inside the attention."""
    num_heads: int = Field(default=8, ge=1)
    """Attention heads."""
    alpha_channels: int = Field(default=64, ge=1)
    """Channels of one head's attention logits."""
    value_channels: int = Field(default=16, ge=1)
    """Channels of one head's values."""
    ffn_channels: int = Field(default=512, ge=1)
    """Channels inside the feed-forward networks."""
    num_basis: int = Field(default=10, ge=2)
    """Radial basis functions."""
    radial_basis: Literal["gaussian", "exponential_normal"] = "gaussian"
    """Gaussians two spacings wide, or the functions of Equiformer."""
    norm: NormName = "merged_layer_norm"
    """Normalisation of node features; the merged ones have one scale for all degrees."""
    activation: Activation = "swiglu_s2"
    """Nonlinearity at points of the sphere: swiglu_s2 is a product of two functions, so band-limited and exact;
    silu_swiglu_s2 and separable_s2 (EquiformerV2) have a SiLU there, which is not."""
    attention_grid: tuple[int, int] | None = None
    """Latitudes (even) and longitudes of the attention's points; null: the fewest with which swiglu_s2 is exact."""
    ffn_grid: tuple[int, int] | None = None
    """The same for the feed-forward networks."""
    gate_force_head: bool = True
    """Gates in the force and noise heads, as in all released models; false: the activation of the blocks."""
    add_ends: bool = False
    """Add the features of both ends of an edge (their radial factors the same) instead of stacking them."""
    softcap: float | None = Field(default=None, gt=0)
    """Attention logits z become c tanh(z / c); null: they stay."""
    attention_epsilon: OnFineTuning[float] = Field(default=1e-16, gt=0)
    """Added to the sum of the attention weights."""
    envelope: bool = True
    """Weight edges by a polynomial that vanishes at the cutoff, in the softmax, messages and degree embedding."""
    attention_dropout: OnFineTuning[float] = Field(default=0.1, ge=0, lt=1)
    """Dropout of attention weights in the blocks."""
    stochastic_depth: OnFineTuning[float] = Field(default=0.05, ge=0, lt=1)
    """Probability of dropping a block for a structure."""
    average_atoms: float | None = Field(default=1.0, gt=0)
    """Divides energies; published: 1, for OC20 77.81317; null: measured on the training structures."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> EquiformerV3Config:
        for name, grid in (("attention_grid", self.attention_grid), ("ffn_grid", self.ffn_grid)):
            if grid is not None and (grid[0] % 2 or grid[0] <= 2 * self.l_max):
                raise ValueError(
                    f"{name}={list(grid)}: l_max={self.l_max} wants an even number of at least {2 * self.l_max + 2} "
                    "latitudes"
                )
        return self

    def grid(self, m_max: int) -> tuple[int, int]:
        """Points for features of orders up to ``m_max``: m_max in attention, l_max in feed-forward networks."""
        given = self.attention_grid if m_max == self.m_max and m_max < self.l_max else self.ffn_grid
        return given or (3 * self.l_max + 1 + (3 * self.l_max + 1) % 2, 3 * m_max + 2 - m_max % 2)

    @property
    def exact(self) -> bool:
        """Equivariant to rounding and independent of the choice of the edge frames."""
        if self.activation != "swiglu_s2":
            return False
        grids = ((self.grid(self.m_max), self.m_max), (self.grid(self.l_max), self.l_max))
        return all(latitudes > 3 * self.l_max and longitudes > 3 * m for (latitudes, longitudes), m in grids)
