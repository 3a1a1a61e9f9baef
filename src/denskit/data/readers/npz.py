"""npz files: of one molecule, in the sGDML and MD17 form (R, E, F, z) and the rMD17 form (coords, energies, forces,
nuclear_charges); and of any structures, concatenated over their atoms (:mod:`denskit.data.readers.concatenated`).

MD17 and rMD17 (:mod:`denskit.data.datasets.md17`) are published in kcal/mol and kcal/mol/Å; the sGDML form says so in
e_unit and r_unit.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from denskit.data.config import ENERGY_UNITS, DataConfig
from denskit.data.readers.concatenated import read_concatenated
from denskit.data.readers.named_arrays import NamedArrays
from denskit.data.structure_arrays import StructureArrays
from denskit.reading.arrays import read_npz as read_arrays
from denskit.units import BOHR

SPELLINGS = {
    "ev": "eV", "kcal/mol": "kcal/mol", "kcal mol^-1": "kcal/mol", "kj/mol": "kJ/mol", "ry": "Ry", "rydberg": "Ry",
    "hartree": "Hartree", "ha": "Hartree", "eh": "Hartree", "a.u.": "Hartree", "au": "Hartree",
}  # fmt: skip
LENGTH_UNITS = {
    "ang": 1.0, "angstrom": 1.0, "å": 1.0, "a": 1.0, "bohr": BOHR, "a0": BOHR, "au": BOHR, "a.u.": BOHR,
}  # fmt: skip
FORMS = (  # positions, energy, forces, atomic numbers
    ("R", "E", "F", "z"),
    ("coords", "energies", "forces", "nuclear_charges"),
)


def read_npz(path: Path, config: DataConfig) -> tuple[StructureArrays, list[str]]:
    """The structures of an npz file in eV and Å, and a message about its units.

    Raises ValueError, naming the file, when it is truncated, of another form or of inconsistent shapes.
    """
    arrays = read_arrays(path)
    if "natoms" in arrays:
        return read_concatenated(arrays, path, config)
    form = next((form for form in FORMS if form[0] in arrays and form[3] in arrays), None)
    if form is None:
        raise ValueError(
            f"{path}: wanted the arrays R and z (with E, F), or coords and nuclear_charges (with energies, forces), or "
            "natoms, pos and z concatenated over the atoms of all frames; the file has "
            f"{', '.join(sorted(arrays))}"
        )
    if config.stress_settings:
        raise ValueError(f"{path}: {config.stress_settings}, but npz files of molecules carry no stress")
    unit, length_unit, message = _units(arrays, config, path)
    energy_unit = ENERGY_UNITS[unit]
    named = NamedArrays(arrays, path)
    positions = named.numbers(form[0], shape=(None, None, 3)) * length_unit
    count, n = positions.shape[:2]
    if count == 0:
        raise ValueError(f"{path} has no frames: array {form[0]} is of shape {positions.shape}")
    energy = named.optional(form[1], shape=(count,), key=config.energy_key, option="data.energy_key")
    forces = named.optional(form[2], shape=(count, n, 3), key=config.forces_key, option="data.forces_key")
    cell = np.zeros((3, 3))
    if "lattice" in arrays:  # sGDML's lattice vectors are columns; rows here
        cell = named.numbers("lattice", shape=(3, 3)).T * length_unit
    structures = StructureArrays.of(
        name=str(path),
        sizes=np.full(count, n),
        positions=positions.reshape(-1, 3),
        atomic_numbers=np.tile(named.numbers(form[3], shape=(n,)).astype(np.int64), count),
        cell=np.broadcast_to(cell, (count, 3, 3)),
        pbc=np.full((count, 3), "lattice" in arrays),
        energy=None if energy is None else energy * energy_unit,
        forces=None if forces is None else forces.reshape(-1, 3) * config.force_factor(energy_unit / length_unit),
        groups=() if config.group_key is None else named.words(config.group_key, count),
        keys=tuple(sorted(arrays)),
        denoise=config.origin != "md",
        unit=unit,
    )
    if forces is not None and config.forces_unit != "auto":
        message += f"; forces in {config.forces_unit}, converted to eV/Å (data.forces_unit)"
    return structures, [f"{path}: {message}"]


def _units(arrays: dict[str, np.ndarray], config: DataConfig, path: Path) -> tuple[str, float, str]:
    length_name = _text(arrays, "r_unit")
    length_unit = 1.0 if length_name is None else LENGTH_UNITS.get(length_name.lower())
    if length_unit is None:
        raise ValueError(f"{path}: r_unit={length_name!r} is not known; known: {', '.join(LENGTH_UNITS)}")
    said = _text(arrays, "e_unit")
    unit: str
    if config.units != "auto":
        unit, why = config.units, "as data.units says"
    elif said is None:
        unit, why = "kcal/mol", "assumed: the file has no unit fields, and MD17 and rMD17 are published in kcal/mol; "
        why += "data.units=eV says otherwise"
    elif said.lower() in SPELLINGS:
        unit, why = SPELLINGS[said.lower()], f"the file's e_unit is {said!r}"
    else:
        raise ValueError(f"{path}: e_unit={said!r} is not known; say data.units=eV, kcal/mol, kJ/mol, Hartree or Ry")
    done = "" if unit == "eV" and length_unit == 1.0 else ", converted to eV and eV/Å"
    length = "Å" if length_unit == 1.0 else "bohr"
    return unit, length_unit, f"energies in {unit}, lengths in {length} ({why}){done}"


def _text(arrays: dict[str, np.ndarray], key: str) -> str | None:
    if key not in arrays or arrays[key].size != 1:
        return None
    value = arrays[key].reshape(-1)[0]
    return value.decode() if isinstance(value, bytes) else str(value)
