"""Relaxation of structures into the minima of a potential."""

from denskit.simulation.relaxation.relaxer import EnergyAndForces, Relaxer, Structures, relax
from denskit.simulation.relaxation.settings import PROTOCOLS, RelaxationSettings

__all__ = ["PROTOCOLS", "EnergyAndForces", "RelaxationSettings", "Relaxer", "Structures", "relax"]
