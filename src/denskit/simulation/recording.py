"""What a simulation leaves on disk: trajectories (extxyz), statistics (CSV) and a restart file (safetensors)."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import ase
import ase.io
import ase.units
import torch
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.simulation.dynamics import Dynamics, DynamicsSettings, State
from denskit.simulation.saving import load_state, save_state
from denskit.simulation.simulate import Failure
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


@dataclass(frozen=True, kw_only=True)
class Restart:
    """All that a simulation needs to go on, bit for bit."""

    state: State
    settings: DynamicsSettings
    failures: tuple[Failure, ...] = ()
    files: dict[str, int] = field(default_factory=dict)  # bytes of the files written so far, by name

    def save(self, path: Path) -> None:
        """Write, whole or not at all."""
        notes = {
            "settings": self.settings.model_dump(mode="json"),
            "failures": [asdict(failure) for failure in self.failures],
            "files": self.files,
        }
        save_state(path, self.state, notes)

    @classmethod
    def load(cls, path: Path, device: str | torch.device = "cpu") -> Restart:
        """Read a restart file; raises FileNotFoundError where there is none, ValueError where it cannot be used."""
        state, notes, _ = load_state(path, device)
        try:
            settings = DynamicsSettings.model_validate(notes["settings"])
            failures = tuple(Failure(**failure) for failure in notes["failures"])
            return cls(state=state, settings=settings, failures=failures, files=notes["files"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no restart file of this Denskit ({error!r})") from None

    def cut_files(self, folder: Path) -> None:
        """Cut what was written after the restart file off the ends of the files.

        Raises ValueError for a file that is shorter than it was, or gone.
        """
        for name, size in self.files.items():
            path = folder / name
            found = path.stat().st_size if path.is_file() else 0
            if found < size:
                raise ValueError(f"{path} has {found} bytes, but had {size} when the restart file was written")
            os.truncate(path, size)


def sizes_of(paths: Iterable[Path]) -> dict[str, int]:
    """Bytes of files, by name."""
    return {path.name: path.stat().st_size for path in sorted(paths)}
