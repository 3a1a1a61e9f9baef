"""Labels and predictions of structures, side by side, as arrays; kept beside the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

import ase
import numpy as np
import torch

from denskit.batch import System
from denskit.data.base import Source, collate, evenly
from denskit.evaluation.evaluate import Kept, load_predictor
from denskit.evaluation.judged_structures import Models, source_of
from denskit.evaluation.novelty import radial_novelty
from denskit.files import atomic_write
from denskit.models.prediction import Predictor, predict_each
from denskit.reading.arrays import read_npz
from denskit.tasks.energy_shift import EnergyShift
from denskit.tasks.metrics import Metrics
from denskit.training.reading_settings import Reading

Pair = tuple[np.ndarray, np.ndarray]  # reference, predicted

MOST, KNOWN = 1000, 200  # structures: judged, and trained on that these are compared with


@dataclass(frozen=True, kw_only=True)
class Judged:
    """B structures of N atoms; NaN where a label or a prediction is absent."""

    index: np.ndarray  # [B] position in the file
    n_atoms: np.ndarray  # [B]
    numbers: np.ndarray  # [N] atomic numbers
    positions: np.ndarray  # [N, 3] Å
    cell: np.ndarray  # [B, 3, 3] Å
    pbc: np.ndarray  # [B, 3] bool
    free: np.ndarray  # [N] bool
    baseline: np.ndarray  # [B] eV, energy of the atoms alone, by the model's references
    energies: np.ndarray  # [2, B] eV: reference, predicted
    all_forces: np.ndarray  # [2, N, 3] eV/Å: reference, predicted
    stresses: np.ndarray  # [2, B, 3, 3] eV/Å^3: reference, predicted
    novelty: np.ndarray  # [N], see denskit.evaluation.novelty; NaN where it was not asked for
    of: np.ndarray  # [] structures of the source, of which these are an even sample
    part: np.ndarray  # [] text: "test" or "validation", the split of the source

    def __len__(self) -> int:
        return len(self.n_atoms)

    @cached_property
    def frame(self) -> np.ndarray:
        """Structure of each atom [N]."""
        return np.repeat(np.arange(len(self)), self.n_atoms)

    @cached_property
    def scored(self) -> np.ndarray:
        """Free atoms with a force label [N] bool."""
        return self.free & np.isfinite(self.all_forces).all((0, 2))

    @property
    def energy(self) -> Pair | None:
        """Energies (eV) of the structures with a label."""
        return _pair(self.energies, np.isfinite(self.energies).all(0))

    @property
    def forces(self) -> Pair | None:
        """Forces [n, 3] (eV/Å) of the free atoms with a label."""
        return _pair(self.all_forces, self.scored)

    @property
    def stress(self) -> Pair | None:
        """Stresses [n, 3, 3] (eV/Å^3) of the structures with a label, where the model predicts stress."""
        return _pair(self.stresses, np.isfinite(self.stresses).all((0, 2, 3)))

    @cached_property
    def force_error(self) -> np.ndarray:
        """Length of the force error of each atom [N], eV/Å; NaN where it is not scored."""
        error = np.linalg.norm(self.all_forces[1] - self.all_forces[0], axis=-1)
        return np.where(self.scored, error, np.nan)

    @cached_property
    def frame_error(self) -> np.ndarray:
        """Mean absolute error of the force components of each structure [B], eV/Å; NaN without force labels."""
        absolute = np.abs(self.all_forces[1] - self.all_forces[0]).mean(-1)
        count = np.bincount(self.frame[self.scored], minlength=len(self))
        total = np.bincount(self.frame[self.scored], absolute[self.scored], minlength=len(self))
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)

    def system(self, place: int) -> System:
        """One structure with its labels."""
        atoms, energy, forces, stress = self.atoms_of(place), self.energies[0], self.all_forces[0], self.stresses[0]
        return System(
            positions=self.positions[atoms],
            atomic_numbers=self.numbers[atoms],
            cell=self.cell[place],
            pbc=self.pbc[place],
            fixed=~self.free[atoms],
            tags=np.zeros(int(self.n_atoms[place]), dtype=np.int64),
            energy=float(energy[place]) if np.isfinite(energy[place]) else None,
            forces=forces[atoms] if np.isfinite(forces[atoms]).all() else None,
            stress=stress[place] if np.isfinite(self.stresses[:, place]).all() else None,
            index=int(self.index[place]),
        )

    @cached_property
    def errors(self) -> dict[str, float]:
        """Errors of the predictions, named with their units as those of ``denskit evaluate``."""
        batch, targets = collate([self.system(place) for place in range(len(self))], torch.float64)
        predicted = {"energy": self.energies[1], "forces": self.all_forces[1], "stress": self.stresses[1]}
        tensors = {name: torch.from_numpy(values) for name, values in predicted.items()}
        metrics, shift = Metrics(), EnergyShift()
        metrics.update(tensors, batch, targets, torch.from_numpy(self.baseline))
        shift.update(tensors["energy"], batch, targets)
        return metrics.summary() | shift.summary()

    def atoms_of(self, place: int) -> slice:
        """The rows of one structure's atoms."""
        end = int(self.n_atoms[: place + 1].sum())
        return slice(end - int(self.n_atoms[place]), end)

    def formula(self, place: int) -> str:
        """``C9H8O4``."""
        return ase.Atoms(self.numbers[self.atoms_of(place)]).get_chemical_formula()

    def take(self, places: np.ndarray) -> Self:
        """The structures at ``places``, in that order."""
        atoms = np.concatenate([np.arange(len(self.frame))[self.atoms_of(place)] for place in places])
        of_atoms = {name: getattr(self, name)[atoms] for name in ("numbers", "positions", "free", "novelty")}
        of_frames = {name: getattr(self, name)[places] for name in ("index", "n_atoms", "cell", "pbc", "baseline")}
        sides = {name: getattr(self, name)[:, places] for name in ("energies", "stresses")}
        return replace(self, **of_atoms, **of_frames, **sides, all_forces=self.all_forces[:, atoms])

    def save(self, path: Path, key: str) -> None:
        """Write as npz under a ``key`` that names model and structures."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        with atomic_write(path) as temporary:
            np.savez_compressed(temporary, key=np.array(key), **arrays)

    @classmethod
    def load(cls, path: Path, key: str) -> Self | None:
        """What :meth:`save` wrote under this key; None for another key or no file."""
        arrays = read_npz(path) if path.is_file() else {}
        if str(arrays.pop("key", "")) != key or set(arrays) != {field.name for field in fields(cls)}:
            return None
        return cls(**arrays)


def judge(
    force_field: Predictor,
    source: Source,
    trained: Source | None = None,
    *,
    part: Literal["test", "validation"] = "test",
) -> Judged:
    """Predict at most ``MOST`` evenly spaced structures of a source; novelty is relative to ``trained``.

    Raises ValueError as :func:`denskit.models.prediction.predict_each`.
    """
    sample = evenly(source, MOST).in_file_order()
    systems: list[System] = []
    energies, forces, stresses = [], [], []
    absent = np.full((3, 3), np.nan)
    for system, found in predict_each(force_field, sample, size=32):
        systems.append(system)
        energies.append((np.nan if system.energy is None else system.energy, found["energy"]))
        label = np.full_like(system.positions, np.nan) if system.forces is None else system.forces
        forces.append((label, found["forces"]))
        stresses.append((absent if system.stress is None else system.stress, found.get("stress", absent)))
    new = (
        radial_novelty(systems, list(evenly(trained, KNOWN)))
        if trained is not None
        else np.full(sum(map(len, systems)), np.nan)
    )
    return Judged(
        index=np.array([system.index for system in systems]),
        n_atoms=np.array([len(system) for system in systems]),
        numbers=np.concatenate([system.atomic_numbers for system in systems]),
        positions=np.concatenate([system.positions for system in systems]),
        cell=np.stack([system.cell for system in systems]),
        pbc=np.stack([system.pbc for system in systems]),
        free=~np.concatenate([system.fixed for system in systems]),
        baseline=_baseline(force_field, systems),
        energies=np.array(energies).T,
        all_forces=np.stack([np.concatenate(side) for side in zip(*forces, strict=True)]),
        stresses=np.stack([np.stack(side) for side in zip(*stresses, strict=True)]),
        novelty=new,
        of=np.array(len(source)),
        part=np.array(part),
    )


def predictions_of(
    model: Models,
    file: str | Path | None = None,
    *,
    checkpoint: Kept | None = None,
    device: str = "auto",
    data: Reading = None,
) -> Judged:
    """Predict at most 1000 structures of ``file``, else of a run's test split; ``data`` as :func:`evaluate` takes it.

    Raises FileNotFoundError where there is no model, ValueError where a run has no test split.
    """
    return judge(load_predictor(model, checkpoint, device), source_of(model, file, "test", data))


def _baseline(force_field: Predictor, systems: Sequence[System]) -> np.ndarray:
    device = next(force_field.parameters()).device
    with torch.no_grad():
        batch = collate(systems)[0].to(device)
        return force_field.scaling.reference_energy(batch).cpu().numpy()


def _pair(values: np.ndarray, there: np.ndarray) -> Pair | None:
    return (values[0][there], values[1][there]) if there.any() else None
