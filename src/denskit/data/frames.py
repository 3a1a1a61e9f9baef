"""Frames: the structures of one file in a few large arrays, and the checks that every file goes through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.spatial import cKDTree

from denskit.batch import MAX_ATOMIC_NUMBER, System

LABELS = ("energy", "forces", "stress")
CLOSEST = 1e-3  # Å: below this two atoms are at one place
Missing = Literal["error", "mask"]


@dataclass(frozen=True, kw_only=True)
class Frames:
    """B structures, N atoms in all, as concatenated arrays (float64, eV, Å); a source.

    Atoms of frame i are ``starts[i]:starts[i + 1]``.  Labels are NaN where the file has none; ``has`` says which
    frames have one.
    """

    name: str  # of the file
    starts: np.ndarray  # [B + 1] int64
    positions: np.ndarray  # [N, 3]
    atomic_numbers: np.ndarray  # [N] int64
    cell: np.ndarray  # [B, 3, 3]
    pbc: np.ndarray  # [B, 3] bool
    fixed: np.ndarray  # [N] bool
    tags: np.ndarray  # [N] int64
    energy: np.ndarray  # [B]
    forces: np.ndarray  # [N, 3]
    stress: np.ndarray  # [B, 3, 3]
    has: dict[str, np.ndarray]  # label -> [B] bool
    groups: tuple[str, ...] = ()  # [B], or empty
    keys: tuple[str, ...] = ()  # what the file calls its fields, for messages
    sids: tuple[str, ...] = ()  # [B], or empty; the source's names of the systems
    fids: np.ndarray | None = None  # [B] int64, frame numbers of the relaxations
    denoise: bool = True  # False: molecular dynamics, never corrupted by DeNS

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> System:
        if not 0 <= index < len(self):
            raise IndexError(f"frame {index} of {self.name}, which has {len(self)}")
        atoms = slice(self.starts[index], self.starts[index + 1])
        return System(
            positions=self.positions[atoms],
            atomic_numbers=self.atomic_numbers[atoms],
            cell=self.cell[index],
            pbc=self.pbc[index],
            fixed=self.fixed[atoms],
            tags=self.tags[atoms],
            energy=float(self.energy[index]) if self.has["energy"][index] else None,
            forces=self.forces[atoms] if self.has["forces"][index] else None,
            stress=self.stress[index] if self.has["stress"][index] else None,
            index=index,
            group=self.groups[index] if self.groups else "",
            sid=self.sids[index] if self.sids else "",
            fid=None if self.fids is None else int(self.fids[index]),
            denoise=self.denoise,
        )

    def __iter__(self) -> Iterator[System]:
        return (self[index] for index in range(len(self)))

    @property
    def n_atoms(self) -> np.ndarray:
        """Atoms per frame [B]."""
        return np.diff(self.starts)

    @property
    def sizes(self) -> np.ndarray:
        """Atoms per frame [B], by the name that all sources give it."""
        return self.n_atoms

    @classmethod
    def from_systems(cls, systems: Iterable[System], *, name: str) -> Frames:
        """Pack structures, read one by one, into arrays.  Raises ValueError when there are none."""
        held = list(systems)
        if not held:
            raise ValueError(f"{name} has no frames: it is empty, or not a file of structures")
        counts = [len(system) for system in held]
        nan_forces = [np.full((n, 3), np.nan) for n in counts]
        groups = tuple(system.group for system in held)
        return cls(
            name=name,
            starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            positions=np.concatenate([system.positions for system in held]),
            atomic_numbers=np.concatenate([system.atomic_numbers for system in held]).astype(np.int64),
            cell=np.stack([system.cell for system in held]),
            pbc=np.stack([system.pbc for system in held]),
            fixed=np.concatenate([system.fixed for system in held]),
            tags=np.concatenate([system.tags for system in held]).astype(np.int64),
            energy=np.array([np.nan if system.energy is None else system.energy for system in held]),
            forces=np.concatenate([n if s.forces is None else s.forces for s, n in zip(held, nan_forces, strict=True)]),
            stress=np.stack([np.full((3, 3), np.nan) if s.stress is None else s.stress for s in held]),
            has={label: np.array([getattr(system, label) is not None for system in held]) for label in LABELS},
            groups=groups if any(groups) else (),
        )


def check(frames: Frames, *, required: Sequence[str], missing: Missing) -> tuple[Frames, list[str]]:
    """Refuse what no model can learn from; mask labels that are missing or not finite where ``missing`` is ``mask``.

    Raises ValueError, naming the file and the frames: geometry that is not finite, unknown elements, a periodic frame
    without a cell, two atoms at one place, labels that are NaN or infinite, ``required`` labels that are absent.
    Returns the frames, labels finite wherever ``has`` is True, and what was masked.
    """
    _check_geometry(frames)
    frames, messages = mask_not_finite(frames, missing)
    for label in required:
        absent = np.flatnonzero(~frames.has[label])
        if len(absent) == len(frames) or (len(absent) and missing == "error"):
            raise ValueError(_absent(frames, label, absent))
        if len(absent):
            messages.append(
                f"{frames.name}: {len(absent)} of {len(frames)} frames have no {label}; they count in no loss"
            )
    return frames, messages


def _absent(frames: Frames, label: str, absent: np.ndarray) -> str:
    keys = ", ".join(frames.keys) or "none"
    if len(absent) == len(frames):
        advice = f"name the key with data.{label}_key=KEY"
        return f"{frames.name}: no frame has {label}. Fields seen in the file: {keys}. If one of them is it, {advice}"
    return (
        f"{frames.name}: {len(absent)} of {len(frames)} frames have no {label}: {numbers(absent)}. Fields seen in the "
        f"file: {keys}. Remove these frames, or let them count in no loss with data.missing=mask"
    )


def mask_not_finite(frames: Frames, missing: Missing) -> tuple[Frames, list[str]]:
    """The frames, labels that are NaN or infinite taken for absent, and what was masked.

    Raises ValueError for such labels where ``missing`` is "error".
    """
    has, messages = dict(frames.has), []
    for label in LABELS:
        finite = np.isfinite(getattr(frames, label))
        if label == "forces":
            finite = np.logical_and.reduceat(finite.all(axis=1), frames.starts[:-1])
        bad = np.flatnonzero(has[label] & ~finite.reshape(len(frames), -1).all(axis=1))
        if len(bad) == 0:
            continue
        if missing == "error":
            raise ValueError(
                f"{frames.name}: {label} is NaN or infinite in {numbers(bad)}. Remove these frames, or let the labels "
                "count in no loss with data.missing=mask"
            )
        has[label] = has[label].copy()
        has[label][bad] = False
        messages.append(f"{frames.name}: {label} is NaN or infinite in {numbers(bad)}; masked, it counts in no loss")
    return replace(frames, has=has), messages


def _check_geometry(frames: Frames) -> None:
    name, starts = frames.name, frames.starts
    empty = np.flatnonzero(frames.n_atoms == 0)
    if len(empty):
        raise ValueError(f"{name}: no atoms in {numbers(empty)}")
    finite = np.logical_and.reduceat(np.isfinite(frames.positions).all(axis=1), starts[:-1])
    bad = np.flatnonzero(~(finite & np.isfinite(frames.cell).all(axis=(1, 2))))
    if len(bad):
        raise ValueError(f"{name}: positions or cell are NaN or infinite in {numbers(bad)}")
    known = (frames.atomic_numbers >= 1) & (frames.atomic_numbers <= MAX_ATOMIC_NUMBER)
    bad = np.flatnonzero(~np.logical_and.reduceat(known, starts[:-1]))
    if len(bad):
        raise ValueError(f"{name}: atomic numbers outside 1 to {MAX_ATOMIC_NUMBER} in {numbers(bad)}")
    lattice = np.where(frames.pbc[:, :, None], frames.cell, 0)
    bad = np.flatnonzero(np.linalg.matrix_rank(lattice, tol=1e-6) < frames.pbc.sum(axis=1))
    if len(bad):
        raise ValueError(
            f"{name}: periodic along directions whose cell vectors are zero or linearly dependent in {numbers(bad)}. "
            "Set the cell, or pbc to False"
        )
    _check_distances(frames)


def _check_distances(frames: Frames) -> None:
    """Two atoms closer than ``CLOSEST``, images included, are a defect of the file."""
    first = frames.n_atoms[0]
    alike = bool((frames.n_atoms == first).all()) and not frames.pbc.any() and first <= 64
    if alike:  # many small molecules: all pairs, in chunks, is 20 times faster than a tree a frame
        positions = frames.positions.reshape(len(frames), first, 3)
        one, other = np.triu_indices(first, k=1)
        for begin in range(0, len(frames), 2000):
            part = positions[begin : begin + 2000]
            close = ((part[:, one] - part[:, other]) ** 2).sum(axis=2) < CLOSEST**2
            if close.any():
                frame, pair = np.argwhere(close)[0]
                _raise_close(frames, begin + frame, one[pair], other[pair])
        return
    for index in range(len(frames)):
        atoms = slice(frames.starts[index], frames.starts[index + 1])
        pair = close_pair(frames.positions[atoms], frames.cell[index], frames.pbc[index])
        if pair is not None:
            _raise_close(frames, index, *pair)


def close_pair(
    positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, within: float = CLOSEST
) -> tuple[int, int] | None:
    """Two atoms of a structure nearer than ``within`` (Å), images included, if there are any; an atom and its own
    image are no pair.  Periodic directions must have cell vectors that span them."""
    if not pbc.any():
        pairs = cKDTree(positions).query_pairs(within, output_type="ndarray")
        return (int(pairs[0, 0]), int(pairs[0, 1])) if len(pairs) else None
    # Coordinates in units of the lattice vectors, the free directions completed by an orthonormal basis.
    lattice = np.where(pbc[:, None], cell, 0)
    lattice[~pbc] = np.linalg.svd(lattice)[2][pbc.sum() :]
    inverse = np.linalg.inv(lattice)
    scaled = positions @ inverse
    scaled[:, pbc] -= np.floor(scaled[:, pbc])
    scaled[:, pbc] %= 1.0  # -1e-17 - floor(-1e-17) is 1.0, which the tree refuses
    scaled[:, ~pbc] -= scaled[:, ~pbc].min(axis=0)
    box = np.where(pbc, 1.0, 2 * np.ptp(scaled, axis=0) + 1.0)
    radius = within * np.linalg.norm(inverse, 2)
    for one, other in cKDTree(scaled, boxsize=box).query_pairs(radius, output_type="ndarray"):
        apart = scaled[one] - scaled[other]
        apart[pbc] -= np.round(apart[pbc])
        if np.linalg.norm(apart @ lattice) < within:
            return int(one), int(other)
    return None


def _raise_close(frames: Frames, index: int, one: int, other: int) -> None:
    raise ValueError(
        f"{frames.name}: atoms {one} and {other} of frame {index} (both counted from 0) are at one place, less than "
        f"{CLOSEST} Å apart. Remove one of them, or the frame"
    )


def numbers(indices: np.ndarray) -> str:
    """``frame 7`` or ``frames 3, 4, 9, ... (12 in all)``, counted from 0."""
    if len(indices) == 1:
        return f"frame {indices[0]} (counted from 0)"
    shown = ", ".join(str(index) for index in indices[:5])
    more = f", ... {len(indices)} in all" if len(indices) > 5 else ""
    return f"frames {shown}{more} (counted from 0)"
