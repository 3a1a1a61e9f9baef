"""Models for tests that move atoms: in a landscape of random weights the last bits would decide where atoms go."""

from __future__ import annotations

from pathlib import Path

import torch

from denskit.models import ForceField, build_force_field
from denskit.models.equiformer import EquiformerConfig
from denskit.models.model_file import load_model
from denskit.models.scaling import Scaling

TRAINED = Path(__file__).with_name("fixtures") / "trained.safetensors"
NEARLY_FREE = EquiformerConfig(
    cutoff=4.0, num_layers=1, channels=(4, 2), feature_channels=(4, 2), head_channels=(2, 2), num_heads=1,
    ffn_channels=(4, 2), num_basis=4, radial_hidden=(4,), envelope=True,
)  # fmt: skip


def trained(dtype: torch.dtype = torch.float64) -> ForceField:
    """A very small model that scripts/make_trained_model.py makes; forces are gradients, and it has a stress.

    It knows H2O, CH4 and ethanol near their minima, copper, and CO on copper.
    """
    return load_model(TRAINED, dtype=dtype)


def nearly_free(dtype: torch.dtype = torch.float64) -> ForceField:
    """A hundredth of a random potential for H, C and O: molecules fly apart on straight lines, as they started."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        scaling = Scaling(elements=[1, 6, 8], energy_scale=0.01, force_scale=0.01)
        return build_force_field(NEARLY_FREE, heads={}, scaling=scaling).to(dtype)
