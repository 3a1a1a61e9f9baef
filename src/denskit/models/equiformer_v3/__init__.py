"""EquiformerV3."""

from denskit.models.equiformer_v3.config import EquiformerV3Config as EquiformerV3Config
from denskit.models.equiformer_v3.model import EquiformerV3 as EquiformerV3
