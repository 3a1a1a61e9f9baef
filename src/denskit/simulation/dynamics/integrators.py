"""Molecular dynamics of many systems at once: NVE, NVT (Nosé-Hoover chain or Langevin), NPT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from denskit.batch import Batch
from denskit.random import keys_for
from denskit.simulation.dynamics.barostat import StochasticCell, bulk_modulus
from denskit.simulation.dynamics.momenta import (
    degrees_of_freedom,
    kinetic_energy,
    masses_of,
    thermal_momenta,
    without_total,
)
from denskit.simulation.dynamics.settings import DynamicsSettings
from denskit.simulation.dynamics.thermostats import LangevinBath, NoseHooverChain
from denskit.simulation.potential import EnergyAndForces
from denskit.simulation.state import SystemState
from denskit.simulation.structures import scaled
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
    heat: Tensor  # [B] eV, from the Langevin thermostat and the barostat since the start
    conserved_at_start: Tensor  # [B] eV
    energy_std: Tensor | None = None  # [B] eV, over the models of a committee; None: one model
    forces_std: Tensor | None = None  # [N, 3] eV/Å
    stress: Tensor | None = None  # [B, 3, 3] eV/Å^3, where the potential gives it
    modulus: Tensor | None = None  # [B] eV/Å^3, bulk modulus at the start; npt only
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

    @property
    def volume(self) -> Tensor:
        """Volumes [B] (Å^3)."""
        return self.batch.cell.det().abs()

    @property
    def pressure(self) -> Tensor:
        """Instantaneous pressures [B] (eV/Å^3) of a state with stress: kinetic part and virial."""
        assert self.stress is not None, "the potential was made with stress"
        return 2 * self.kinetic / (3 * self.volume) - self.stress.diagonal(dim1=1, dim2=2).mean(1)


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

    In npt the cell is rescaled in the middle of BAOAB, by the pressure at the beginning of the step.  Fixed atoms do
    not move.  Direct forces need not sum to 0: where the total momentum counts as 0 (nve, nvt), their sum does not
    accelerate systems without fixed atoms.  Random numbers depend on (seed, replica, step) alone, so replicas do what
    each would do alone.
    """

    def __init__(self, potential: EnergyAndForces, settings: DynamicsSettings) -> None:
        self.potential = potential
        self.settings = settings
        self._baths: tuple[Tensor, LangevinBath, StochasticCell] | None = None  # for these replicas
        direct = getattr(potential, "direct_forces", False)  # a formula has forces that sum to 0
        self._balanced = direct and settings.ensemble in ("nve", "nvt")
        if settings.ensemble == "npt" and not potential.stress:
            raise ValueError("constant pressure needs the stress: make the potential with stress=True")

    def start(
        self,
        batch: Batch,
        *,
        momenta: Tensor | None = None,
        masses: Tensor | None = None,
        replicas: Sequence[int] | None = None,
    ) -> State:
        """The initial state, with the thermostat at rest.

        ``momenta`` [N, 3] eV fs/Å are by default Maxwell-Boltzmann at the temperature, without a total momentum;
        ``masses`` [N] eV fs^2/Å^2 the standard ones of the elements; ``replicas``, numbers of the systems, 0, 1, ...

        Raises ValueError for a system without degrees of freedom, or that the potential refuses; fixed atoms in npt.
        """
        settings = self.settings
        batch = replace(batch.to(dtype=torch.float64), edges=None)
        device = batch.positions.device
        numbers = torch.arange(batch.num_systems) if replicas is None else torch.tensor(list(replicas))
        numbers = numbers.to(device)
        masses = masses_of(batch) if masses is None else masses.double().to(device)
        isobaric, langevin = settings.ensemble == "npt", settings.ensemble in ("langevin", "npt")
        if isobaric and bool(batch.fixed.any()):
            raise ValueError("constant pressure moves all atoms with the cell: release the fixed atoms, or use nvt")
        found = self.potential(batch)  # first: it names positions that are not finite, which have no moments of inertia
        freedom = degrees_of_freedom(batch, masses, momentum=langevin, rotation=langevin or settings.rotation)
        if momenta is None:
            keys = keys_for(settings.seed, 0, numbers)
            momenta = thermal_momenta(batch, masses, keys, settings.temperature, rotation=settings.rotation)
        chain = freedom.new_zeros(2, len(freedom), settings.links)
        state = State(
            batch=batch, replicas=numbers, masses=masses, momenta=momenta.double().to(device),
            energy=found.energy, forces=found.forces, freedom=freedom,
            chain_positions=chain[0].clone(), chain_velocities=chain[1].clone(),
            heat=torch.zeros_like(found.energy), conserved_at_start=torch.zeros_like(found.energy),
            energy_std=found.energy_std, forces_std=found.forces_std, stress=found.stress,
            modulus=bulk_modulus(self.potential, batch, settings.temperature) if isobaric else None,
        )  # fmt: skip
        return replace(state, conserved_at_start=self.conserved(state))

    def step(self, state: State) -> State:
        """The state after a time step.  Raises BrokenSystems where the potential cannot evaluate the positions."""
        if self.settings.ensemble in ("langevin", "npt"):
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
        momenta = self._kicked(state, state.momenta, dt / 2)
        drifted = self._evaluated(state, _drifted(state, state.batch.positions, momenta, dt))
        return replace(drifted, momenta=self._kicked(drifted, momenta, dt / 2))

    def _langevin(self, state: State) -> State:
        dt = self.settings.timestep
        momenta = self._kicked(state, state.momenta, dt / 2)
        halfway = _drifted(state, state.batch.positions, momenta, dt / 2)
        bath, barostat = self._baths_of(state)
        pushed = bath.kick(momenta, state.step)
        pushed = torch.where(state.batch.fixed[:, None], 0.0, pushed)
        before = kinetic_energy(state.batch, momenta, state.masses)
        gained = kinetic_energy(state.batch, pushed, state.masses) - before
        moved = replace(state, batch=replace(state.batch, positions=halfway), momenta=pushed, heat=state.heat + gained)
        if self.settings.ensemble == "langevin":
            drifted = self._evaluated(moved, _drifted(state, halfway, pushed, dt / 2))
        else:
            drifted = self._rescaled(state, moved, barostat)
        return replace(drifted, momenta=self._kicked(drifted, drifted.momenta, dt / 2))

    def _kicked(self, state: State, momenta: Tensor, time: float) -> Tensor:
        """Momenta after the forces have acted for ``time`` (fs); zero on fixed atoms."""
        forces = without_total(state.batch, state.masses, state.forces) if self._balanced else state.forces
        return torch.where(state.batch.fixed[:, None], 0.0, momenta + time * forces)

    def _rescaled(self, start: State, state: State, barostat: StochasticCell) -> State:
        """The middle of a step in npt: cell, positions and momenta rescaled, then the second half of the free motion.

        The heat gets the change of the kinetic energy and, by the trapezoidal rule, the work against the stress.
        """
        assert start.modulus is not None
        factor = barostat.factor(start.volume, start.pressure, start.modulus, start.step)
        smaller = replace(
            state, batch=scaled(state.batch, factor), momenta=state.momenta / factor[state.system_index][:, None]
        )
        positions = _drifted(smaller, smaller.batch.positions, smaller.momenta, self.settings.timestep / 2)
        moved = self._evaluated(smaller, positions)
        work = (_virial(start) + _virial(moved)) / 2 * factor.log()
        return replace(moved, heat=moved.heat + smaller.kinetic - state.kinetic + work)

    def _evaluated(self, state: State, positions: Tensor) -> State:
        batch = replace(state.batch, positions=positions)
        try:
            found = self.potential(batch)
        except ValueError:
            broken = self.potential.broken(batch)
            if not bool(broken.any()):
                raise
            raise BrokenSystems(broken) from None
        results = {name: getattr(found, name) for name in ("energy", "forces", "energy_std", "forces_std", "stress")}
        return replace(state, batch=batch, **results)

    def _chain_half_step(self, state: State) -> State:
        chain = NoseHooverChain(self.settings, state.freedom)
        factor, positions, velocities = chain.half_step(state.kinetic, state.chain_positions, state.chain_velocities)
        momenta = state.momenta * factor[state.batch.system_index][:, None]
        return replace(state, momenta=momenta, chain_positions=positions, chain_velocities=velocities)

    def _baths_of(self, state: State) -> tuple[LangevinBath, StochasticCell]:
        if self._baths is None or self._baths[0] is not state.replicas:
            keys = keys_for(self.settings.seed, 1, state.replicas)
            batch = state.batch
            bath = LangevinBath(self.settings, keys[batch.system_index], batch.number_in_system, state.masses)
            self._baths = (state.replicas, bath, StochasticCell(self.settings, keys))
        return self._baths[1:]


def _virial(state: State) -> Tensor:
    """Derivatives [B] (eV) of the energies by the logarithm of all lengths."""
    assert state.stress is not None
    return state.volume * state.stress.diagonal(dim1=1, dim2=2).sum(1)


def _drifted(state: State, positions: Tensor, momenta: Tensor, time: float) -> Tensor:
    """Positions after a free motion of ``time`` (fs)."""
    return positions + momenta * (time / state.masses)[:, None]
