"""Thermostats for many systems at once: the Nosé-Hoover chain and Langevin dynamics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from denskit.random import Use, normal
from denskit.simulation.dynamics.settings import DynamicsSettings
from denskit.units import BOLTZMANN

NOISE_BLOCK = 32  # steps of noise drawn at once: a draw of any size costs a hundred small operations


@dataclass(frozen=True)
class NoseHooverChain:
    """Nosé-Hoover chain (Martyna, Tuckerman, Tobias and Klein, Mol. Phys. 87, 1117 (1996)), one for each system.

    Masses of the chain are Q_0 = f kT tau^2 and Q_j = kT tau^2, with f the degrees of freedom.  Applied for half a
    step before and after a velocity-Verlet step, as in section 4 there, by one Trotter step (n_c = n_ys = 1).
    """

    settings: DynamicsSettings
    freedom: Tensor  # [B] degrees of freedom

    def half_step(self, kinetic: Tensor, positions: Tensor, velocities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Half a time step of the chain: factors [B] that scale all momenta, and its positions and velocities.

        ``kinetic`` [B] eV, before; ``positions`` [B, links]; ``velocities`` [B, links] 1/fs.
        """
        step, links = self.settings.timestep / 2, self.settings.links
        v = list(velocities.unbind(1))
        for j in reversed(range(links)):
            v[j] = self._push(v, j, kinetic, step / 2)
        factor = torch.exp(-step * v[0])
        kinetic = kinetic * factor.square()
        positions = positions + step * torch.stack(v, 1)
        for j in range(links):
            v[j] = self._push(v, j, kinetic, step / 2)
        return factor, positions, torch.stack(v, 1)

    def _push(self, v: list[Tensor], j: int, kinetic: Tensor, step: float) -> Tensor:
        """The velocity of link j after ``step`` (fs) of its force and the drag of the next link."""
        heat = BOLTZMANN * self.settings.temperature
        inertia = heat * self.settings.relaxation_time**2
        if j == 0:
            force = (2 * kinetic / self.freedom - heat) / inertia
        elif j == 1:
            force = (self.freedom * inertia * v[0].square() - heat) / inertia
        else:
            force = v[j - 1].square() - heat / inertia
        if j + 1 == len(v):
            return v[j] + step * force
        drag = torch.exp(-step / 2 * v[j + 1])
        return (v[j] * drag + step * force) * drag

    def energy(self, positions: Tensor, velocities: Tensor) -> Tensor:
        """Energy [B] (eV) of the chain; the sum with the energy of the system is conserved."""
        heat = BOLTZMANN * self.settings.temperature
        weight = torch.ones_like(velocities)
        weight[:, 0] = self.freedom
        stored = weight * (heat * self.settings.relaxation_time**2 * velocities.square() / 2 + heat * positions)
        return stored.sum(1)


class NoiseBlocks:
    """Noise by step, drawn for ``NOISE_BLOCK`` steps at once.

    draw: the noise [T, ...] of steps [T] int64.
    """

    def __init__(self, draw: Callable[[Tensor], Tensor], device: torch.device) -> None:
        self.draw = draw
        self.device = device
        self._block = -1
        self._noise: Tensor | None = None

    def at(self, step: int) -> Tensor:
        """The noise of a step."""
        block = step // NOISE_BLOCK
        if self._noise is None or block != self._block:
            self._noise = self.draw(torch.arange(block * NOISE_BLOCK, (block + 1) * NOISE_BLOCK, device=self.device))
            self._block = block
        return self._noise[step % NOISE_BLOCK]


class LangevinBath:
    """The O step of BAOAB (Leimkuhler and Matthews, Appl. Math. Res. Express 2013, 34): exact friction and noise.

    p becomes c p + sqrt((1 - c^2) m kT) R with c = exp(-friction * timestep).  The noise R is a function of the
    system's key, the step, the atom and the component, so a simulation can be continued, split and batched freely.
    """

    def __init__(self, settings: DynamicsSettings, keys: Tensor, atoms: Tensor, masses: Tensor) -> None:
        self.settings = settings
        self.spread = (masses * BOLTZMANN * settings.temperature).sqrt()[:, None]  # [N, 1] eV fs/Å
        self.keys = keys[:, None]  # [N, 1] of each atom's system
        self.atoms = atoms[:, None]  # [N, 1] number inside the system
        component = torch.arange(3, device=keys.device)
        self._noise = NoiseBlocks(
            lambda steps: normal(self.keys, Use.LANGEVIN, steps[:, None, None], self.atoms, component), keys.device
        )

    def kick(self, momenta: Tensor, step: int) -> Tensor:
        """Momenta [N, 3] after friction and noise of time step number ``step``."""
        keep = torch.exp(torch.tensor(-self.settings.friction * self.settings.timestep, dtype=torch.float64))
        blend = (1 - keep.square()).sqrt()
        return float(keep) * momenta + float(blend) * self.spread * self._noise.at(step)
