"""How far the models of a committee disagree along a simulation, and which systems that leaves uncertain."""

from __future__ import annotations

import torch
from ase.data import chemical_symbols
from torch import Tensor

from denskit.simulation.dynamics.integrators import State
from denskit.simulation.dynamics.observers import Instability

UNCERTAIN = "uncertain"  # name of the criterion in reports


def spread_of_atoms(state: State) -> Tensor:
    """The length [N] (eV/Å) of each atom's deviation of forces: turning the system does not change it.

    The model deviation of Zhang et al. (Comput. Phys. Commun. 253, 107206), but with n - 1 models in the denominator.
    """
    assert state.forces_std is not None, "one model has no spread"
    return torch.linalg.vector_norm(state.forces_std, dim=-1)


def spread_of(state: State) -> Tensor:
    """The spread [B] (eV/Å) of the atom of each system on which the models disagree most."""
    found = spread_of_atoms(state)
    return found.new_zeros(state.batch.num_systems).scatter_reduce(0, state.batch.system_index, found, "amax")


def uncertain(state: State, limit: float) -> list[Instability]:
    """The systems on which models disagree by more than ``limit`` (eV/Å), and about which atom most."""
    atoms, found = spread_of_atoms(state), []
    for system in (spread_of(state) > limit).nonzero()[:, 0].tolist():
        own = state.batch.system_index == system
        worst = int(atoms[own].argmax())
        symbol = chemical_symbols[int(state.batch.atomic_numbers[own][worst])]
        reason = f"forces on {symbol}{worst} spread by {float(atoms[own][worst]):.3g} eV/Å over the models"
        found.append(Instability(system=system, check=UNCERTAIN, reason=f"{reason}, more than {limit:g} eV/Å"))
    return found
