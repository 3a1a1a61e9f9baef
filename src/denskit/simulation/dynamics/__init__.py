"""Molecular dynamics, and observers that find unstable systems."""

from denskit.simulation.dynamics.integrators import BrokenSystems, Dynamics, State
from denskit.simulation.dynamics.settings import DynamicsSettings

__all__ = ["BrokenSystems", "Dynamics", "DynamicsSettings", "State"]
