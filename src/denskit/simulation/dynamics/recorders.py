"""Recorders of a simulation: trajectories (extxyz) and statistics (CSV)."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ase
import ase.io
import ase.units
import torch
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.data.base import ELECTRONS
from denskit.files import writing
from denskit.simulation.dynamics.committee import spread_of
from denskit.simulation.dynamics.integrators import Dynamics, State
from denskit.simulation.dynamics.momenta import masses_of
from denskit.simulation.structures import atoms_of
from denskit.units import AMU, GPA

COLUMNS = (
    "replica", "step", "time_ps", "temperature_K", "potential_eV", "kinetic_eV", "total_eV", "conserved_eV",
    "drift_meV_per_atom",
)  # fmt: skip
CELL_COLUMNS = ("volume_A3", "pressure_GPa")  # of constant pressure
_BY_ATOM = ("initial_charges", "initial_magmoms")
SPREAD_COLUMNS = ("energy_std_eV", "max_forces_std_eV_per_A")  # of committees


def snapshots(state: State, time: float, starts: Sequence[ase.Atoms] = ()) -> list[ase.Atoms]:
    """The systems as ASE atoms with momenta, energy, forces, perhaps stress; ``time`` (ps) and replica in ``info``.

    Charges and spins are those of the structure of ``starts`` that a replica began from: labels of a frame are to be
    those of the same state.  Masses unlike the standard ones go with them.  Of a committee, also ``energy_std`` (eV)
    and ``max_forces_std`` (eV/Å) in ``info``, ``forces_std`` in ``arrays``.
    """
    momenta = (state.momenta / AMU / ase.units.fs).cpu().numpy()  # ASE: sqrt(amu eV)
    forces, energy = state.forces.cpu().numpy(), state.energy.tolist()
    structures = atoms_of(state.batch)
    spread = [] if state.forces_std is None else spread_of(state).tolist()
    standard, start = masses_of(state.batch), 0
    for place, atoms in enumerate(structures):
        own = slice(start, start + len(atoms))
        if not torch.equal(state.masses[own], standard[own]):
            atoms.set_masses((state.masses[own] / AMU).cpu().numpy())
        atoms.set_momenta(momenta[own], apply_constraint=False)
        stress = None if state.stress is None else state.stress[place].cpu().numpy()
        atoms.calc = SinglePointCalculator(atoms, energy=energy[place], forces=forces[own], stress=stress)
        atoms.info |= {"replica": int(state.replicas[place]), "step": state.step, "time_ps": time}
        if state.energy_std is not None and state.forces_std is not None:
            atoms.arrays["forces_std"] = state.forces_std[own].cpu().numpy()
            atoms.info |= {"energy_std": float(state.energy_std[place]), "max_forces_std": float(spread[place])}
        if starts:
            _carry_electrons(starts[atoms.info["replica"]], atoms)
        start += len(atoms)
    return structures


def _carry_electrons(given: ase.Atoms, atoms: ase.Atoms) -> None:
    """Give ``atoms`` the total and initial charges and spins of a structure."""
    atoms.info |= {name: given.info[name] for name in ELECTRONS if name in given.info}
    for name in (name for name in _BY_ATOM if given.has(name)):
        atoms.set_array(name, given.get_array(name))


@dataclass
class TrajectoryWriter:
    """Appends every system to ``trajectory_<replica>.extxyz``; positions are not wrapped into the cell."""

    folder: Path
    timestep: float  # fs
    starts: Sequence[ase.Atoms] = ()  # structures that the replicas began from
    last: int | None = None  # step that was written last

    def __call__(self, state: State) -> None:
        """Write one frame of each system."""
        for atoms in snapshots(state, state.step * self.timestep / 1000, self.starts):
            path = self.folder / f"trajectory_{atoms.info['replica']:02d}.extxyz"
            with writing(path):
                ase.io.write(path, atoms, format="extxyz", append=True)
        self.last = state.step


class UncertainWriter:
    """Appends the systems on which the models of a committee disagree by more than ``limit`` to an extxyz file.

    Frames in the file, of an interrupted run, count.  ``timestep`` and ``apart``, the least time between two frames of
    a replica, are in fs, ``limit`` in eV/Å; ``most`` frames are written in all; replicas began from ``starts``.
    """

    def __init__(
        self, path: Path, timestep: float, limit: float, *, apart: float, most: int, starts: Sequence[ase.Atoms] = ()
    ) -> None:
        self.path, self.timestep, self.limit, self.most, self.starts = path, timestep, limit, most, starts
        self.stride = apart / timestep  # steps
        kept = list(ase.io.iread(path, index=":")) if path.exists() else []
        self.count = len(kept)
        self.last: dict[int, int] = {atoms.info["replica"]: atoms.info["step"] for atoms in kept}

    def __call__(self, state: State) -> None:
        """Write one frame of each such system whose last one is long enough ago."""
        beyond = (spread_of(state) > self.limit).tolist()
        due = [
            wild and state.step - self.last.get(replica, -math.inf) >= self.stride
            for wild, replica in zip(beyond, state.replicas.tolist(), strict=True)
        ]
        if self.count >= self.most or not any(due):
            return
        keep = torch.tensor(due, device=state.replicas.device)
        time = state.step * self.timestep / 1000
        found = snapshots(state.select(keep), time, self.starts)[: self.most - self.count]
        with writing(self.path):
            ase.io.write(self.path, found, format="extxyz", append=True)
        self.count += len(found)
        self.last |= {atoms.info["replica"]: state.step for atoms in found}


@dataclass(frozen=True)
class StatisticsWriter:
    """Appends a line for each system to ``statistics.csv``."""

    path: Path
    dynamics: Dynamics

    def __call__(self, state: State) -> None:
        """Write one line for each system; the drift is that of the conserved quantity since step 0."""
        conserved = self.dynamics.conserved(state)
        drift = 1000 * (conserved - state.conserved_at_start) / state.batch.n_atoms
        kinetic = state.kinetic
        columns = [state.temperature, state.energy, kinetic, state.energy + kinetic, conserved, drift]
        names = [*COLUMNS]
        if self.dynamics.settings.ensemble == "npt":
            columns += [state.volume, state.pressure / GPA]
            names += CELL_COLUMNS
        if state.energy_std is not None:
            columns += [state.energy_std, spread_of(state)]
            names += SPREAD_COLUMNS
        values = torch.stack(columns, 1).tolist()
        time = state.step * self.dynamics.settings.timestep / 1000
        new = not self.path.exists()
        with writing(self.path), self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(names)
            for replica, row in zip(state.replicas.tolist(), values, strict=True):
                writer.writerow([replica, state.step, time, *row])
