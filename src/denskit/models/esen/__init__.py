"""eSEN."""

from denskit.models.esen.config import ESENConfig
from denskit.models.esen.model import ESEN

__all__ = ["ESEN", "ESENConfig"]
