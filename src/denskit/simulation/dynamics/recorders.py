"""What a running simulation writes down: trajectories (extxyz) and statistics (CSV)."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import ase
import ase.io
import ase.units
import torch
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.simulation.dynamics.integrators import Dynamics, State
from denskit.simulation.structures import atoms_of
from denskit.units import AMU

COLUMNS = (
    "replica", "step", "time_ps", "temperature_K", "potential_eV", "kinetic_eV", "total_eV", "conserved_eV",
    "drift_meV_per_atom",
)  # fmt: skip


def snapshots(state: State, time: float) -> list[ase.Atoms]:
    """The systems as ASE's atoms, with momenta, energies and forces; ``time`` (ps) and the replica in ``info``."""
    momenta = (state.momenta / AMU / ase.units.fs).cpu().numpy()  # ASE: sqrt(amu eV)
    forces, energy = state.forces.cpu().numpy(), state.energy.tolist()
    structures = atoms_of(state.batch)
    start = 0
    for place, atoms in enumerate(structures):
        own = slice(start, start + len(atoms))
        atoms.set_momenta(momenta[own], apply_constraint=False)
        atoms.calc = SinglePointCalculator(atoms, energy=energy[place], forces=forces[own])
        atoms.info |= {"replica": int(state.replicas[place]), "step": state.step, "time_ps": time}
        start += len(atoms)
    return structures


@dataclass(frozen=True)
class TrajectoryWriter:
    """Appends every system to ``trajectory_<replica>.extxyz``: positions as they move, not wrapped into the cell."""

    folder: Path
    timestep: float  # fs

    def __call__(self, state: State) -> None:
        """Write one frame of each system."""
        for atoms in snapshots(state, state.step * self.timestep / 1000):
            path = self.folder / f"trajectory_{atoms.info['replica']:02d}.extxyz"
            ase.io.write(path, atoms, format="extxyz", append=True)


@dataclass(frozen=True)
class StatisticsWriter:
    """Appends a line of each system to ``statistics.csv``."""

    path: Path
    dynamics: Dynamics

    def __call__(self, state: State) -> None:
        """Write one line of each system; the drift is that of the conserved quantity since step 0."""
        conserved = self.dynamics.conserved(state)
        drift = 1000 * (conserved - state.conserved_at_start) / state.batch.n_atoms
        kinetic = state.kinetic
        columns = [state.temperature, state.energy, kinetic, state.energy + kinetic, conserved, drift]
        values = torch.stack(columns, 1).tolist()
        time = state.step * self.dynamics.settings.timestep / 1000
        new = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(COLUMNS)
            for replica, row in zip(state.replicas.tolist(), values, strict=True):
                writer.writerow([replica, state.step, time, *row])
