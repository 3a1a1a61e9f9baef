"""Files for ASE: extxyz, traj, db and more, with the usual names of labels.

Sign and units are ASE's: eV, eV/Å, eV/Å^3, stress = dE/dstrain / volume; a virial is -stress * volume.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms, FixCartesian, FixScaled

from denskit.batch import System
from denskit.data.base import Source, electrons_in, full_stress
from denskit.data.config import ENERGY_UNITS, STRESS_UNITS, DataConfig
from denskit.data.readers import extxyz
from denskit.data.readers.ase_databases import check_tables, is_database, rows
from denskit.data.readers.npz import SPELLINGS
from denskit.data.readers.vasp import told_by_vasp
from denskit.data.structure_arrays import StructureArrays, numbered
from denskit.reading.budget import PACKED, PART, Lines, Unreadable, one_line, require_allowed, require_unpackable
from denskit.runtime.progress import counted

_POSCAR = re.compile(r"POSCAR|CONTCAR|CENTCAR|\.(vasp|poscar)\b")  # as ASE knows them by name
FULL = 0.99  # occupancy of a site, rounded in files
# Fields of a label, first hit first: references before the results of a calculator.
NAMES = {
    "energy": ("REF_energy", "energy"),
    "forces": ("REF_forces", "forces"),
    "stress": ("REF_stress", "REF_virial", "REF_virials", "stress", "virial", "virials"),
}
REF_UNIT = "REF_unit"  # where it is "eV", REF_ labels are in eV and Å, whatever the units of other fields
RESULTS = ("energy", "free_energy", "energies", "forces", "stress")
RESULT_UNIT = "result_unit"  # where it is "eV", these are in eV and Å, and the stress has ASE's sign
OF_MODEL = "of_model"  # of a calculator, and a field: its results are predictions of a model
# of a committee: fields, since ASE's calculators have no such result
SPREADS = ("energy_std", "forces_std", "max_forces_std")
_OF_DYNAMICS = {"replica", "step", "time_ps"}  # of frames of denskit md, whose results are the model's
_WEIGHTS = {"config_weight": None, "config_energy_weight": "energy", "config_forces_weight": "forces",
            "config_stress_weight": "stress", "config_virials_weight": "stress"}  # of MACE: label  # fmt: skip
LEAST_STRESS = 1e-4  # eV/Å^3; differences of smaller stresses are rounding
CONTRADICTION = 0.05  # between a stress and a virial, of the stress
SMEARED = 1e-3  # eV, rms between energy and free energy: more than rounding
GEOMETRY = {"numbers", "positions", "tags", "momenta", "masses", "initial_magmoms", "initial_charges"}


def read_ase(path: Path, config: DataConfig) -> tuple[StructureArrays, list[str]]:
    """All frames of a file that ASE reads, and messages about the fields in use.

    Structures are read one by one into arrays; no list of Atoms is kept.  Forces are those of the calculator, without
    constraints applied; atoms held by FixAtoms are ``fixed``.  Raises ValueError, naming file and frame.
    """
    structures, messages = structures_from(_readable(path), str(path), config)
    unconverged, note = told_by_vasp(path)
    if unconverged:
        structures = replace(structures, unconverged=np.isin(np.arange(len(structures)), unconverged))
    return structures, messages + [note] * bool(note)


def structures_from(frames: Iterable[ase.Atoms], name: str, config: DataConfig) -> tuple[StructureArrays, list[str]]:
    """As :func:`read_ase`, of frames that are there; ``name`` names them in messages."""
    reader = _Reader(name, config)
    systems = (reader.system(atoms, index) for index, atoms in enumerate(frames))
    structures = StructureArrays.from_systems(systems, name=name)
    keys = tuple(sorted(reader.seen))
    named = tuple(key for label in NAMES if (key := getattr(config, f"{label}_key")) is not None)
    used = tuple((label, key, count) for label, keys in reader.used.items() for key, count in keys.items())
    structures = replace(structures, label_fields=used)
    require_one_name(name, [structures])
    if config.group_key is None and all(structures.sids) and len(set(structures.sids)) < len(structures):
        structures = replace(structures, groups=structures.sids)  # frames of relaxations
    whole = replace(structures, keys=keys, label_keys=named, denoise=config.origin != "md", unit=reader.unit_of_all())
    return whole, reader.messages()


def require_one_name(name: str, sources: Iterable[Source]) -> None:
    """Raise ValueError where a label has another name in some frames, be it in one file or in several."""
    used = {label: Counter[str]() for label in NAMES}
    for source in sources:
        for label, key, frames in source.label_fields:
            used[label][key] += frames
    for label, names in used.items():
        if len(names) > 1:
            counts = ", ".join(f"{key} in {number}" for key, number in names.items())
            raise ValueError(
                f"{name}: frames name their {label} differently ({counts} frames), perhaps from different methods. "
                f"Choose one with data.{label}_key"
            )


def frames_in(path: Path) -> Iterator[ase.Atoms]:
    """The frames of a file as ASE reads them, one by one; fields of a database's rows are in ``info``.

    Raises Unreadable where all frames together would take more memory than the file's allowance.
    """
    how = ase_options(path)
    if is_database(path):
        frames = rows(path)
    else:
        frames = iter(ase.io.iread(str(path), index=":", do_not_split_by_at_sign=True, **how))
    taken, size = 0, path.stat().st_size
    for index, atoms in enumerate(frames):
        taken += _memory(atoms)
        require_allowed(taken, size, path)
        if path.suffix.lower() == ".cif":
            require_ordered(atoms, f"{path}, frame {index}")
        yield atoms


def _memory(atoms: ase.Atoms) -> int:
    """Bytes of a frame's fields."""
    results = {} if atoms.calc is None else atoms.calc.results
    fields = (*atoms.arrays.values(), *results.values(), *atoms.info.values())
    return PART + sum(field.nbytes for field in fields if isinstance(field, np.ndarray))


def require_ordered(atoms: ase.Atoms, name: str) -> None:
    """Raise Unreadable for a crystal of a CIF file with partial occupancies, of which ASE keeps one element a site."""
    for site in atoms.info.get("occupancy", {}).values():
        shares = {symbol: 1.0 if isinstance(share, str) else share for symbol, share in site.items()}  # "?": unknown
        if len(shares) > 1 or sum(shares.values()) < FULL:
            listed = ", ".join(f"{symbol} {share:g}" for symbol, share in shares.items())
            raise Unreadable(
                f"{name} has a site that is occupied in part or by several elements ({listed}); a model takes one atom "
                "at each site. Make a supercell in which each site has its element or is empty"
            )


def ase_options(path: Path) -> dict[str, Any]:
    """Arguments of :func:`ase.io.read` for a file: fields of extxyz are read as :func:`read_ase` does.

    Raises Unreadable for a file that ASE would not read to its end, that unpacks to more than its allowance or says
    that it has more atoms than go into it, and for a database that runs queries of its own.
    """
    if extxyz.is_extxyz(path):
        extxyz.check_lines(path)
        return {"format": "extxyz", "properties_parser": extxyz.fields}
    if path.suffix in PACKED:
        require_unpackable(path)
    elif is_database(path):
        check_tables(path)
    if _POSCAR.search(path.name):
        _check_counts(path)
    return {}


def _check_counts(path: Path) -> None:
    """Raise Unreadable for a POSCAR of far more atoms than bytes: ASE makes arrays of them before it reads a position.

    The numbers of atoms are in the sixth line, or in the seventh below the symbols.
    """
    with Lines(path) as file:
        head = [file.next() for _ in range(7)]
    atoms = [sum(int(word) for word in line.split() if word.isdigit()) for line in head[5:]]
    require_allowed(PART * max(atoms), path.stat().st_size, path)


def _readable(path: Path) -> Iterator[ase.Atoms]:
    """The frames of a file.  Raises ValueError where it cannot be read."""
    iterator = frames_in(path)
    for index in count():
        try:
            atoms = next(iterator, None)
        except Unreadable:
            raise
        except Exception as error:  # ASE's readers raise errors of any type on a bad file
            where = f"after {counted(index, 'frame')}" if index else "at its beginning"
            if isinstance(error, extxyz.BadHeader):
                raise ValueError(f"{path} cannot be read {where}: {error}") from error
            if isinstance(error, KeyError) and _is_for_an_element(path, str(error.args[0])):
                raise ValueError(
                    f"{path} cannot be read {where}: {error.args[0]!r} is no symbol of an element; write H for D and "
                    "T, and elements for types and labels of atoms (C for C1)"
                ) from error
            raise ValueError(
                f"{path} cannot be read {where}: it is truncated, or not a file of structures that ASE knows "
                f"({type(error).__name__}: {one_line(str(error))})"
            ) from error
        if atoms is None:
            return
        yield atoms


def _is_for_an_element(path: Path, word: str) -> bool:
    """Whether a word that ASE does not know stands in a file where a symbol of an element is wanted."""
    return extxyz.is_extxyz(path) or (word.isalpha() and len(word) <= 2)


class _Reader:
    """Reads frames once and collects the names of their fields."""

    def __init__(self, name: str, config: DataConfig) -> None:
        self.name = name
        self.config = config
        self.unit = "eV" if config.units == "auto" else config.units
        self.factor = ENERGY_UNITS[self.unit]
        self.in_ev: set[str] = set()  # fields of the frame that is read, whatever ``data.units`` says
        self.read_in_ev: dict[bool, set[int]] = {True: set(), False: set()}  # frames with such labels, with others
        self.used = {label: Counter[str]() for label in NAMES}
        self.both: dict[str, str] = {}
        self.mixed: dict[tuple[str, str], list[int]] = {}  # fields of energy and forces of two methods -> frames
        self.seen: set[str] = set()
        self.ignored = Counter[str]()
        self.without_volume: list[int] = []  # frames with a stress, not periodic in three directions
        self.contradicting: list[int] = []  # frames whose stress and virial differ
        self.weighted: list[int] = []  # frames with a weight of MACE other than 1
        self.free: list[float] = []  # free energy less the energy that is read, of frames with both

    def system(self, atoms: ase.Atoms, index: int) -> System:
        """A frame with its labels."""
        results = {} if atoms.calc is None else atoms.calc.results
        fields: dict[str, Any] = {**atoms.info, **atoms.arrays, **results}
        if results and getattr(atoms.calc, OF_MODEL, False):
            fields[OF_MODEL] = True
        self.seen.update(map(str, set(fields) - GEOMETRY))
        live = atoms.calc is not None and not isinstance(atoms.calc, SinglePointCalculator)
        self.in_ev = set(RESULTS) & set(fields) if fields.get(RESULT_UNIT) == "eV" else set()
        self.in_ev |= set(results) if live else set()  # as those of every calculator of ASE
        self._note_mixture(fields, index)
        self._note_free_energy(fields)
        if any(self._weighs(name, label, fields) for name, label in _WEIGHTS.items()):
            self.weighted.append(index)
        n = len(atoms)
        fixed, constraints = fixed_atoms(atoms)
        self.ignored.update(f"constraints {kind} (only wholly fixed atoms count as fixed)" for kind in constraints)
        energy, forces = self._label("energy", fields, index, 1), self._label("forces", fields, index, 3 * n)
        fid = atoms.info.get("fid")  # other programs may mean something else by it
        return System(
            positions=np.array(atoms.positions, dtype=np.float64),
            atomic_numbers=np.array(atoms.numbers, dtype=np.int64),
            cell=np.array(atoms.cell.array, dtype=np.float64),
            pbc=np.array(atoms.pbc, dtype=bool),
            fixed=fixed,
            tags=np.array(atoms.get_tags(), dtype=np.int64),
            energy=None if energy is None else energy.item(),
            forces=None if forces is None else forces.reshape(n, 3),
            stress=self._stress(atoms, fields, index),
            index=index,
            group=self._group(fields, index),
            sid=str(atoms.info.get("sid", "")),
            fid=int(fid) if isinstance(fid, int | np.integer) else None,
            electrons=electrons_in(atoms.info),
            of_model=self._is_of_model(fields),
        )

    def _is_of_model(self, fields: dict[str, Any]) -> bool:
        """Whether the labels are a DenskitCalculator's, or results beside fields of ``denskit md`` or ``predict``.

        ``denskit label`` renames the spreads and says the unit of its results, which frames of ``md`` do not.
        """
        if not any(self._find(label, fields) == label for label in ("energy", "forces")):
            return False
        simulated = fields.keys() >= _OF_DYNAMICS and RESULT_UNIT not in fields
        return simulated or bool({"forces_std", "max_forces_std", OF_MODEL} & fields.keys())

    def _require_units(self, fields: dict[str, Any], index: int) -> None:
        """ASE's files are in eV; where a frame names another unit, the user must confirm it."""
        said = fields.get("energy_unit")
        if self.config.units == "auto" and said is not None and SPELLINGS.get(str(said).lower()) != "eV":
            raise ValueError(f"{self.name}, frame {index} says energy_unit={said}; say data.units=UNIT, too")

    def unit_of_all(self) -> str:
        """The unit of the energies of all frames; empty where it is not one."""
        if not self.read_in_ev[True] or self.unit == "eV":
            return self.unit
        return "" if self.read_in_ev[False] else "eV"

    def _find(self, label: str, fields: dict[str, Any]) -> str | None:
        explicit = getattr(self.config, f"{label}_key")
        if {label, explicit} <= fields.keys() and fields.get(RESULT_UNIT) == "eV" and OF_MODEL not in fields:
            return label  # of ``denskit label``, which leaves fields of other names, labels of before, as they are
        return next((name for name in ((explicit,) if explicit else NAMES[label]) if name in fields), None)

    def _label(self, label: str, fields: dict[str, Any], index: int, *sizes: int) -> np.ndarray | None:
        """A label in eV and Å, of any shape with one of ``sizes`` numbers."""
        key = self._find(label, fields)
        if key is None:
            return None
        others = [name for name in NAMES[label] if name in fields and name != key]
        if others and getattr(self.config, f"{label}_key") is None:
            self.both[label] = f"{key} (not {', '.join(others)})"
        self.used[label][key] += 1
        where = f"{self.name}, frame {index}: {key}"
        try:
            value = np.array(fields[key], dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"{where} is {fields[key]!r} where numbers are wanted") from None
        if value.size not in sizes:
            wanted = " or ".join(str(size) for size in sizes)
            raise ValueError(f"{where} is of shape {value.shape}; wanted {wanted} numbers for the {label}")
        in_ev = key in self.in_ev or (key.startswith("REF_") and fields.get(REF_UNIT) == "eV")
        self.read_in_ev[in_ev].add(index)
        if in_ev:
            return value
        self._require_units(fields, index)
        if label == "stress":
            return value * self.stress_factor(key)
        return value * (self.config.force_factor(self.factor) if label == "forces" else self.factor)

    def _note_mixture(self, fields: dict[str, Any], index: int) -> None:
        """Note a frame with a reference for one of energy and forces alone, beside other results for both."""
        if self.config.energy_key is not None or self.config.forces_key is not None:
            return
        keys = {label: self._find(label, fields) for label in ("energy", "forces")}
        references = [label for label, key in keys.items() if key == f"REF_{label}"]
        if None in keys.values() or len(references) != 1 or (own := references[0]) not in fields:
            return
        try:
            same = np.allclose(fields[own], fields[f"REF_{own}"], rtol=0, atol=1e-3)
        except (TypeError, ValueError):  # no numbers: another check says so
            return
        if not same:
            self.mixed.setdefault((str(keys["energy"]), str(keys["forces"])), []).append(index)

    def _weighs(self, name: str, label: str | None, fields: dict[str, Any]) -> bool:
        """Whether a weight of MACE other than 1 would act on a label that the frame has."""
        if name not in fields or (label is not None and self._find(label, fields) is None):
            return False
        value = np.asarray(fields[name])
        return value.dtype.kind in "fi" and bool((value != 1).any())

    def _note_free_energy(self, fields: dict[str, Any]) -> None:
        if self.config.energy_key is not None or self._find("energy", fields) != "energy":
            return
        energy, free = (np.asarray(fields.get(name, np.nan)) for name in ("energy", "free_energy"))
        if energy.size == free.size == 1 and energy.dtype.kind in "fi" and free.dtype.kind in "fi":
            difference = (float(free.item()) - float(energy.item())) * (1.0 if "energy" in self.in_ev else self.factor)
            self.free += [difference] if np.isfinite(difference) else []

    def stress_factor(self, key: str) -> float:
        """Factor from the numbers of a field to a stress in eV/Å^3, or to a virial in eV."""
        unit, sign = self.config.stress_unit, -1.0 if self.config.stress_sign == "compression" else 1.0
        if "virial" not in key.lower():
            return sign * (self.factor if unit == "auto" else STRESS_UNITS[unit])
        if unit != "auto":
            raise ValueError(
                f"{self.name}: {key} is read as a virial, -stress * volume in the unit of energies; data.stress_unit "
                "is for a stress. Name its field with data.stress_key, or read the virial with data.stress_unit=auto"
            )
        return sign * self.factor

    def _stress(self, atoms: ase.Atoms, fields: dict[str, Any], index: int) -> np.ndarray | None:
        key = self._find("stress", fields)
        if key is not None and not atoms.pbc.all():
            self.without_volume.append(index)
            return None
        value = self._label("stress", fields, index, 9, 6)
        if key is None or value is None:
            return None
        stress = _stress_of(value, key, atoms)
        if self._contradicts(stress, key, fields, atoms):
            self.contradicting.append(index)
        return stress

    def _contradicts(self, stress: np.ndarray, key: str, fields: dict[str, Any], atoms: ase.Atoms) -> bool:
        """Whether a frame has a virial beside its stress, or the reverse, of the same method and of another size."""
        read_as = (self.unit, self.config.stress_unit, self.config.stress_sign)
        if self.config.stress_key is not None or read_as != ("eV", "auto", "tension"):
            return False
        prefix = "REF_" if key.startswith("REF_") else ""
        names = ("stress",) if "virial" in key else ("virial", "virials")
        other = next((name for word in names if (name := prefix + word) in fields), None)
        if other is None or not atoms.cell.volume:
            return False
        value = np.asarray(fields[other])
        if value.size not in (6, 9) or value.dtype.kind not in "fi":
            return False
        compared = _stress_of(value * self.stress_factor(other), other, atoms)
        return bool(np.abs(compared - stress).max() > CONTRADICTION * max(np.abs(stress).max(), LEAST_STRESS))

    def _group(self, fields: dict[str, Any], index: int) -> str:
        key = self.config.group_key
        if key is None:
            return ""
        if key not in fields:
            raise ValueError(
                f"{self.name}, frame {index} has no {key} (data.group_key). Fields of the frame: "
                f"{', '.join(sorted(map(str, set(fields) - GEOMETRY))) or 'none'}"
            )
        return str(fields[key])

    def messages(self) -> list[str]:
        fields = ", ".join(f"{label} from {next(iter(names))}" for label, names in self.used.items() if names)
        unit = "eV" if self.config.units == "auto" else f"{self.config.units}, converted to eV (data.units)"
        said = [f"{self.name}: {fields or 'no labels'}; energies in {unit}, lengths in Å"]
        if self.used["forces"] and self.read_in_ev[False] and self.config.forces_unit != "auto":
            said.append(f"{self.name}: forces in {self.config.forces_unit}, converted to eV/Å (data.forces_unit)")
        if self.used["stress"] and (self.config.stress_unit, self.config.stress_sign) != ("auto", "tension"):
            unit = "the unit of energies per Å^3" if self.config.stress_unit == "auto" else self.config.stress_unit
            sign = f"positive under {self.config.stress_sign}"
            said.append(f"{self.name}: stress in {unit}, {sign}, converted to eV/Å^3, positive under tension")
        if self.read_in_ev[True] and self.unit != "eV":
            said.append(f"{self.name}: labels in eV of {counted(len(self.read_in_ev[True]), 'frame')} ({RESULT_UNIT})")
        said += [f"{self.name}: {label} is {which}" for label, which in self.both.items()]
        for (energy, forces), frames in self.mixed.items():
            own = "energy" if energy.startswith("REF_") else "forces"
            where = numbered(np.array(frames))
            said.append(
                f"warning: {self.name}: labels of two methods in {where}: energy from {energy} and "
                f"forces from {forces}, where {own} differs from REF_{own}. Choose those of one calculation with "
                "data.energy_key=KEY and data.forces_key=KEY"
            )
        for label, names in self.used.items():
            key = getattr(self.config, f"{label}_key")
            if key is not None and not names:
                likely = "".join(f"; did you mean {near}?" for near in get_close_matches(key, self.seen, 1))
                said.append(f"{self.name}: no frame has {key}, so no label of {label} (data.{label}_key){likely}")
        said += self._doubtful_labels()
        if self.without_volume:
            where = numbered(np.array(self.without_volume))
            said.append(f"{self.name}: the stress of {where} is ignored: not periodic in three directions, no volume")
        said += [f"{self.name}: ignored {thing}, {counted(count, 'time')}" for thing, count in self.ignored.items()]
        return said

    def _doubtful_labels(self) -> Iterator[str]:
        """Messages on labels that are not what a user may think."""
        if self.contradicting:
            yield (
                f"warning: {self.name}: stress and virial contradict each other in "
                f"{numbered(np.array(self.contradicting))}: a virial is -stress * volume. Choose the right one with "
                "data.stress_key=KEY; where the stress has VASP's sign say data.stress_sign=compression"
            )
        if self.weighted:
            yield (
                f"warning: {self.name}: {numbered(np.array(self.weighted))} with config_weight, config_energy_weight, "
                "... other than 1, which Denskit does not read: all structures and labels weigh the same. Remove "
                "structures of config_weight=0; data.train with repeat shows a file more often"
            )
        if self.free and (rms := float(np.sqrt(np.mean(np.square(self.free))))) > SMEARED:
            yield (
                f"note: {self.name}: free_energy differs from the energy that is read by {1000 * rms:.3g} meV a "
                f"structure (rms of {counted(len(self.free), 'frame')}), as with smeared electrons. Where the forces "
                "are derivatives of the free energy, as VASP's are, say data.energy_key=free_energy"
            )


def fixed_atoms(atoms: ase.Atoms) -> tuple[np.ndarray, list[str]]:
    """Wholly fixed atoms [n] bool, and the kinds of all constraints that hold anything else."""
    fixed, others = np.zeros(len(atoms), dtype=bool), []
    for constraint in atoms.constraints:
        by_direction = isinstance(constraint, FixCartesian | FixScaled)
        held = np.atleast_1d(getattr(constraint, "index", ()))
        if held.dtype != bool and np.max(held, initial=-1) >= len(atoms):
            kind = type(constraint).__name__  # ASE gives an OUTCAR those of a CONTCAR in its folder
            others.append(f"{kind} of atoms that it does not have, as of a CONTCAR beside an OUTCAR")
        elif isinstance(constraint, FixAtoms) or (by_direction and np.all(constraint.mask)):
            fixed[constraint.index] = True
        elif not (by_direction and not np.any(constraint.mask)):  # extxyz has one that holds nothing for a free atom
            others.append(type(constraint).__name__)
    return fixed, others


def _stress_of(value: np.ndarray, key: str, atoms: ase.Atoms) -> np.ndarray:
    """A stress [3, 3] in eV/Å^3 from the numbers of a stress or, by the name of its field, a virial (eV)."""
    stress = full_stress(value)
    return stress * (-1.0 / atoms.cell.volume) if "virial" in key.lower() and atoms.cell.volume else stress
