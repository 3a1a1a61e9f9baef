"""The structures of one file in a few large arrays, and the checks that every file passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from scipy.spatial import cKDTree

from denskit.batch import ISOLATED, MAX_ATOMIC_NUMBER, System
from denskit.data.base import Mark, Source
from denskit.geometry.lattice import SAME_PLACE, lattices

LABELS = ("energy", "forces", "stress")
NOT_FINITE = "positions or cell are NaN or infinite"
UNKNOWN_ELEMENTS = f"atomic numbers outside 1 to {MAX_ATOMIC_NUMBER}"
NO_LATTICE = "periodic along directions whose cell vectors are zero or linearly dependent"
NO_POSITIONS = "all atoms are at one place (the record holds no positions)"
NO_STRESS = "cannot have a stress, which is per volume: not periodic in three directions"
WITHOUT = {  # how to train without a label
    "energy": "task.energy_weight=0 data.references=none",
    "forces": "task.forces_weight=0 training.best_by=energy",
}
MASK_STRESS = "Count them in no loss of the stress with data.missing=mask, or train without: task.stress_weight=0"
SHOWN = 5  # structures that a message numbers one by one
Missing = Literal["error", "mask"]


@dataclass(frozen=True, kw_only=True)
class StructureArrays(Source):
    """B structures, N atoms in all, as concatenated arrays (float64, eV, Å).

    Atoms of structure i are ``starts[i]:starts[i + 1]``.  Labels are NaN where absent; ``has`` marks the structures
    with a label.
    """

    in_memory: ClassVar[bool] = True

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
    keys: tuple[str, ...] = ()  # names of the fields in the file, for messages
    label_keys: tuple[str, ...] = ()  # those that the user named as labels
    label_fields: tuple[tuple[str, str, int], ...] = ()  # label, field that holds it, number of structures
    sids: tuple[str, ...] = ()  # [B], or empty; the source's names of the systems
    electrons: tuple[tuple[tuple[str, float], ...], ...] = ()  # [B], or empty; as of System
    of_model: np.ndarray | None = None  # [B] bool, as of System; None: none
    unconverged: np.ndarray | None = None  # [B] bool, likewise
    fids: np.ndarray | None = None  # [B] int64, frame numbers of the relaxations
    denoise: bool = True  # False: molecular dynamics, never corrupted by DeNS
    unit: str = "eV"  # of the energies in the file

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
            electrons=self.electrons[index] if self.electrons else (),
            of_model=self.of_model is not None and bool(self.of_model[index]),
            unconverged=self.unconverged is not None and bool(self.unconverged[index]),
            denoise=self.denoise,
        )

    @property
    def sizes(self) -> np.ndarray:
        """Atoms of each structure [B]."""
        return np.diff(self.starts)

    def group_names(self) -> tuple[str, ...]:
        """The group of each structure; empty where the file has none."""
        return self.groups

    def places_of(self, mark: Mark) -> np.ndarray:
        """Places of the structures with a mark."""
        found: np.ndarray | None = getattr(self, mark)
        return np.zeros(0, dtype=np.int64) if found is None else np.flatnonzero(found)

    def elements_of_structures(self) -> list[frozenset[int]]:
        """The atomic numbers that occur in each structure [B]."""
        return [frozenset(numbers.tolist()) for numbers in np.split(self.atomic_numbers, self.starts[1:-1])]

    @classmethod
    def of(
        cls,
        *,
        name: str,
        sizes: Sequence[int] | np.ndarray,
        cell: np.ndarray,
        fixed: np.ndarray | None = None,
        tags: np.ndarray | None = None,
        energy: np.ndarray | None = None,
        forces: np.ndarray | None = None,
        **given: Any,
    ) -> Self:
        """Arrays of ``sizes`` [B] atoms each; labels that are None are absent, ``fixed`` and ``tags`` are 0.

        ``given``: the other fields but the stress, which is absent.
        """
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        count, atoms = len(sizes), int(starts[-1])
        has = {"energy": energy is not None, "forces": forces is not None, "stress": False}
        return cls(
            name=name,
            starts=starts,
            cell=cell,
            fixed=np.zeros(atoms, dtype=bool) if fixed is None else fixed,
            tags=np.zeros(atoms, dtype=np.int64) if tags is None else tags,
            energy=np.full(count, np.nan) if energy is None else energy,
            forces=np.full((atoms, 3), np.nan) if forces is None else forces,
            stress=np.full((count, 3, 3), np.nan),
            has={label: np.full(count, present) for label, present in has.items()},
            **given,
        )

    @classmethod
    def from_systems(cls, systems: Iterable[System], *, name: str) -> Self:
        """Pack structures, read one by one, into arrays.  Raises ValueError for none."""
        held = list(systems)
        if not held:
            raise ValueError(f"{name} has no frames: it is empty, or not a file of structures")
        counts = [len(system) for system in held]
        nan_forces = [np.full((n, 3), np.nan) for n in counts]
        groups, sids = tuple(system.group for system in held), tuple(system.sid for system in held)
        electrons = tuple(system.electrons for system in held)
        of_model = np.array([system.of_model for system in held])
        unconverged = np.array([system.unconverged for system in held])
        fids = [system.fid for system in held if system.fid is not None]
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
            sids=sids if any(sids) else (),
            electrons=electrons if any(electrons) else (),
            of_model=of_model if of_model.any() else None,
            unconverged=unconverged if unconverged.any() else None,
            fids=np.array(fids) if len(fids) == len(held) else None,
        )

    def atom_rows(self, places: np.ndarray) -> np.ndarray:
        """Rows [M, n] of the atoms of structures ``places`` [M] that have n atoms each."""
        return self.starts[places][:, None] + np.arange(self.sizes[places[0]])

    def all_atoms(self, rows: np.ndarray) -> np.ndarray:
        """Whether a condition [N] holds for all atoms of each structure [B]."""
        held = np.ones(len(self), dtype=bool)
        some = self.sizes > 0
        held[some] = np.logical_and.reduceat(rows, self.starts[:-1][some])
        return held

    def not_finite(self) -> dict[str, np.ndarray]:
        """Masks [B] of the structures with a NaN or infinite label, for each label."""
        values = {label: getattr(self, label) for label in LABELS}
        finite = {label: np.isfinite(rows).reshape(len(rows), -1).all(axis=1) for label, rows in values.items()}
        finite["forces"] = self.all_atoms(finite["forces"])
        return {label: self.has[label] & ~finite[label] for label in LABELS}

    def without_labels(self, absent: dict[str, np.ndarray]) -> Self:
        """The structures, labels of the given masks [B] taken for absent."""
        return replace(self, has={label: self.has[label] & ~absent[label] for label in LABELS})

    def checked(
        self, *, required: Sequence[str] = (), missing: Missing = "error", alone: bool = True
    ) -> tuple[Self, list[str]]:
        """The structures, with labels that are finite wherever ``has`` is True, and messages about masked labels.

        Raises ValueError, naming the file and the frames: geometry that is not finite, unknown elements, a periodic
        structure without a cell, two atoms at one place; where ``missing`` is "error", labels that are NaN or infinite
        and ``required`` labels that are absent; a required label that no structure has, unless the file is not
        ``alone``: another one that is read with it may have the label (:func:`require_some`).
        """
        for defect, mask in geometry_defects(self).items():
            raise ValueError(f"{self.name}: {defect} in {numbered(mask)}. {remedy(defect, 'Correct or remove')}")
        _check_distances(self)
        lost, messages = self.not_finite(), []
        for label, mask in lost.items():
            if mask.any():
                found = f"{self.name}: {label} is NaN or infinite in {numbered(mask)}"
                if missing == "error":
                    raise ValueError(f"{found}. Remove these frames, or count them in no loss with data.missing=mask")
                messages.append(f"{found}; masked, it counts in no loss")
        kept = self.without_labels(lost)
        for label in required:
            absent = kept.lacking(label)
            if absent.any():
                if missing == "error":
                    raise ValueError(_absent(kept, label, absent))
                messages.append(f"{self.name}: {_counted_absent(label, absent)}; they count in no loss")
        if alone:
            require_some([kept], required)
        return kept, messages

    def lacking(self, label: str) -> np.ndarray:
        """Which structures [B] have no such label and could have one: isolated atoms have no force or stress."""
        absent = ~self.has[label]
        return absent & ~self.isolated if label != "energy" and absent.any() else absent

    @property
    def isolated(self) -> np.ndarray:
        """Which structures [B] are isolated atoms, as :attr:`denskit.batch.System.is_isolated`."""
        near = self.pbc & (np.linalg.norm(self.cell, axis=2) < ISOLATED)
        return np.asarray((self.sizes == 1) & ~near.any(axis=1))


def require_some(files: Sequence[StructureArrays], required: Sequence[str]) -> None:
    """Raise ValueError for a required label that no structure of all files has."""
    for label in required:
        lacking = [(file, absent) for file in files if (absent := file.lacking(label)).any()]
        if lacking and not any(file.has[label].any() for file in files):
            first, absent = lacking[0]
            keys = tuple(sorted({key for file in files for key in file.keys}))
            name = first.name + f" and {len(files) - 1} more" * (len(files) > 1)
            raise ValueError(_absent(replace(first, name=name, keys=keys), label, absent))


def _counted_absent(label: str, absent: np.ndarray) -> str:
    return f"{absent.sum()} of {len(absent)} frames have no {label}"


def _absent(structures: StructureArrays, label: str, absent: np.ndarray) -> str:
    found = _counted_absent(label, absent)
    seen = f"Fields seen in the file: {', '.join(structures.keys) or 'none'}"
    open_ended = absent & ~structures.pbc.all(axis=1)
    if label == "stress" and open_ended.any():
        found = f"{structures.name}: {numbered(open_ended)} {NO_STRESS}"
        return f"{found}. {'Train without stress: task.stress_weight=0' if absent.all() else MASK_STRESS}"
    if absent.all():
        advice = f"If one of them is it, name the key with data.{label}_key=KEY"
        advice += f"; or train without {label}: {WITHOUT[label]}" if label in WITHOUT else ""
        return f"{structures.name}: no frame has {label}. {seen}. {advice}"
    advice = "Remove these frames, or count them in no loss with data.missing=mask"
    return f"{structures.name}: {found}: {numbered(absent)}. {seen}. {advice}"


def geometry_defects(structures: StructureArrays) -> dict[str, np.ndarray]:
    """Masks [B] of the structures that no model can use, by the defect; empty where all are sound."""
    numbers = structures.atomic_numbers
    finite = structures.all_atoms(np.isfinite(structures.positions).all(axis=1))
    finite &= np.isfinite(structures.cell).all(axis=(1, 2))
    cell = np.where(finite[:, None, None], structures.cell, 0)
    first = structures.positions[np.repeat(structures.starts[:-1], structures.sizes)]
    found = {
        "no atoms": structures.sizes == 0,
        NOT_FINITE: ~finite,
        UNKNOWN_ELEMENTS: ~structures.all_atoms((numbers >= 1) & (numbers <= MAX_ATOMIC_NUMBER)),
        NO_LATTICE: finite & lacks_lattice(cell, structures.pbc),
        NO_POSITIONS: (structures.sizes > 1) & structures.all_atoms((structures.positions == first).all(axis=1)),
    }
    return {defect: mask for defect, mask in found.items() if mask.any()}


def remedy(defect: str, verb: str) -> str:
    """The advice about frames of a defect of :func:`geometry_defects`."""
    if defect == NO_LATTICE:
        return (
            "Correct their cell (in extxyz the field Lattice, perhaps absent), or remove them; "
            'where they are not periodic, say pbc="F F F"'
        )
    return f"{verb} these frames"


def lacks_lattice(cell: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """Where [...] the cell vectors of periodic directions are zero or linearly dependent.

    cell: [..., 3, 3] Å, finite.  pbc: [..., 3] bool.
    """
    return np.linalg.matrix_rank(np.where(pbc[..., None], cell, 0), tol=1e-6) < pbc.sum(axis=-1)


def _check_distances(structures: StructureArrays) -> None:
    """Raise ValueError for two atoms closer than ``SAME_PLACE``, images included."""
    first = structures.sizes[0]
    alike = bool((structures.sizes == first).all()) and not structures.pbc.any() and first <= 64
    if alike:  # many small molecules: all pairs, in chunks, is 20 times faster than a tree for each
        positions = structures.positions.reshape(len(structures), first, 3)
        one, other = np.triu_indices(first, k=1)
        for begin in range(0, len(structures), 2000):
            part = positions[begin : begin + 2000]
            close = ((part[:, one] - part[:, other]) ** 2).sum(axis=2) < SAME_PLACE**2
            if close.any():
                place, pair = np.argwhere(close)[0]
                _raise_close(structures, begin + place, one[pair], other[pair])
        return
    for index, system in enumerate(structures):
        pair = close_pair(system.positions, system.cell, system.pbc)
        if pair is not None:
            _raise_close(structures, index, *pair)


def close_pair(
    positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, within: float = SAME_PLACE
) -> tuple[int, int] | None:
    """Two atoms of a structure nearer than ``within`` (Å), images included, if there are any; an atom and its own
    image are no pair.  Periodic directions must have cell vectors that span them."""
    if not pbc.any():
        pairs = cKDTree(positions).query_pairs(within, output_type="ndarray")
        return (int(pairs[0, 0]), int(pairs[0, 1])) if len(pairs) else None
    # Coordinates along the lattice vectors, the free directions completed by an orthonormal basis; in units of the
    # distances between lattice planes, so that none is larger than the distance of two atoms.
    lattice = lattices(cell[None], pbc)[0]
    inverse = np.linalg.inv(lattice)
    spacing = 1 / np.linalg.norm(inverse, axis=0)
    scaled = positions @ inverse
    scaled[:, pbc] -= np.floor(scaled[:, pbc])
    scaled[:, pbc] %= 1.0  # -1e-17 - floor(-1e-17) is 1.0, which the tree refuses
    scaled[:, ~pbc] -= scaled[:, ~pbc].min(axis=0)
    box = np.where(pbc, 1.0, 2 * np.ptp(scaled, axis=0) + 1.0)
    places = np.minimum(scaled * spacing, np.nextafter(box * spacing, 0))
    for one, other in cKDTree(places, boxsize=box * spacing).query_pairs(within, p=np.inf):
        apart = scaled[one] - scaled[other]
        apart[pbc] -= np.round(apart[pbc])
        if np.linalg.norm(apart @ lattice) < within:
            return int(one), int(other)
    return None


def _raise_close(structures: StructureArrays, index: int, one: int, other: int) -> None:
    raise ValueError(
        f"{structures.name}: atoms {one} and {other} of frame {index} (both counted from 0) are at one place, less "
        f"than {SAME_PLACE} Å apart. Remove one of them, or the frame"
    )


def numbered(places: np.ndarray, *, counted: bool = True) -> str:
    """``frame 7 (counted from 0)`` or ``frames 3, 4, 9, 12, 15, ..., 40 in all``; ``places``: indices, or a mask."""
    places = np.flatnonzero(places) if places.dtype == bool else places
    shown = ", ".join(str(place) for place in places[:SHOWN])
    more = f", ..., {len(places):,} in all" if len(places) > SHOWN else ""
    return f"frame{'s' * (len(places) > 1)} {shown}{more}{' (counted from 0)' * counted}"
