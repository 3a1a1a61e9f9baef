"""EquiformerV3."""

from denskit.models.equiformer_v3.config import EquiformerV3Config
from denskit.models.equiformer_v3.model import EquiformerV3

__all__ = ["EquiformerV3", "EquiformerV3Config"]
