"""Disagreement of the models of a committee along a simulation."""

from __future__ import annotations

import torch
from ase.data import chemical_symbols
from torch import Tensor

from denskit.batch import Batch
from denskit.simulation.dynamics.integrators import State
from denskit.simulation.dynamics.observers import Instability

UNCERTAIN = "uncertain"  # name of the criterion in reports


def spread_of_atoms(state: State) -> Tensor:
    """Norm [N] (eV/Å) of the standard deviation of the force on each atom over the models, invariant to rotations.

    The model deviation of Zhang et al. (Comput. Phys. Commun. 253, 107206), but with n - 1 models in the denominator.
    """
    assert state.forces_std is not None, "one model has no spread"
    return torch.linalg.vector_norm(state.forces_std, dim=-1)


def spread_of(state: State) -> Tensor:
    """The largest spread [B] (eV/Å) of an atom of each system."""
    assert state.forces_std is not None, "one model has no spread"
    return largest_spread(state.batch, state.forces_std)


def largest_spread(batch: Batch, forces_std: Tensor) -> Tensor:
    """The largest norm [B] (eV/Å) of an atom of each system, of standard deviations of forces [N, 3]."""
    norms = torch.linalg.vector_norm(forces_std, dim=-1)
    return norms.new_zeros(batch.num_systems).scatter_reduce(0, batch.system_index, norms, "amax")


def uncertain(state: State, limit: float) -> list[Instability]:
    """The systems on which models disagree by more than ``limit`` (eV/Å), with the atom of the largest spread."""
    atoms, found = spread_of_atoms(state), []
    for system in (spread_of(state) > limit).nonzero()[:, 0].tolist():
        own = state.batch.system_index == system
        worst = int(atoms[own].argmax())
        symbol = chemical_symbols[int(state.batch.atomic_numbers[own][worst])]
        reason = f"forces on {symbol}{worst} spread by {float(atoms[own][worst]):.3g} eV/Å over the models"
        found.append(Instability(system=system, check=UNCERTAIN, reason=f"{reason}, more than {limit:g} eV/Å"))
    return found
