"""Writing structures: the fields of their own file, beside the results of a model.

A written structure keeps every ``info`` and ``arrays`` field, the constraints and the results of kinds that no model
here predicts (magnetic moments, charges, dipole).  ``energy``, ``forces`` and ``stress`` are always the model's, in eV
and Å, which ``result_unit=eV`` tells readers with another ``data.units``.
Results of the file under these names are renamed:

- ``REF_energy``, ``REF_forces``, ``REF_stress``: the labels of this very geometry, in eV, eV/Å, eV/Å^3.  They are
  added where the file has no field of that name, so a labelled file stays labelled when it is read again; with
  ``REF_unit=eV``, which holds whatever the units of the other fields.
- ``input_energy``, ...: other results of the file (of an earlier model, where ``REF_energy`` is present already; free
  and atomic energies; all labels of a relaxation, since they belong to its start, also those that ``data.energy_key``
  and the like name).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase
import numpy as np
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from ase.stress import voigt_6_to_full_3x3_stress

from denskit.batch import System
from denskit.data.base import Source
from denskit.data.readers.ase_files import NAMES, OF_MODEL, REF_UNIT, RESULT_UNIT, SPREADS, frames_in
from denskit.data.readers.folders import Files
from denskit.data.readers.formats import is_read_by_ase, path_of
from denskit.data.structure_arrays import LABELS

# Results that a model predicts, or that mean nothing beside its predictions.
PREDICTED = ("energy", "free_energy", "energies", "forces", "stress", "stresses")
# fields by which files name their structures, the likelier first
IDENTIFIERS = ("material_id", "mp_id", "sid", "name", "config_type")
_OF_ATOMS = ("forces", "energies", "stresses", "forces_std")


class Originals:
    """The structures of a file with all their fields, one at a time in ascending order of ``System.index``.

    Files for ASE, of an address its copy, are read again, frame by frame; nothing is held in memory.  ``moved``: the
    structures will be moved, so that labels under names of the user's own, which :func:`relaxed_at` cannot know, become
    ``input_`` fields here.
    """

    def __init__(self, path: str | Path, source: Source, *, moved: bool = False) -> None:
        self.path = path_of(path)
        self.source, self.moved = source, moved
        self._atoms = enumerate(frames_in(self.path)) if is_read_by_ase(self.path) else None
        self._of_file: Originals | None = None  # of a folder of files: those of the file that is read

    def __call__(self, system: System) -> ase.Atoms:
        """The structure with all fields of its file.  Raises ValueError where the file has changed."""
        if isinstance(self.source, Files):
            return self._in_file(self.source, system)
        atoms = self._in_own_file(system)
        for name in self.source.label_keys if self.moved else ():
            for fields in (atoms.info, atoms.arrays):
                if name in fields:
                    fields[f"input_{name}"] = fields.pop(name)
        return atoms

    def _in_own_file(self, system: System) -> ase.Atoms:
        if self._atoms is None:
            atoms = plain(system)
            atoms.info |= self.source.fields(system.index)
            return atoms
        found = next((atoms for index, atoms in self._atoms if index == system.index), None)
        if found is None or not np.array_equal(found.numbers, system.atomic_numbers):
            raise ValueError(f"{self.path}: frame {system.index} has changed since it was first read")
        return found

    def _in_file(self, files: Files, system: System) -> ase.Atoms:
        source, place = files.locate(system.index)
        if self._of_file is None or self._of_file.source is not source:
            # one at a time: there may be more than can be open
            self._of_file = Originals(source.name, source, moved=self.moved)
        atoms = self._of_file(replace(system, index=place))
        atoms.info.setdefault("name", files.name_of(system.index))
        return atoms


def plain(system: System) -> ase.Atoms:
    """A structure with tags, fixed atoms, sid, fid, total charge and spin; no labels."""
    atoms = ase.Atoms(system.atomic_numbers, system.positions, cell=system.cell, pbc=system.pbc)
    if system.tags.any():
        atoms.set_tags(system.tags)
    if system.fixed.any():
        atoms.set_constraint(FixAtoms(mask=system.fixed))
    names = {"sid": system.sid or None, "fid": system.fid}
    atoms.info |= {name: value for name, value in names.items() if value is not None} | dict(system.electrons)
    return atoms


def names_of(fields: Sequence[Mapping[str, Any]]) -> list[str]:
    """The name of each structure by the ``info`` of its file, empty where it has none.

    It is the first of ``IDENTIFIERS`` that tells all structures apart, else the first that there is; config_type, which
    often names a class of structures, only where it tells them apart.
    """
    found = {key: ["" if one.get(key) is None else str(one[key]) for one in fields] for key in IDENTIFIERS}
    apart = [values for values in found.values() if all(values) and len(set(values)) == len(values)]
    del found["config_type"]
    return next((values for values in (*apart, *found.values()) if any(values)), [""] * len(fields))


def predicted(original: ase.Atoms, system: System, results: Mapping[str, Any]) -> ase.Atoms:
    """The structure with a model's ``results`` and its own labels as REF_ fields.

    Results: energy, forces, perhaps stress; of a committee also "energy_std" (in ``info``) and "forces_std" (in
    ``arrays``).
    """
    atoms, taken = _without_results(original)
    if not any(_has(atoms, f"REF_{label}") for label in LABELS):
        atoms.info[REF_UNIT] = "eV"
    for label in LABELS:
        value = getattr(system, label)
        if value is not None and not _has(atoms, f"REF_{label}"):
            _put(atoms, f"REF_{label}", value)
            if label in taken and _same(taken[label], value):
                del taken[label]
    atoms.info[OF_MODEL] = True  # where REF_ fields lack a label, the prediction is none
    return _finished(atoms, taken, results)


def relabelled(original: ase.Atoms, results: Mapping[str, Any]) -> ase.Atoms:
    """The structure with new labels (energy, forces, perhaps stress); all earlier ones become ``input_`` fields."""
    atoms, taken = _without_results(original)
    atoms.info.pop(OF_MODEL, None)  # of the earlier ones
    for name in (name for names in NAMES.values() for name in names):
        for fields in (atoms.info, atoms.arrays):
            if name in fields:
                taken[name] = fields.pop(name)
    return _finished(atoms, taken, results)


def relaxed_at(original: ase.Atoms, positions: np.ndarray, cell: np.ndarray, results: Mapping[str, Any]) -> ase.Atoms:
    """The structure at other ``positions`` (Å) and ``cell`` (Å), with a model's results there.

    Its labels belong to the start and become ``input_`` fields.  Momenta are dropped.
    """
    atoms = relabelled(original, results)
    atoms.arrays.pop("momenta", None)
    atoms.set_cell(cell, apply_constraint=False)
    atoms.set_positions(positions, apply_constraint=False)
    return atoms


def _without_results(original: ase.Atoms) -> tuple[ase.Atoms, dict[str, Any]]:
    """A copy without the results that a model predicts, and these results."""
    atoms, taken = original.copy(), {}
    results = {} if original.calc is None else dict(original.calc.results)
    for name in (*PREDICTED, *SPREADS):
        for fields in (atoms.info, atoms.arrays, results):
            if fields.get(name) is not None:
                taken[name] = fields.pop(name)
    atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms, taken


def _finished(atoms: ase.Atoms, taken: Mapping[str, Any], results: Mapping[str, Any]) -> ase.Atoms:
    for name, value in taken.items():
        _put(atoms, f"input_{name}", value)
    atoms.info[RESULT_UNIT] = "eV"
    for name, value in results.items():
        if name in SPREADS:
            (atoms.arrays if name == "forces_std" else atoms.info)[name] = value
        elif value is not None:
            atoms.calc.results[name] = value
    return atoms


def _same(result: Any, label: Any) -> bool:
    result = np.asarray(result, dtype=np.float64)
    result = voigt_6_to_full_3x3_stress(result) if result.shape == (6,) else result
    return result.size == np.size(label) and np.allclose(result.reshape(np.shape(label)), label)


def _has(atoms: ase.Atoms, name: str) -> bool:
    return name in atoms.info or name in atoms.arrays


def _put(atoms: ase.Atoms, name: str, value: Any) -> None:
    of_atoms = name.endswith(_OF_ATOMS) and np.ndim(value)  # max_forces_std is one number
    (atoms.arrays if of_atoms else atoms.info)[name] = np.asarray(value) if np.ndim(value) else value
