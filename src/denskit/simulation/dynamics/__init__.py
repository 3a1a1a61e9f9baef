"""Molecular dynamics, and observers that find unstable systems."""

from denskit.simulation.dynamics.integrators import BrokenSystems, Dynamics, DynamicsSettings, State

__all__ = ["BrokenSystems", "Dynamics", "DynamicsSettings", "State"]
