"""eSCN (Passaro and Zitnick, ICML 2023)."""

from denskit.models.escn.config import ESCNConfig as ESCNConfig
from denskit.models.escn.model import ESCN as ESCN
