"""FIRE and L-BFGS for many systems at once, each as if it were alone.

An optimizer is a pure function: ``step(state, positions, forces)`` returns the moves of all rows and the next state.
Inner products and step lengths are those of each system, so results do not depend on the other systems of the batch.
The history of a system that has just entered is zero, so systems of any age step together.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from denskit.simulation.state import SystemTensors


class _Optimizer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LBFGS(_Optimizer):
    """L-BFGS without line search (Nocedal, Math. Comp. 35, 773 (1980)); the defaults are those of ASE's ``LBFGS``.

    Two-loop recursion on the last ``memory`` pairs s = r - r_before, y = f_before - f, from the inverse Hessian
    1 / ``alpha``.  A system's step is shortened so that its longest row is at most ``maxstep``, then multiplied by
    ``damping``.  A pair with y . s = 0, by which ASE divides, is left out.
    """

    name: Literal["lbfgs"] = "lbfgs"
    maxstep: float = Field(0.2, gt=0, description="Å, longest move of an atom, before damping")
    memory: int = Field(100, ge=1, description="pairs of moves and force changes in the history")
    damping: float = Field(1.0, gt=0, description="factor of every move")
    alpha: float = Field(70.0, gt=0, description="eV/Å^2, initial Hessian")

    def start(self, like: SystemTensors) -> SystemTensors:
        """The state of systems before their first move, with the rows of ``like``."""
        count, rows, device = like.num_systems, len(like.system_index), like.counts.device
        zeros = torch.zeros(rows, 3, dtype=torch.float64, device=device)
        history = torch.zeros(rows, self.memory, 3, dtype=torch.float64, device=device)
        return SystemTensors(
            like.counts,
            {"before": zeros, "forces_before": zeros, "s": history, "y": history},
            {
                "pairs": torch.full((count,), -1, device=device),  # -1: no evaluation yet
                "rho": torch.zeros(count, self.memory, dtype=torch.float64, device=device),
            },
        )

    def step(self, state: SystemTensors, positions: Tensor, forces: Tensor) -> tuple[Tensor, SystemTensors]:
        """Moves [R, 3] in Å from positions [R, 3] and forces [R, 3] (float64), and the next state."""
        state = self._remember(state, positions, forces)
        s, y, rho = state.rows["s"], state.rows["y"], state.systems["rho"]
        depth = min(self.memory, max(int(state.systems["pairs"].max()), 0))
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

    def _remember(self, state: SystemTensors, positions: Tensor, forces: Tensor) -> SystemTensors:
        """The state with the pair of the last move in front of the others."""
        pairs = state.systems["pairs"] + 1
        moved = state.spread(pairs > 0)
        s = torch.where(moved, positions - state.rows["before"], 0.0)
        y = torch.where(moved, state.rows["forces_before"] - forces, 0.0)
        curvature = state.dot(y, s)
        rho = torch.where(curvature != 0, 1 / torch.where(curvature != 0, curvature, 1.0), 0.0)
        return state.having(
            rows={
                "before": positions,
                "forces_before": forces,
                "s": torch.cat([s[:, None], state.rows["s"][:, :-1]], dim=1),
                "y": torch.cat([y[:, None], state.rows["y"][:, :-1]], dim=1),
            },
            systems={"pairs": pairs, "rho": torch.cat([rho[:, None], state.systems["rho"][:, :-1]], dim=1)},
        )


class FIRE(_Optimizer):
    """FIRE (Bitzek et al., Phys. Rev. Lett. 97, 170201 (2006)) as in ASE, with ASE's parameters.

    ``maxstep`` bounds the norm of the whole move of a system, as in ASE.
    """

    name: Literal["fire"] = "fire"
    maxstep: float = Field(0.2, gt=0, description="Å, largest norm of the move of a system, over all its coordinates")
    dt: float = Field(0.1, gt=0, description="initial time step, in units in which masses are 1")
    dtmax: float = Field(1.0, gt=0, description="largest time step")
    n_min: int = Field(5, ge=0, description="steps downhill before the time step grows")
    f_inc: float = Field(1.1, ge=1, description="growth of the time step")
    f_dec: float = Field(0.5, gt=0, le=1, description="factor of the time step after a step uphill")
    a_start: float = Field(0.1, ge=0, le=1, description="initial mixing of velocities with forces")
    f_a: float = Field(0.99, gt=0, le=1, description="factor by which the mixing shrinks")

    def start(self, like: SystemTensors) -> SystemTensors:
        """The state of systems before their first move, with the rows of ``like``."""
        count, device = like.num_systems, like.counts.device
        numbers = {"dtype": torch.float64, "device": device}
        return SystemTensors(
            like.counts,
            {"velocity": torch.zeros(len(like.system_index), 3, **numbers)},  # type: ignore[call-overload]
            {
                "dt": torch.full((count,), self.dt, **numbers),  # type: ignore[call-overload]
                "a": torch.full((count,), self.a_start, **numbers),  # type: ignore[call-overload]
                "downhill": torch.full((count,), -1, device=device),  # steps since the last one uphill; -1: no step yet
            },
        )

    def step(self, state: SystemTensors, positions: Tensor, forces: Tensor) -> tuple[Tensor, SystemTensors]:
        """Moves [R, 3] in Å from positions [R, 3] and forces [R, 3] (float64), and the next state."""
        velocity, dt, a = state.rows["velocity"], state.systems["dt"], state.systems["a"]
        since = state.systems["downhill"]
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
        return move, state.having(rows={"velocity": velocity}, systems={"dt": dt, "a": a, "downhill": since})


Optimizer = Annotated[LBFGS | FIRE, Field(discriminator="name")]
