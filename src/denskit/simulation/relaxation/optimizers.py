"""FIRE and L-BFGS for many systems at once, each as if it were alone.

An optimizer is a pure function: ``step(state, positions, forces)`` returns the moves of all rows and the next state.
Inner products and step lengths are those of each system, so results do not depend on the other systems of the batch.
The history of a system that has just entered is zero, so systems of any age step together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from denskit.settings import Settings
from denskit.simulation.state import RowState


@dataclass(frozen=True, kw_only=True)
class LBFGSMemory(RowState):
    """The state of L-BFGS."""

    by_row = frozenset({"before", "forces_before", "s", "y"})

    before: Tensor  # [R, 3] Å
    forces_before: Tensor  # [R, 3] eV/Å
    s: Tensor  # [R, memory, 3] Å, newest first
    y: Tensor  # [R, memory, 3] eV/Å
    rho: Tensor  # [B, memory] 1 / (y . s)
    pairs: Tensor  # [B] so far; -1: no evaluation yet


@dataclass(frozen=True, kw_only=True)
class FIREMemory(RowState):
    """The state of FIRE."""

    by_row = frozenset({"velocity"})

    velocity: Tensor  # [R, 3]
    dt: Tensor  # [B]
    a: Tensor  # [B]
    downhill: Tensor  # [B] steps since the last one uphill; -1: no step yet


class LBFGS(Settings):
    """L-BFGS without line search (Nocedal, Math. Comp. 35, 773 (1980)); the defaults are those of ASE's ``LBFGS``.

    Two-loop recursion on the last ``memory`` pairs s = r - r_before, y = f_before - f, from the inverse Hessian
    1 / ``alpha``.  A system's step is shortened so that its longest row is at most ``maxstep``, then multiplied by
    ``damping``.  A pair with y . s = 0, by which ASE divides, is left out.
    """

    name: Literal["lbfgs"] = "lbfgs"
    maxstep: float = Field(default=0.2, gt=0)
    """Å, longest move of an atom, before damping."""
    memory: int = Field(default=100, ge=1)
    """Pairs of moves and force changes in the history."""
    damping: float = Field(default=1.0, gt=0)
    """Factor of every move."""
    alpha: float = Field(default=70.0, gt=0)
    """Initial Hessian (eV/Å^2)."""

    Memory: ClassVar = LBFGSMemory

    def start(self, counts: Tensor) -> LBFGSMemory:
        """The state of systems before their first move, with ``counts`` [B] rows."""
        systems, rows = len(counts), int(counts.sum())
        zeros, history = torch.zeros(rows, 3).double(), torch.zeros(rows, self.memory, 3).double()
        rho, pairs = torch.zeros(systems, self.memory).double(), torch.full((systems,), -1)
        return LBFGSMemory(counts=counts, before=zeros, forces_before=zeros, s=history, y=history, rho=rho, pairs=pairs)

    def step(self, state: LBFGSMemory, positions: Tensor, forces: Tensor) -> tuple[Tensor, LBFGSMemory]:
        """Moves [R, 3] in Å from positions [R, 3] and forces [R, 3] (float64), and the next state."""
        state = self._remember(state, positions, forces)
        s, y, rho = state.s, state.y, state.rho
        depth = min(self.memory, max(int(state.pairs.max()), 0))
        factors = []
        q = -forces
        for k in range(depth):  # newest pair first
            factor = rho[:, k] * state.dot(s[:, k], q)
            q = q - state.spread(factor) * y[:, k]
            factors.append(factor)
        z = q / self.alpha
        for k in reversed(range(depth)):
            z = z + s[:, k] * state.spread(factors[k] - rho[:, k] * state.dot(y[:, k], z))
        longest = state.longest(z)
        scale = torch.where(longest >= self.maxstep, self.maxstep / longest, 1.0)
        return -z * state.spread(scale) * self.damping, state

    def _remember(self, state: LBFGSMemory, positions: Tensor, forces: Tensor) -> LBFGSMemory:
        """The state with the pair of the last move in front of the others."""
        pairs = state.pairs + 1
        moved = state.spread(pairs > 0)
        s = torch.where(moved, positions - state.before, 0.0)
        y = torch.where(moved, state.forces_before - forces, 0.0)
        curvature = state.dot(y, s)
        rho = torch.where(curvature != 0, 1 / torch.where(curvature != 0, curvature, 1.0), 0.0)
        return LBFGSMemory(
            counts=state.counts,
            before=positions,
            forces_before=forces,
            s=torch.cat([s[:, None], state.s[:, :-1]], dim=1),
            y=torch.cat([y[:, None], state.y[:, :-1]], dim=1),
            rho=torch.cat([rho[:, None], state.rho[:, :-1]], dim=1),
            pairs=pairs,
        )


class FIRE(Settings):
    """FIRE (Bitzek et al., Phys. Rev. Lett. 97, 170201 (2006)) as in ASE, with ASE's parameters.

    ``maxstep`` bounds the norm of the whole move of a system, as in ASE.
    """

    name: Literal["fire"] = "fire"
    maxstep: float = Field(default=0.2, gt=0)
    """Å, largest norm of the move of a system, over all its coordinates."""
    dt: float = Field(default=0.1, gt=0)
    """Initial time step, in units in which masses are 1."""
    dtmax: float = Field(default=1.0, gt=0)
    """Largest time step."""
    n_min: int = Field(default=5, ge=0)
    """Steps downhill before the time step grows."""
    f_inc: float = Field(default=1.1, ge=1)
    """Growth of the time step."""
    f_dec: float = Field(default=0.5, gt=0, le=1)
    """Factor of the time step after a step uphill."""
    a_start: float = Field(default=0.1, ge=0, le=1)
    """Initial mixing of velocities with forces."""
    f_a: float = Field(default=0.99, gt=0, le=1)
    """Factor by which the mixing shrinks."""

    Memory: ClassVar = FIREMemory

    def start(self, counts: Tensor) -> FIREMemory:
        """The state of systems before their first move, with ``counts`` [B] rows."""
        ones, velocity = torch.ones(len(counts)).double(), torch.zeros(int(counts.sum()), 3).double()
        downhill = torch.full((len(counts),), -1)
        return FIREMemory(counts=counts, velocity=velocity, dt=self.dt * ones, a=self.a_start * ones, downhill=downhill)

    def step(self, state: FIREMemory, positions: Tensor, forces: Tensor) -> tuple[Tensor, FIREMemory]:
        """Moves [R, 3] in Å from positions [R, 3] and forces [R, 3] (float64), and the next state."""
        velocity, dt, a, since = state.velocity, state.dt, state.a, state.downhill
        started = since >= 0
        down = started & (state.dot(forces, velocity) > 0)
        up = started & ~down
        force_norm = state.dot(forces, forces).sqrt()
        turned = state.spread(1 - a) * velocity + state.spread(a) * forces / state.spread(
            torch.where(down, force_norm, 1.0)
        ) * state.spread(state.dot(velocity, velocity).sqrt())
        velocity = torch.where(state.spread(down), turned, torch.where(state.spread(up), 0.0, velocity))
        faster = down & (since > self.n_min)
        dt = torch.where(faster, (dt * self.f_inc).clamp(max=self.dtmax), torch.where(up, dt * self.f_dec, dt))
        a = torch.where(faster, a * self.f_a, torch.where(up, self.a_start, a))
        velocity = velocity + state.spread(dt) * forces
        move = state.spread(dt) * velocity
        norm = state.dot(move, move).sqrt()
        move = torch.where(state.spread(norm > self.maxstep), self.maxstep * move / state.spread(norm), move)
        since = torch.where(down, since + 1, 0)
        return move, replace(state, velocity=velocity, dt=dt, a=a, downhill=since)


Optimizer = Annotated[LBFGS | FIRE, Field(discriminator="name")]
