"""Molecular dynamics of many systems at once: NVE, and NVT with a Nosé-Hoover chain or a Langevin bath."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from denskit.batch import Batch, select
from denskit.random import keys_for
from denskit.simulation.dynamics.momenta import (
    atom_numbers,
    degrees_of_freedom,
    kinetic_energy,
    masses_of,
    thermal_momenta,
)
from denskit.simulation.dynamics.thermostats import LangevinBath, NoseHooverChain
from denskit.simulation.potential import Evaluation
from denskit.units import BOLTZMANN

BY_ATOM = ("masses", "momenta", "forces", "forces_std")  # the tensors of a state with a row for each atom


class EnergyModel(Protocol):
    """What dynamics asks of a potential: :class:`~denskit.simulation.potential.Potential`, or a formula."""

    def __call__(self, batch: Batch) -> Evaluation:
        """Energies and forces; raises ValueError for a broken system."""
        ...

    def broken(self, batch: Batch) -> Tensor:
        """Which systems [B] cannot be evaluated."""
        ...


class DynamicsSettings(BaseModel):
    """How to integrate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ensemble: Literal["nve", "nvt", "langevin"] = Field("nvt", description="nvt is the Nosé-Hoover chain")
    temperature: float = Field(300.0, gt=0, description="K, of the start and of the bath")
    timestep: float = Field(0.5, gt=0, description="fs")
    seed: int = Field(0, ge=0, description="of the momenta and the Langevin noise")
    relaxation_time: float = Field(50.0, gt=0, description="fs, of the Nosé-Hoover chain")
    links: int = Field(3, ge=1, description="length of the Nosé-Hoover chain")
    friction: float = Field(0.01, gt=0, description="1/fs, of the Langevin bath")
    rotation: bool = Field(True, description="molecules start with an angular momentum")


@dataclass(frozen=True, kw_only=True)
class State:
    """All that the next step depends on; all floating tensors are float64."""

    batch: Batch  # without edges
    replicas: Tensor  # [B] int64, which run each system is: names it, and seeds its random numbers
    masses: Tensor  # [N] eV fs^2/Å^2
    momenta: Tensor  # [N, 3] eV fs/Å, zero on fixed atoms
    energy: Tensor  # [B] eV, potential
    forces: Tensor  # [N, 3] eV/Å, as the potential gives them, also on fixed atoms
    freedom: Tensor  # [B] degrees of freedom
    chain_positions: Tensor  # [B, links], Nosé-Hoover
    chain_velocities: Tensor  # [B, links] 1/fs
    heat: Tensor  # [B] eV, what the Langevin bath has put in
    conserved_at_start: Tensor  # [B] eV
    energy_std: Tensor | None = None  # [B] eV, over the models of a committee; None: there is one
    forces_std: Tensor | None = None  # [N, 3] eV/Å
    step: int = 0

    @property
    def kinetic(self) -> Tensor:
        """Kinetic energies [B] (eV)."""
        return kinetic_energy(self.batch, self.momenta, self.masses)

    @property
    def temperature(self) -> Tensor:
        """Kinetic temperatures [B] (K)."""
        return 2 * self.kinetic / (self.freedom * BOLTZMANN)

    def select(self, keep: Tensor) -> State:
        """The systems where ``keep`` [B] is True."""
        atoms = keep[self.batch.system_index]
        kept: dict[str, Any] = {"batch": select(self.batch, keep)}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                kept[item.name] = value[atoms if item.name in BY_ATOM else keep]
        return replace(self, **kept)


class BrokenSystems(ValueError):
    """A step would lead some systems where the potential cannot follow."""

    def __init__(self, which: Tensor) -> None:
        self.systems: list[int] = which.nonzero()[:, 0].tolist()  # from a mask [B]
        super().__init__(
            f"systems {self.systems} of the batch broke: an atom's position is not finite, atoms "
            "have flown apart or lie on each other"
        )


class Dynamics:
    """Integrates states: velocity Verlet, inside half steps of a Nosé-Hoover chain, or BAOAB with a Langevin bath.

    Fixed atoms do not move.  Whatever is random depends on (seed, replica, step) alone, so that replicas in one batch
    do what each would do alone.
    """

    def __init__(self, potential: EnergyModel, settings: DynamicsSettings) -> None:
        self.potential = potential
        self.settings = settings
        self._bath: tuple[Tensor, LangevinBath] | None = None  # for these replicas

    def start(self, batch: Batch, *, momenta: Tensor | None = None, replicas: Sequence[int] | None = None) -> State:
        """A state at rest in its bath.

        Args:
            batch: systems; their edges are not used.
            momenta: [N, 3] eV fs/Å; default Maxwell-Boltzmann at the temperature, without a total momentum.
            replicas: which run each system is; default 0, 1, ...

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
        """The state a time step later; raises BrokenSystems where the potential cannot follow."""
        if self.settings.ensemble == "langevin":
            moved = self._langevin(state)
        elif self.settings.ensemble == "nvt":
            moved = self._chain_half_step(self._verlet(self._chain_half_step(state)))
        else:
            moved = self._verlet(state)
        return replace(moved, step=state.step + 1)

    def conserved(self, state: State) -> Tensor:
        """What the exact motion conserves [B] (eV): the energy, with what is in the bath."""
        total = state.energy + state.kinetic
        if self.settings.ensemble == "nvt":
            total = total + self._chain(state).energy(state.chain_positions, state.chain_velocities)
        return total - state.heat

    def _verlet(self, state: State) -> State:
        dt = self.settings.timestep
        momenta = _kicked(state, state.momenta, dt / 2)
        drifted = self._evaluated(state, _drifted(state, momenta, dt))
        return replace(drifted, momenta=_kicked(drifted, momenta, dt / 2))

    def _langevin(self, state: State) -> State:
        dt = self.settings.timestep
        momenta = _kicked(state, state.momenta, dt / 2)
        halfway = _drifted(state, momenta, dt / 2)
        pushed = self._bath_of(state).kick(momenta, state.step, dt)
        pushed = torch.where(state.batch.fixed[:, None], 0.0, pushed)
        before = kinetic_energy(state.batch, momenta, state.masses)
        gained = kinetic_energy(state.batch, pushed, state.masses) - before
        drifted = self._evaluated(state, halfway + _drift(state, pushed, dt / 2))
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
        said = {name: getattr(found, name) for name in ("energy", "forces", "energy_std", "forces_std")}
        return replace(state, batch=batch, **said)

    def _chain(self, state: State) -> NoseHooverChain:
        settings = self.settings
        return NoseHooverChain(
            freedom=state.freedom,
            temperature=settings.temperature,
            relaxation_time=settings.relaxation_time,
            links=settings.links,
        )

    def _chain_half_step(self, state: State) -> State:
        factor, positions, velocities = self._chain(state).half_step(
            state.kinetic, state.chain_positions, state.chain_velocities, self.settings.timestep
        )
        momenta = state.momenta * factor[state.batch.system_index][:, None]
        return replace(state, momenta=momenta, chain_positions=positions, chain_velocities=velocities)

    def _bath_of(self, state: State) -> LangevinBath:
        if self._bath is None or self._bath[0] is not state.replicas:
            keys = keys_for(self.settings.seed, 1, state.replicas)[state.batch.system_index]
            bath = LangevinBath(
                temperature=self.settings.temperature, friction=self.settings.friction, keys=keys,
                atoms=atom_numbers(state.batch), masses=state.masses,
            )  # fmt: skip
            self._bath = (state.replicas, bath)
        return self._bath[1]


def _kicked(state: State, momenta: Tensor, time: float) -> Tensor:
    """Momenta after the forces have acted for ``time`` (fs); fixed atoms feel none."""
    return torch.where(state.batch.fixed[:, None], 0.0, momenta + time * state.forces)


def _drift(state: State, momenta: Tensor, time: float) -> Tensor:
    return momenta * (time / state.masses)[:, None]


def _drifted(state: State, momenta: Tensor, time: float) -> Tensor:
    return state.batch.positions + _drift(state, momenta, time)
