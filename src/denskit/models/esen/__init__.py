"""eSEN."""

from denskit.models.esen.config import ESENConfig as ESENConfig
from denskit.models.esen.model import ESEN as ESEN
