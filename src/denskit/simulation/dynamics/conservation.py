"""How well a simulation without a thermostat conserves its energy."""

from __future__ import annotations

import numpy as np


def energy_drift(time: np.ndarray, energy: np.ndarray, n_atoms: int) -> float:
    """Drift of the total energy in eV per atom and ps: the slope of the line fitted to it.

    time: [T] ps.  energy: [T] eV.  Raises ValueError for fewer than two frames.
    """
    if len(time) < 2:
        raise ValueError(f"a drift needs two frames or more, found {len(time)}")
    centred = time - time.mean()
    return float(centred @ (energy - energy.mean()) / (centred @ centred)) / n_atoms


def nve_score(time: np.ndarray, energy: np.ndarray, kinetic: np.ndarray) -> float:
    """Fitted drift of the total energy [T] (eV) over the whole time [T] (ps), in units of the standard deviation of the
    kinetic energy [T] (eV): MLIPAudit's measure.  Far below 1 the drift drowns in the ordinary fluctuation."""
    span = float(time[-1] - time[0])
    return abs(energy_drift(time, energy, 1)) * span / float(np.std(kinetic))
