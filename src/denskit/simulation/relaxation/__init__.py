"""Relaxation of structures into the minima of a potential."""

from denskit.simulation.relaxation.relaxer import Relaxer, relax
from denskit.simulation.relaxation.settings import PROTOCOLS, RelaxationSettings

__all__ = ["PROTOCOLS", "RelaxationSettings", "Relaxer", "relax"]
