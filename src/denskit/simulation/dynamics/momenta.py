"""Masses, momenta and degrees of freedom of batches: masses in eV fs^2/Å^2, momenta in eV fs/Å."""

from __future__ import annotations

import torch
from ase.data import atomic_masses
from torch import Tensor

from denskit.batch import Batch
from denskit.random import Use, normal
from denskit.units import AMU, BOLTZMANN


def masses_of(batch: Batch) -> Tensor:
    """Standard atomic masses [N] (eV fs^2/Å^2, float64)."""
    table = torch.from_numpy(atomic_masses) * AMU
    return table.to(batch.positions.device)[batch.atomic_numbers]


def kinetic_energy(batch: Batch, momenta: Tensor, masses: Tensor) -> Tensor:
    """Kinetic energies [B] (eV)."""
    return batch.sum_over_atoms(momenta.square().sum(-1) / (2 * masses))


def thermal_momenta(batch: Batch, masses: Tensor, keys: Tensor, temperature: float, *, rotation: bool) -> Tensor:
    """Momenta [N, 3] drawn from the Maxwell-Boltzmann distribution at a temperature (K), without a total momentum.

    Fixed atoms get zero, and a system with fixed atoms keeps its total momentum.  ``masses`` [N] eV fs^2/Å^2; ``keys``
    [B] int64.  ``rotation`` False also removes the angular momentum of molecules (:func:`free_molecules`).
    """
    component = torch.arange(3, device=keys.device)
    draws = normal(keys[batch.system_index][:, None], Use.MOMENTA, batch.number_in_system[:, None], component)
    momenta = draws * (masses * BOLTZMANN * temperature).sqrt()[:, None]
    momenta = torch.where(batch.fixed[:, None], 0.0, momenta)
    momenta = without_total(batch, masses, momenta)
    return momenta if rotation else _without_rotation(batch, masses, momenta)


def without_total(batch: Batch, masses: Tensor, vectors: Tensor) -> Tensor:
    """Momenta or forces [N, 3] whose sums are 0 in systems without fixed atoms; masses [N].

    All atoms of a system lose the same velocity or acceleration.
    """
    share = (batch.sum_over_atoms(vectors) / batch.sum_over_atoms(masses)[:, None])[batch.system_index]
    return torch.where(_floating(batch)[batch.system_index][:, None], vectors - masses[:, None] * share, vectors)


def degrees_of_freedom(batch: Batch, masses: Tensor, *, momentum: bool, rotation: bool) -> Tensor:
    """Degrees of freedom [B] (float64): 3 a free atom, minus those of conserved momenta; masses [N].

    ``momentum``: the total momentum changes (by Langevin noise); ``rotation``: molecules have angular momentum; where
    not, they stay 0.  With fixed atoms no momentum is conserved.  Raises ValueError for a system without freedom.
    """
    free = 3.0 * batch.sum_over_atoms((~batch.fixed).double())
    if not momentum:
        free = free - 3.0 * _floating(batch)
    if not rotation:
        free = free - torch.where(free_molecules(batch), _axes(_inertia(batch, masses, batch.positions)), 0.0)
    still = (free < 1).nonzero()[:, 0].tolist()
    if still:
        raise ValueError(
            f"system {still[0]} of the batch has no degree of freedom: it is a single atom, or all its atoms are fixed"
        )
    return free


def _floating(batch: Batch) -> Tensor:
    """Systems [B] without fixed atoms."""
    return batch.sum_over_atoms(batch.fixed.double()) == 0


def free_molecules(batch: Batch) -> Tensor:
    """Systems [B] that are neither periodic nor have fixed atoms: they keep their angular momentum."""
    return _floating(batch) & ~batch.pbc.any(1)


def _relative(batch: Batch, masses: Tensor, positions: Tensor) -> Tensor:
    """Positions [N, 3] about each system's centre of mass."""
    weighted = batch.sum_over_atoms(masses[:, None] * positions)
    return positions - (weighted / batch.sum_over_atoms(masses)[:, None])[batch.system_index]


def _inertia(batch: Batch, masses: Tensor, positions: Tensor) -> Tensor:
    """Tensors of inertia [B, 3, 3] about the centres of mass."""
    r = _relative(batch, masses, positions)
    outer = r[:, :, None] * r[:, None, :]
    square = r.square().sum(-1)[:, None, None] * torch.eye(3, dtype=r.dtype, device=r.device)
    return batch.sum_over_atoms(masses[:, None, None] * (square - outer))


def _axes(inertia: Tensor) -> Tensor:
    """Rotational axes [B]: 3, of a linear molecule 2, of an atom 0."""
    moments = torch.linalg.eigvalsh(inertia)
    return (moments > 1e-6 * moments[:, -1:].clamp(min=1e-300)).double().sum(-1)


def _without_rotation(batch: Batch, masses: Tensor, momenta: Tensor) -> Tensor:
    r = _relative(batch, masses, batch.positions)
    angular = batch.sum_over_atoms(torch.linalg.cross(r, momenta))
    inertia = _inertia(batch, masses, batch.positions)
    # a linear molecule has no moment about its axis, which the pseudo-inverse leaves out
    omega = (torch.linalg.pinv(inertia, rtol=1e-6, hermitian=True) @ angular[:, :, None])[:, :, 0]
    omega = torch.where(free_molecules(batch)[:, None], omega, 0.0)[batch.system_index]
    return momenta - masses[:, None] * torch.linalg.cross(omega, r)
