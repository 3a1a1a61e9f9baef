"""A barostat for many systems at once: isotropic stochastic cell rescaling."""

from __future__ import annotations

import torch
from torch import Tensor

from denskit.batch import Batch
from denskit.random import Use, normal
from denskit.simulation.dynamics.settings import DynamicsSettings
from denskit.simulation.dynamics.thermostats import NoiseBlocks
from denskit.simulation.potential import EnergyAndForces
from denskit.simulation.structures import scaled
from denskit.units import BOLTZMANN, GPA

PROBE = 0.01  # relative change of the volume over which the bulk modulus is measured
SOFTEST = 1.0 * GPA  # eV/Å^3: a structure that seems softer, or is unstable, is taken as this stiff


class StochasticCell:
    """Stochastic cell rescaling of Bernetti and Bussi, J. Chem. Phys. 153, 114107 (2020), for x = sqrt(volume):

        dx = x / (2 B tau) (P - P0 + kT / 2V) dt + sqrt(kT / (2 B tau)) dW

    P is the instantaneous pressure, P0 the target, B the bulk modulus (one over their compressibility): it sets the
    rate of the cell's relaxation, 1 / tau, and has no influence on the distribution.  The noise of x does not depend on
    x.  It is a function of the system's key and the step.
    """

    def __init__(self, settings: DynamicsSettings, keys: Tensor) -> None:
        self.settings = settings
        self._noise = NoiseBlocks(lambda steps: normal(keys, Use.BAROSTAT, steps[:, None], 0), keys.device)

    def factor(self, volume: Tensor, pressure: Tensor, modulus: Tensor, step: int) -> Tensor:
        """The factor [B] of all lengths in time step number ``step``.

        volume: [B] Å^3.  pressure, modulus: [B] eV/Å^3.
        """
        heat = BOLTZMANN * self.settings.temperature
        rate = self.settings.timestep / (2 * modulus * self.settings.pressure_time)  # Å^3/eV
        root = volume.sqrt()
        pushed = rate * root * (pressure - self.settings.pressure * GPA + heat / (2 * volume))
        moved = root + pushed + (rate * heat).sqrt() * self._noise.at(step)
        return (moved / root) ** (2 / 3)


def bulk_modulus(potential: EnergyAndForces, batch: Batch, temperature: float) -> Tensor:
    """Bulk moduli [B] (eV/Å^3) by scaling structures as a whole, with the share of an ideal gas at ``temperature`` (K).

    Atoms do not relax, so it is the stiffness that the barostat meets in its first steps.
    """
    pressures = []
    for change in (-PROBE / 2, PROBE / 2):
        factor = torch.full_like(batch.cell[:, 0, 0], (1 + change) ** (1 / 3))
        stress = potential(scaled(batch, factor)).stress
        assert stress is not None, "the potential was made with stress"
        pressures.append(-stress.diagonal(dim1=1, dim2=2).mean(1))
    gas = batch.n_atoms * BOLTZMANN * temperature / batch.cell.det().abs()
    return ((pressures[0] - pressures[1]) / PROBE + gas).clamp(min=SOFTEST)
