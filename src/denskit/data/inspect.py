"""What a file of structures contains, and what looks wrong with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols

from denskit.data.config import DataConfig
from denskit.data.frames import LABELS, Frames, check, numbers
from denskit.data.opening import open_unchecked
from denskit.data.records import Records
from denskit.geometry.neighbors import nearest_distance

LOOK = 2.0  # Å: atoms closer than this are looked for
CUTOFF = 5.0  # Å: frames in which a model with this cutoff would find no neighbours are wrong
CLOSE = 0.6  # Å: shorter than any bond (H2 is 0.74)
LARGE_RMS = 8.0  # eV/Å: molecules at 500 K have about 1; 1 eV/Å is 23 kcal/mol/Å
LARGE_FORCE = 50.0  # eV/Å
NET_FORCE = 0.05  # of the forces' rms, per atom
OUTLIER = 8.0  # robust standard deviations
SHOWN = 5  # records that cannot be read, named one by one
SAMPLE = 1000  # frames looked at where all would take long


@dataclass(kw_only=True)
class Inspection:
    """A file's content in eV, Å, eV/Å and eV/Å^3; ranges are (smallest, mean, largest)."""

    file: str
    frames: int
    notes: list[str]  # units and fields
    elements: dict[str, int]  # atoms of each element
    compositions: int
    atoms: tuple[float, float, float]  # per frame
    periodicity: dict[str, int]  # frames by periodic directions
    fixed_atoms: int
    labels: dict[str, int]  # frames that have each
    energy: tuple[float, float, float] | None = None
    energy_per_atom: tuple[float, float, float] | None = None
    energy_std: float | None = None  # within compositions
    force_rms: float | None = None  # per component
    force_max: float | None = None  # norm
    stress_rms: float | None = None
    closest: float | None = None  # Å; None: beyond LOOK
    duplicates: int = 0  # frames whose geometry occurred before, to 1e-6 Å
    wrong: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def inspect_file(path: str | Path, config: DataConfig | None = None) -> Inspection:
    """Read a file and describe it; what is wrong with its frames is listed, not raised.

    Raises FileNotFoundError, and ValueError for a file that cannot be read at all.
    """
    source, notes = open_unchecked(path, config or DataConfig())
    if isinstance(source, Records):
        frames, wrong = _sampled(source, notes)
    else:
        frames, wrong = source, []
    symbols, counts = np.unique(frames.atomic_numbers, return_counts=True)
    compositions = _compositions(frames)
    found = Inspection(
        file=str(path),
        frames=len(source),
        notes=notes,
        wrong=wrong,
        elements={_symbol(z): int(count) for z, count in zip(symbols, counts, strict=True)},
        compositions=len(np.unique(compositions)),
        atoms=_range(frames.n_atoms),
        periodicity=dict(
            Counter("".join("xyz"[axis] for axis in range(3) if row[axis]) or "none" for row in frames.pbc)
        ),
        fixed_atoms=int(frames.fixed.sum()),
        labels={label: int(frames.has[label].sum()) for label in LABELS},
    )
    try:
        frames, _ = check(frames, required=(), missing="mask")
    except ValueError as error:
        found.wrong.append(str(error))
        return found
    _missing(frames, found)
    _energies(frames, compositions, found)
    _forces(frames, found)
    if frames.has["stress"].any():
        found.stress_rms = float(np.sqrt((frames.stress[frames.has["stress"]] ** 2).mean()))
    _geometry(frames, compositions, found)
    return found


def _sampled(source: Records, notes: list[str]) -> tuple[Frames, list[str]]:
    """Evenly spaced records of shards in memory, and what is wrong with those that cannot be read.

    Raises ValueError where none can be read.
    """
    systems, wrong = [], []
    for index in np.unique(np.linspace(0, len(source) - 1, min(SAMPLE, len(source)), dtype=np.int64)):
        try:
            systems.append(source[int(index)])
        except ValueError as error:
            wrong.append(str(error))
    if not systems:
        raise ValueError(wrong[0])
    if len(wrong) > SHOWN:
        wrong = [*wrong[:SHOWN], f"{len(wrong)} records in all that cannot be used"]
    if len(systems) < len(source):
        notes.append(
            f"looked at {len(systems)} evenly spaced records of {len(source)}; the numbers below are theirs, and "
            "frames are counted among them"
        )
    return Frames.from_systems(systems, name=source.name), wrong


def _symbol(number: int) -> str:
    return chemical_symbols[number] if 0 <= number < len(chemical_symbols) else f"Z={number}"


def _range(values: np.ndarray) -> tuple[float, float, float]:
    return float(values.min()), float(values.mean()), float(values.max())


def _compositions(frames: Frames) -> np.ndarray:
    """A number [B] that is the same for frames with the same atomic numbers in the same order."""
    names = [frames.atomic_numbers[a:b].tobytes() for a, b in zip(frames.starts, frames.starts[1:], strict=False)]
    return np.unique(np.array(names, dtype=object), return_inverse=True)[1]


def _missing(frames: Frames, found: Inspection) -> None:
    for label, before in found.labels.items():
        bad = before - int(frames.has[label].sum())
        if bad:
            found.wrong.append(f"{label} is NaN or infinite in {bad} frames")
        if label != "stress" and before < len(frames):
            found.wrong.append(f"{label} is absent in {len(frames) - before} frames (fields: {', '.join(frames.keys)})")


def _energies(frames: Frames, compositions: np.ndarray, found: Inspection) -> None:
    has = frames.has["energy"]
    if not has.any():
        return
    energy = frames.energy[has]
    found.energy, found.energy_per_atom = _range(energy), _range(energy / frames.n_atoms[has])
    centred, far = np.zeros(len(energy)), np.zeros(len(energy), dtype=bool)
    for composition in np.unique(compositions[has]):
        same = compositions[has] == composition
        centred[same] = energy[same] - np.median(energy[same])
        spread = 1.4826 * np.median(np.abs(centred[same]))  # of a normal distribution, whatever the outliers
        if same.sum() >= 20 and spread > 0:
            far[same] = np.abs(centred[same]) > OUTLIER * spread
    found.energy_std = float(centred.std())
    if far.any() and frames.fids is None:  # a relaxation starts far from where most of its frames are
        found.wrong.append(f"energies more than {OUTLIER:g} deviations from their composition's: {_where(has, far)}")
    if len(energy) > 1 and np.ptp(energy) == 0:
        found.wrong.append("all energies are equal")


def _forces(frames: Frames, found: Inspection) -> None:
    has = frames.has["forces"]
    if not has.any():
        return
    forces = frames.forces[np.repeat(has, frames.n_atoms)]
    norms = np.linalg.norm(forces, axis=1)
    found.force_rms, found.force_max = float(np.sqrt((forces**2).mean())), float(norms.max())
    if found.force_max == 0:
        found.wrong.append("all forces are zero")
        return
    if found.force_rms > LARGE_RMS:
        found.wrong.append(
            f"the forces' rms is {found.force_rms:.1f} eV/Å, which looks like kcal/mol/Å: say data.units=kcal/mol"
        )
    counts = frames.n_atoms[has]
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    large = np.maximum.reduceat(norms, starts) > LARGE_FORCE
    if large.any():
        found.wrong.append(f"forces above {LARGE_FORCE:g} eV/Å in {_where(has, large)}")
    net = np.linalg.norm(np.add.reduceat(forces, starts), axis=1) / counts
    lost = (net > NET_FORCE * found.force_rms) & (counts > 1)
    if lost.any():
        found.wrong.append(
            f"the forces do not add up to zero in {_where(has, lost)}: some are missing, were set to zero by "
            "constraints, or an outer field acts"
        )


def _geometry(frames: Frames, compositions: np.ndarray, found: Inspection) -> None:
    distances, refused, why = [], [], ""
    for index in np.linspace(0, len(frames) - 1, min(SAMPLE, len(frames)), dtype=int):
        try:
            distances.append(_closest(frames, int(index)))
        except ValueError as error:
            refused.append(int(index))
            why = why or str(error)
    if refused:
        found.wrong.append(f"no neighbours can be found in {numbers(np.array(refused))}: {why}")
    nearest = min(distances, default=np.inf)
    found.closest = nearest if nearest < LOOK else None
    if len(frames) > SAMPLE:
        found.notes.append(f"closest distance of {SAMPLE} evenly spaced frames")
    if found.closest is not None and found.closest < CLOSE:
        found.wrong.append(f"atoms only {found.closest:.3f} Å apart, shorter than any bond")
    again = _duplicates(frames)
    found.duplicates = len(again)
    if len(again):
        found.wrong.append(
            f"geometries that occurred before: {numbers(again)}; a random split may put twins on both sides"
        )
    if len(np.unique(compositions)) == 1 and not frames.pbc.any() and len(frames) >= 20:
        positions = frames.positions.reshape(len(frames), -1)
        steps = positions[1:] - positions[:-1]
        jumps = positions - np.roll(positions, len(frames) // 2, axis=0)
        if (steps**2).mean() < 0.25 * (jumps**2).mean():
            found.notes.append("neighbouring frames are alike (one trajectory?): data.split.mode=blocks is stricter")


def _closest(frames: Frames, index: int) -> float:
    atoms = slice(frames.starts[index], frames.starts[index + 1])
    positions, cell, pbc = frames.positions[atoms], frames.cell[index], frames.pbc[index]
    return nearest_distance(positions, cell, pbc, radius=LOOK, cutoff=CUTOFF, name=f"frame {index}")


def _duplicates(frames: Frames) -> np.ndarray:
    """Frames [D] whose atomic numbers, positions and cell equal an earlier frame's to 1e-6 Å."""
    seen: set[bytes] = set()
    again = []
    for index in range(len(frames)):
        atoms = slice(frames.starts[index], frames.starts[index + 1])
        rounded = np.round(np.concatenate([frames.positions[atoms], frames.cell[index]]), 6) + 0.0  # no -0.0
        key = frames.atomic_numbers[atoms].tobytes() + rounded.tobytes()
        if key in seen:
            again.append(index)
        seen.add(key)
    return np.array(again, dtype=np.int64)


def _where(has: np.ndarray, selected: np.ndarray) -> str:
    """Frame numbers of ``selected``, a mask over the frames that ``has`` selects."""
    return numbers(np.flatnonzero(has)[selected])
