"""Disagreement of the models of a committee along a simulation."""

from __future__ import annotations

import torch
from ase.data import chemical_symbols
from torch import Tensor

from denskit.batch import Batch
from denskit.simulation.dynamics.integrators import State
from denskit.simulation.dynamics.observers import Instability

UNCERTAIN = "uncertain"  # name of the criterion in reports


def spread_of(state: State) -> Tensor:
    """The largest spread [B] (eV/Å) of an atom of each system."""
    assert state.forces_std is not None, "one model has no spread"
    return largest_spread(state.batch, state.forces_std)


def largest_spread(batch: Batch, forces_std: Tensor) -> Tensor:
    """The largest norm [B] (eV/Å) of an atom of each system, of standard deviations of forces [N, 3] over the models.

    The model deviation of Zhang et al. (Comput. Phys. Commun. 253, 107206), but with n - 1 models in the denominator.
    """
    norms = torch.linalg.vector_norm(forces_std, dim=-1)
    return norms.new_zeros(batch.num_systems).scatter_reduce(0, batch.system_index, norms, "amax")


def uncertain(state: State, limit: float) -> list[Instability]:
    """The systems on which models disagree by more than ``limit`` (eV/Å), with the atom of the largest spread."""
    spreads, found = spread_of(state), []
    assert state.forces_std is not None
    for system in (spreads > limit).nonzero()[:, 0].tolist():
        own = state.batch.system_index == system
        worst = int(torch.linalg.vector_norm(state.forces_std[own], dim=-1).argmax())
        symbol = chemical_symbols[int(state.batch.atomic_numbers[own][worst])]
        reason = f"forces on {symbol}{worst} spread by {float(spreads[system]):.3g} eV/Å over the models"
        found.append(Instability(system=system, check=UNCERTAIN, reason=f"{reason}, more than {limit:g} eV/Å"))
    return found
