"""Properties of crystals: equation of state, elastic constants, phonons, thermal conductivity."""

from denskit.simulation.crystals.conductivity import Conductivity, conductivity, conductivity_errors
from denskit.simulation.crystals.elastic import Elasticity, elastic_constants
from denskit.simulation.crystals.equation_of_state import EquationOfState, equation_of_state
from denskit.simulation.crystals.ground_state import CrystalSettings, relaxed_crystal
from denskit.simulation.crystals.phonons import Phonons, phonons

__all__ = [
    "Conductivity", "CrystalSettings", "Elasticity", "EquationOfState", "Phonons", "conductivity",
    "conductivity_errors", "elastic_constants", "equation_of_state", "phonons", "relaxed_crystal",
]  # fmt: skip
