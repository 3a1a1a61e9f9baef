"""npz files: of one molecule, in the sGDML and MD17 form (R, E, F, z) and the rMD17 form (coords, energies, forces,
nuclear_charges); and of any structures, concatenated over their atoms (:mod:`denskit.data.readers.concatenated`).

MD17: Chmiela et al., Sci. Adv. 3, e1603015 (2017).  rMD17: Christensen and von Lilienfeld, Mach. Learn.: Sci. Technol.
1, 045018 (2020).  Both are published in kcal/mol and kcal/mol/Å; the sGDML form says so in e_unit and r_unit.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from denskit.data.config import ENERGY_UNITS, DataConfig
from denskit.data.readers.concatenated import read_concatenated
from denskit.data.structure_arrays import StructureArrays
from denskit.reading.arrays import read_npz as read_arrays
from denskit.units import BOHR

SPELLINGS = {
    "ev": "eV",
    "kcal/mol": "kcal/mol",
    "kcal mol^-1": "kcal/mol",
    "kj/mol": "kJ/mol",
    "hartree": "Hartree",
} | {name: "Hartree" for name in ("ha", "eh", "a.u.", "au")}
LENGTH_UNITS = {name: 1.0 for name in ("ang", "angstrom", "å", "a")} | {
    name: BOHR for name in ("bohr", "a0", "au", "a.u.")
}
FORMS = (
    {"positions": "R", "energy": "E", "forces": "F", "atomic_numbers": "z"},
    {"positions": "coords", "energy": "energies", "forces": "forces", "atomic_numbers": "nuclear_charges"},
)


def read_npz(path: Path, config: DataConfig) -> tuple[StructureArrays, list[str]]:
    """All frames of an npz file in eV and Å, and what was found out about its units.

    Raises ValueError, naming the file, when it is truncated, of another form or of inconsistent shapes.
    """
    arrays = read_arrays(path)
    if "natoms" in arrays:
        return read_concatenated(arrays, path, config)
    seen = ", ".join(sorted(arrays))
    form = next((form for form in FORMS if form["positions"] in arrays and form["atomic_numbers"] in arrays), None)
    if form is None:
        raise ValueError(
            f"{path}: wanted the arrays R and z (with E, F), or coords and nuclear_charges (with energies, forces), or "
            f"natoms, pos and z concatenated over the atoms of all frames; the file has {seen}"
        )
    if config.stress_key is not None:
        raise ValueError(f"{path}: data.stress_key={config.stress_key}, but npz files of molecules carry no stress")
    energy_unit, length_unit, message = _units(arrays, config, path)
    positions = _array(arrays, form["positions"], path, (None, None, 3)) * length_unit
    count, n = positions.shape[:2]
    labels: dict[str, np.ndarray] = {}
    for label, shape, factor in (
        ("energy", (count,), energy_unit),
        ("forces", (count, n, 3), energy_unit / length_unit),
    ):
        key = getattr(config, f"{label}_key") or form[label]
        if key in arrays:
            labels[label] = _array(arrays, key, path, shape) * factor
        elif getattr(config, f"{label}_key"):
            raise ValueError(f"{path} has no array {key} (data.{label}_key); it has {seen}")
    if "forces" in labels:
        labels["forces"] = labels["forces"].reshape(-1, 3)
    numbers = _array(arrays, form["atomic_numbers"], path, (n,)).astype(np.int64)
    cell, periodic = _lattice(arrays, path, length_unit)
    structures = StructureArrays.of(
        name=str(path),
        sizes=np.full(count, n),
        positions=positions.reshape(-1, 3),
        atomic_numbers=np.tile(numbers, count),
        cell=np.broadcast_to(cell, (count, 3, 3)),
        pbc=np.full((count, 3), periodic),
        groups=_groups(arrays, config, path, count),
        keys=tuple(sorted(arrays)),
        denoise=config.origin != "md",
        **labels,
    )
    return structures, [f"{path}: {message}"]


def _array(arrays: dict[str, np.ndarray], key: str, path: Path, shape: tuple[int | None, ...]) -> np.ndarray:
    """``arrays[key]`` in float64 with this shape (None: any length); energies may have a trailing axis of one."""
    array = arrays[key]
    if len(shape) == 1 and array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    fits = array.ndim == len(shape) and all(w in (None, g) for w, g in zip(shape, array.shape, strict=True))
    if not fits or array.dtype.kind not in "fiu":
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        raise ValueError(
            f"{path}: array {key} is {array.dtype} of shape {array.shape}; wanted numbers of shape ({wanted})"
        )
    if array.shape[0] == 0:
        raise ValueError(f"{path} has no frames: array {key} is of shape {array.shape}")
    return array.astype(np.float64)


def _units(arrays: dict[str, np.ndarray], config: DataConfig, path: Path) -> tuple[float, float, str]:
    length_name = _text(arrays, "r_unit")
    length_unit = 1.0 if length_name is None else LENGTH_UNITS.get(length_name.lower())
    if length_unit is None:
        raise ValueError(
            f"{path}: unit of length r_unit={length_name!r} is not known; known: {', '.join(LENGTH_UNITS)}"
        )
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
        raise ValueError(f"{path}: e_unit={said!r} is not known; say data.units=eV, kcal/mol, kJ/mol or Hartree")
    done = "" if unit == "eV" and length_unit == 1.0 else ", converted to eV and eV/Å"
    length = "Å" if length_unit == 1.0 else "bohr"
    return ENERGY_UNITS[unit], length_unit, f"energies in {unit}, lengths in {length} ({why}){done}"


def _text(arrays: dict[str, np.ndarray], key: str) -> str | None:
    if key not in arrays or arrays[key].size != 1:
        return None
    value = arrays[key].reshape(-1)[0]
    return value.decode() if isinstance(value, bytes) else str(value)


def _lattice(arrays: dict[str, np.ndarray], path: Path, length_unit: float) -> tuple[np.ndarray, bool]:
    """Cell and periodicity; sGDML's ``lattice`` has the lattice vectors as columns; our cells have them as rows."""
    if "lattice" not in arrays:
        return np.zeros((3, 3)), False
    return _array(arrays, "lattice", path, (3, 3)).T * length_unit, True


def _groups(arrays: dict[str, np.ndarray], config: DataConfig, path: Path, count: int) -> tuple[str, ...]:
    if config.group_key is None:
        return ()
    if config.group_key not in arrays or arrays[config.group_key].shape != (count,):
        raise ValueError(
            f"{path} has no array {config.group_key} (data.group_key) with one entry for each of {count} frames"
        )
    return tuple(str(value) for value in arrays[config.group_key])
