"""Equiformer (Liao and Smidt, ICLR 2023)."""

from denskit.models.equiformer.config import EquiformerConfig as EquiformerConfig
from denskit.models.equiformer.model import Equiformer as Equiformer
