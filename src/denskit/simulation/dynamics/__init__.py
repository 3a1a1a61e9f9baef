"""Molecular dynamics, and the observers that say when a run has become unstable."""

from denskit.simulation.dynamics.integrators import BrokenSystems, Dynamics, DynamicsSettings, EnergyModel, State

__all__ = ["BrokenSystems", "Dynamics", "DynamicsSettings", "EnergyModel", "State"]
