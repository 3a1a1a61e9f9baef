"""A very small trained model, for tests that move atoms: in a landscape of random weights they would go anywhere.

Made by scripts/make_trained_model.py.  It knows H2O, CH4 and ethanol near their minima, copper, and CO on copper.
"""

from __future__ import annotations

from pathlib import Path

import torch

from denskit.models import ForceField
from denskit.models.model_file import load_model

TRAINED = Path(__file__).with_name("fixtures") / "trained.safetensors"


def trained(dtype: torch.dtype = torch.float64) -> ForceField:
    """The model; its forces are gradients, it is smooth, and it has a stress."""
    return load_model(TRAINED, dtype=dtype)
