"""EquiformerV2 (Liao, Wood, Das and Smidt, ICLR 2024)."""

from denskit.models.equiformer_v2.config import EquiformerV2Config as EquiformerV2Config
from denskit.models.equiformer_v2.model import EquiformerV2 as EquiformerV2
