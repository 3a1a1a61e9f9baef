"""Relaxation of structures into the minima of a potential."""

from denskit.simulation.relaxation.relaxer import (
    PROTOCOLS,
    EnergyAndForces,
    RelaxationSettings,
    Relaxer,
    Structures,
    relax,
)

__all__ = ["PROTOCOLS", "EnergyAndForces", "RelaxationSettings", "Relaxer", "Structures", "relax"]
