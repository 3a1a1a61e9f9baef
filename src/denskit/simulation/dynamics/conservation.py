"""Energy conservation of simulations without a thermostat."""

from __future__ import annotations

import numpy as np
import torch

from denskit.batch import Batch
from denskit.simulation.dynamics.integrators import Dynamics
from denskit.simulation.dynamics.settings import DynamicsSettings
from denskit.simulation.potential import EnergyAndForces


def energy_drift(time: np.ndarray, energy: np.ndarray, n_atoms: int) -> float:
    """Drift of the total energy (eV per atom and ps): the slope of a fitted line.

    time: [T] ps.  energy: [T] eV.  Raises ValueError for fewer than two energies.
    """
    if len(time) < 2:
        raise ValueError(f"a drift needs two energies or more, found {len(time)}")
    centred = time - time.mean()
    return float(centred @ (energy - energy.mean()) / (centred @ centred)) / n_atoms


def nve_score(time: np.ndarray, energy: np.ndarray, kinetic: np.ndarray) -> float:
    """MLIPAudit's measure: fitted drift of the total energy over the whole time, in standard deviations of the kinetic.

    time: [T] ps.  energy, kinetic: [T] eV.  Values far below 1 vanish in the thermal fluctuation.
    """
    span = float(time[-1] - time[0])
    return abs(energy_drift(time, energy, 1)) * span / float(np.std(kinetic))


def nve_drift(potential: EnergyAndForces, batch: Batch, settings: DynamicsSettings, steps: int) -> np.ndarray:
    """Energy drift [B] (eV/atom/ps) in a short simulation without a thermostat, otherwise with the same settings.

    Raises BrokenSystems.
    """
    free = Dynamics(potential, settings.model_copy(update={"ensemble": "nve"}))
    state = free.start(batch)
    energies = [free.conserved(state)]
    for _ in range(steps):
        state = free.step(state)
        energies.append(free.conserved(state))
    time = np.arange(steps + 1) * settings.timestep / 1000
    histories = torch.stack(energies, 1).cpu().numpy()  # [B, steps + 1]
    return np.array([energy_drift(time, e, n) for e, n in zip(histories, batch.n_atoms.tolist(), strict=True)])
