"""Frames in memory: ``ase.Atoms`` read as those of a file are, and written with all their digits.

ASE's own writer of extxyz keeps eight decimals of positions and forces; a training would then continue with other
numbers than it began with.  It cannot write all fields either (:mod:`denskit.data.extxyz_fields`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import ase
import numpy as np
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms, FixCartesian, FixScaled
from ase.io.extxyz import key_val_dict_to_str

from denskit.data.config import DataConfig
from denskit.data.extxyz_fields import columns_of, header_fields, warn_left_out
from denskit.data.readers.ase_files import OF_MODEL, RESULT_UNIT, structures_from
from denskit.data.structure_arrays import StructureArrays

NAME = "the given atoms"  # in messages
# results that ASE reads from extxyz: with one row an atom, and of a frame
_OF_ATOMS = ("forces", "energies", "stresses", "charges", "magmoms", "born_effective_charges")
_OF_FRAMES = ("energy", "free_energy", "stress", "dipole", "magmom", "polarization", "dielectric_tensor")
_UNSEEN = {"initial_charges", "initial_magmoms"}  # changes that leave the geometry
_KINDS = {"f": "R", "i": "I", "u": "I", "b": "L", "U": "S"}


def frames_of(given: object) -> list[ase.Atoms]:
    """Given structures as a list.  Raises ValueError, naming the frame: none, something else than atoms."""
    if isinstance(given, ase.Atoms | str | os.PathLike) or not isinstance(given, Iterable):
        raise ValueError(
            f"{NAME}: found {type(given).__name__}; wanted a list of ase.Atoms "
            "(a file: denskit.read(FILE), of a training settings={'data.path': FILE})"
        )
    frames = list(given)
    if not frames:
        raise ValueError("no atoms were given; at least one structure is wanted")
    for index, atoms in enumerate(frames):
        if not isinstance(atoms, ase.Atoms):
            raise ValueError(f"{NAME}, frame {index}: found {type(atoms).__name__}; wanted ase.Atoms")
    return frames


def structures_of(
    frames: Sequence[ase.Atoms], config: DataConfig | None = None, name: str = NAME
) -> tuple[StructureArrays, list[str]]:
    """Structures of ``ase.Atoms`` in eV and Å, and messages, with ``name``; labels are found as in a file.

    Raises ValueError as :func:`frames_of`, and for a calculator whose results belong to another geometry.
    """
    for index, atoms in enumerate(frames := frames_of(frames)):
        calc = atoms.calc
        if calc is not None and calc.results and set(calc.check_state(atoms)) - _UNSEEN:
            raise ValueError(
                f"{name}, frame {index}: the results of its calculator belong to another geometry; the atoms were "
                "moved, or several frames share one calculator. Give each frame results of its own: "
                "atoms.calc = SinglePointCalculator(atoms, energy=..., forces=...)"
            )
    return structures_from(frames, name, config or DataConfig())


def bare(atoms: ase.Atoms) -> ase.Atoms:
    """The atoms and their cell alone, without labels."""
    if not isinstance(atoms, ase.Atoms):
        raise ValueError(f"found {type(atoms).__name__} among the structures; wanted ase.Atoms")
    return ase.Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)


def exact_extxyz(frames: Iterable[ase.Atoms]) -> Iterator[str]:
    """Each frame as text of an extxyz file, from which ASE reads the very same numbers.

    A result replaces a field of its name.  What extxyz cannot hold is left out, and a warning names it after the last
    frame.
    """
    left_out: set[str] = set()
    for atoms in frames:
        results = {} if atoms.calc is None else atoms.calc.results
        of_atoms = {name: results[name] for name in _OF_ATOMS if results.get(name) is not None}
        of_frame = {name: results[name] for name in _OF_FRAMES if results.get(name) is not None}
        columns = {"species": np.array(atoms.get_chemical_symbols()), "pos": atoms.positions, **_mobile(atoms)}
        own = {name: rows for name, rows in atoms.arrays.items() if name not in ("numbers", "positions", *of_frame)}
        others, lost = columns_of(own, len(atoms))
        columns |= others | of_atoms
        columns = {name: np.asarray(rows).reshape(len(atoms), -1) for name, rows in columns.items()}
        live = results and not isinstance(atoms.calc, SinglePointCalculator)
        said: dict[str, Any] = {}
        if live:
            said[RESULT_UNIT] = "eV"  # read back in the unit of all of ASE, whatever data.units says
        if results and getattr(atoms.calc, OF_MODEL, False):
            said[OF_MODEL] = True
        fields = atoms.info | said | of_frame
        info, missing = header_fields({name: value for name, value in fields.items() if name not in of_atoms})
        left_out.update(lost, missing)
        kinds = (f"{name}:{_KINDS[rows.dtype.kind]}:{rows.shape[1]}" for name, rows in columns.items())
        head = {"Lattice": atoms.cell.array.ravel()} if atoms.cell.any() else {}
        head |= {"Properties": ":".join(kinds), "pbc": atoms.pbc}
        yield f"{len(atoms)}\n{key_val_dict_to_str(head | info)}\n"
        words = [_words(rows) for rows in columns.values()]
        yield "".join(" ".join(row) + "\n" for row in zip(*words, strict=True))
    warn_left_out(left_out)


def _mobile(atoms: ase.Atoms) -> dict[str, np.ndarray]:
    """The column ``move_mask`` of extxyz, where atoms are fixed."""
    free = np.ones((len(atoms), 3), dtype=bool)
    for constraint in atoms.constraints:
        whole = isinstance(constraint, FixScaled) and np.all(constraint.mask)  # in part it has no column
        if isinstance(constraint, FixAtoms) or whole:
            free[constraint.index] = False
        elif isinstance(constraint, FixCartesian):
            free[constraint.index] &= ~np.asarray(constraint.mask, dtype=bool)
    if free.all():
        return {}
    return {"move_mask": free[:, 0] if (free == free[:, :1]).all() else free}


def _words(rows: np.ndarray) -> list[str]:
    """One text for each row, of numbers that read back the same."""
    if rows.dtype.kind == "b":
        return [" ".join("FT"[value] for value in row) for row in rows.tolist()]
    return [" ".join(map(str, row)) for row in rows.tolist()]  # of a float the shortest text with the same value
