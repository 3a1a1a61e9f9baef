"""Thermostats for many systems at once: the Nosé-Hoover chain and Langevin dynamics."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from denskit.random import Use, normal
from denskit.units import BOLTZMANN

NOISE_BLOCK = 32  # steps of noise drawn at once: a draw of any size costs a hundred small operations


@dataclass(frozen=True, kw_only=True)
class NoseHooverChain:
    """Nosé-Hoover chain (Martyna, Tuckerman, Tobias and Klein, Mol. Phys. 87, 1117 (1996)), one for each system.

    Masses of the chain are Q_0 = f kT tau^2 and Q_j = kT tau^2, with f the degrees of freedom.  Applied for half a
    step before and after a velocity-Verlet step, as in section 4 there, by one Trotter step (n_c = n_ys = 1).
    """

    freedom: Tensor  # [B] degrees of freedom
    temperature: float  # K
    relaxation_time: float  # fs, tau
    links: int  # length of the chain

    def start(self) -> tuple[Tensor, Tensor]:
        """Positions [B, links] (dimensionless) and velocities [B, links] (1/fs) of a chain at rest."""
        zeros = self.freedom.new_zeros(len(self.freedom), self.links)
        return zeros, zeros

    def half_step(
        self, kinetic: Tensor, positions: Tensor, velocities: Tensor, timestep: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Half a time step (fs) of the chain.

        Args:
            kinetic: [B] eV, before.
            positions: [B, links].
            velocities: [B, links] 1/fs.
            timestep: fs.

        Returns:
            The factors [B] that scale all momenta, and the chain's new positions and velocities.
        """
        step = timestep / 2
        v = list(velocities.unbind(1))
        for j in reversed(range(self.links)):
            v[j] = self._push(v, j, kinetic, step / 2)
        factor = torch.exp(-step * v[0])
        kinetic = kinetic * factor.square()
        positions = positions + step * torch.stack(v, 1)
        for j in range(self.links):
            v[j] = self._push(v, j, kinetic, step / 2)
        return factor, positions, torch.stack(v, 1)

    def _push(self, v: list[Tensor], j: int, kinetic: Tensor, step: float) -> Tensor:
        """The velocity of link j after ``step`` (fs) of its force and the drag of the next link."""
        heat = BOLTZMANN * self.temperature
        inertia = heat * self.relaxation_time**2
        if j == 0:
            force = (2 * kinetic / self.freedom - heat) / inertia
        elif j == 1:
            force = (self.freedom * inertia * v[0].square() - heat) / inertia
        else:
            force = v[j - 1].square() - heat / inertia
        if j + 1 == self.links:
            return v[j] + step * force
        drag = torch.exp(-step / 2 * v[j + 1])
        return (v[j] * drag + step * force) * drag

    def energy(self, positions: Tensor, velocities: Tensor) -> Tensor:
        """Energy [B] (eV) of the chain; the sum with the energy of the system is conserved."""
        heat = BOLTZMANN * self.temperature
        weight = torch.ones_like(velocities)
        weight[:, 0] = self.freedom
        stored = weight * (heat * self.relaxation_time**2 * velocities.square() / 2 + heat * positions)
        return stored.sum(1)


class LangevinBath:
    """The O step of BAOAB (Leimkuhler and Matthews, Appl. Math. Res. Express 2013, 34): exact friction and noise.

    p becomes c p + sqrt((1 - c^2) m kT) R with c = exp(-friction * timestep).  The noise R is a function of the
    system's key, the step, the atom and the component, so a simulation can be continued, split and batched freely.
    """

    def __init__(self, *, temperature: float, friction: float, keys: Tensor, atoms: Tensor, masses: Tensor) -> None:
        self.friction = friction  # 1/fs
        self.spread = (masses * BOLTZMANN * temperature).sqrt()[:, None]  # [N, 1] eV fs/Å
        self.keys = keys[:, None]  # [N, 1] of each atom's system
        self.atoms = atoms[:, None]  # [N, 1] number inside the system
        self._block = -1
        self._noise = masses

    def kick(self, momenta: Tensor, step: int, timestep: float) -> Tensor:
        """Momenta [N, 3] after friction and noise of a time step (fs); ``step`` is its number."""
        keep = torch.exp(torch.tensor(-self.friction * timestep, dtype=torch.float64))
        blend = (1 - keep.square()).sqrt()
        return float(keep) * momenta + float(blend) * self.spread * self._noise_of(step)

    def _noise_of(self, step: int) -> Tensor:
        block = step // NOISE_BLOCK
        if block != self._block:
            steps = torch.arange(block * NOISE_BLOCK, (block + 1) * NOISE_BLOCK, device=self.keys.device)
            component = torch.arange(3, device=self.keys.device)
            self._noise = normal(self.keys, Use.LANGEVIN, steps[:, None, None], self.atoms, component)
            self._block = block
        return self._noise[step % NOISE_BLOCK]
