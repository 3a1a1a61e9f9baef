"""Molecular dynamics of many systems at once: NVE, and NVT with a Nosé-Hoover chain or a Langevin thermostat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from denskit.batch import Batch
from denskit.random import keys_for
from denskit.simulation.dynamics.momenta import (
    atom_numbers,
    degrees_of_freedom,
    kinetic_energy,
    masses_of,
    thermal_momenta,
)
from denskit.simulation.dynamics.settings import DynamicsSettings
from denskit.simulation.dynamics.thermostats import LangevinBath, NoseHooverChain
from denskit.simulation.potential import EnergyAndForces
from denskit.simulation.state import SystemState
from denskit.units import BOLTZMANN


@dataclass(frozen=True, kw_only=True)
class State(SystemState):
    """The state of B systems with N atoms; all floating tensors are float64."""

    by_row = frozenset({"masses", "momenta", "forces", "forces_std"})

    batch: Batch  # without edges
    replicas: Tensor  # [B] int64, number of each system: names it, and seeds its random numbers
    masses: Tensor  # [N] eV fs^2/Å^2
    momenta: Tensor  # [N, 3] eV fs/Å, zero on fixed atoms
    energy: Tensor  # [B] eV, potential
    forces: Tensor  # [N, 3] eV/Å, also on fixed atoms
    freedom: Tensor  # [B] degrees of freedom
    chain_positions: Tensor  # [B, links], Nosé-Hoover
    chain_velocities: Tensor  # [B, links] 1/fs
    heat: Tensor  # [B] eV, from the Langevin thermostat since the start
    conserved_at_start: Tensor  # [B] eV
    energy_std: Tensor | None = None  # [B] eV, over the models of a committee; None: one model
    forces_std: Tensor | None = None  # [N, 3] eV/Å
    step: int = 0

    @property
    def system_index(self) -> Tensor:
        """The system of each atom, [N] int64."""
        return self.batch.system_index

    @property
    def kinetic(self) -> Tensor:
        """Kinetic energies [B] (eV)."""
        return kinetic_energy(self.batch, self.momenta, self.masses)

    @property
    def temperature(self) -> Tensor:
        """Kinetic temperatures [B] (K)."""
        return 2 * self.kinetic / (self.freedom * BOLTZMANN)


class BrokenSystems(ValueError):
    """A step leads to positions that the potential cannot evaluate."""

    def __init__(self, which: Tensor) -> None:
        self.systems: list[int] = which.nonzero()[:, 0].tolist()  # from a mask [B]
        super().__init__(
            f"systems {self.systems} of the batch broke: an atom's position is not finite, atoms "
            "have flown apart or lie on each other"
        )


class Dynamics:
    """Integrates states: velocity Verlet, alone or between half steps of a Nosé-Hoover chain, or BAOAB for Langevin.

    Fixed atoms do not move.  Random numbers depend on (seed, replica, step) alone, so replicas in one batch do what
    each would do alone.
    """

    def __init__(self, potential: EnergyAndForces, settings: DynamicsSettings) -> None:
        self.potential = potential
        self.settings = settings
        self._bath: tuple[Tensor, LangevinBath] | None = None  # for these replicas

    def start(self, batch: Batch, *, momenta: Tensor | None = None, replicas: Sequence[int] | None = None) -> State:
        """The initial state, with the thermostat at rest.

        Args:
            batch: systems; edges are not used.
            momenta: [N, 3] eV fs/Å; default: Maxwell-Boltzmann at the temperature, without a total momentum.
            replicas: numbers of the systems; default: 0, 1, ...

        Raises:
            ValueError: A system without degrees of freedom, or one that the potential refuses.
        """
        settings = self.settings
        batch = replace(batch.to(dtype=torch.float64), edges=None)
        device = batch.positions.device
        numbers = torch.arange(batch.num_systems) if replicas is None else torch.tensor(list(replicas))
        numbers = numbers.to(device)
        masses = masses_of(batch)
        langevin = settings.ensemble == "langevin"
        freedom = degrees_of_freedom(batch, masses, momentum=langevin, rotation=langevin or settings.rotation)
        if momenta is None:
            keys = keys_for(settings.seed, 0, numbers)
            momenta = thermal_momenta(batch, masses, keys, settings.temperature, rotation=settings.rotation)
        found = self.potential(batch)
        chain = freedom.new_zeros(2, len(freedom), settings.links)
        state = State(
            batch=batch, replicas=numbers, masses=masses, momenta=momenta.double().to(device),
            energy=found.energy, forces=found.forces, freedom=freedom,
            chain_positions=chain[0].clone(), chain_velocities=chain[1].clone(),
            heat=torch.zeros_like(found.energy), conserved_at_start=torch.zeros_like(found.energy),
            energy_std=found.energy_std, forces_std=found.forces_std,
        )  # fmt: skip
        return replace(state, conserved_at_start=self.conserved(state))

    def step(self, state: State) -> State:
        """The state after a time step.  Raises BrokenSystems where the potential cannot evaluate the positions."""
        if self.settings.ensemble == "langevin":
            moved = self._langevin(state)
        elif self.settings.ensemble == "nvt":
            moved = self._chain_half_step(self._verlet(self._chain_half_step(state)))
        else:
            moved = self._verlet(state)
        return replace(moved, step=state.step + 1)

    def conserved(self, state: State) -> Tensor:
        """The conserved quantity [B] (eV): energy of the systems and of their thermostats."""
        total = state.energy + state.kinetic
        if self.settings.ensemble == "nvt":
            total = total + NoseHooverChain(self.settings, state.freedom).energy(
                state.chain_positions, state.chain_velocities
            )
        return total - state.heat

    def _verlet(self, state: State) -> State:
        dt = self.settings.timestep
        momenta = _kicked(state, state.momenta, dt / 2)
        drifted = self._evaluated(state, _drifted(state, state.batch.positions, momenta, dt))
        return replace(drifted, momenta=_kicked(drifted, momenta, dt / 2))

    def _langevin(self, state: State) -> State:
        dt = self.settings.timestep
        momenta = _kicked(state, state.momenta, dt / 2)
        halfway = _drifted(state, state.batch.positions, momenta, dt / 2)
        pushed = self._bath_of(state).kick(momenta, state.step)
        pushed = torch.where(state.batch.fixed[:, None], 0.0, pushed)
        before = kinetic_energy(state.batch, momenta, state.masses)
        gained = kinetic_energy(state.batch, pushed, state.masses) - before
        drifted = self._evaluated(state, _drifted(state, halfway, pushed, dt / 2))
        return replace(drifted, momenta=_kicked(drifted, pushed, dt / 2), heat=state.heat + gained)

    def _evaluated(self, state: State, positions: Tensor) -> State:
        batch = replace(state.batch, positions=positions)
        try:
            found = self.potential(batch)
        except ValueError:
            broken = self.potential.broken(batch)
            if not bool(broken.any()):
                raise
            raise BrokenSystems(broken) from None
        results = {name: getattr(found, name) for name in ("energy", "forces", "energy_std", "forces_std")}
        return replace(state, batch=batch, **results)

    def _chain_half_step(self, state: State) -> State:
        chain = NoseHooverChain(self.settings, state.freedom)
        factor, positions, velocities = chain.half_step(state.kinetic, state.chain_positions, state.chain_velocities)
        momenta = state.momenta * factor[state.batch.system_index][:, None]
        return replace(state, momenta=momenta, chain_positions=positions, chain_velocities=velocities)

    def _bath_of(self, state: State) -> LangevinBath:
        if self._bath is None or self._bath[0] is not state.replicas:
            keys = keys_for(self.settings.seed, 1, state.replicas)[state.batch.system_index]
            self._bath = (state.replicas, LangevinBath(self.settings, keys, atom_numbers(state.batch), state.masses))
        return self._bath[1]


def _kicked(state: State, momenta: Tensor, time: float) -> Tensor:
    """Momenta after the forces have acted for ``time`` (fs); zero on fixed atoms."""
    return torch.where(state.batch.fixed[:, None], 0.0, momenta + time * state.forces)


def _drifted(state: State, positions: Tensor, momenta: Tensor, time: float) -> Tensor:
    """Positions after a free motion of ``time`` (fs)."""
    return positions + momenta * (time / state.masses)[:, None]
