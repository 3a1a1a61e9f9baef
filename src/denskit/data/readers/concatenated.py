"""npz files of many structures of different sizes: the arrays of all atoms, one frame behind the other.

B frames, N atoms in all.  ``natoms`` [B] says how many atoms each frame has.  Lengths in Å, energies in eV unless
``data.units`` says otherwise.  Other names are accepted as listed in ``NAMES``:

    pos [N, 3], z [N]                     always
    energy [B], forces [N, 3]             labels
    cell [B, 3, 3], pbc [B, 3]            rows are lattice vectors; without pbc, frames are periodic along vectors that
                                          are not zero
    fixed [N], tags [N]                   none fixed, all tags 0 where absent
    sid [B], fid [B]                      name of the system, number of the frame in its relaxation; sid is the group
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from denskit.data.config import ENERGY_UNITS, DataConfig
from denskit.data.structure_arrays import StructureArrays

NAMES = {
    "natoms": ("natoms",),
    "pos": ("pos", "positions"),
    "z": ("z", "atomic_numbers", "numbers"),
    "energy": ("energy", "y"),
    "forces": ("forces", "force"),
    "cell": ("cell",),
    "pbc": ("pbc",),
    "fixed": ("fixed",),
    "tags": ("tags",),
    "sid": ("sid",),
    "fid": ("fid",),
}


def read_concatenated(
    arrays: dict[str, np.ndarray], path: Path, config: DataConfig
) -> tuple[StructureArrays, list[str]]:
    """The structures of the npz file ``path``, in eV and Å, and messages about units and absent arrays.

    Raises ValueError, naming the file and the array, for arrays that are missing or do not fit each other.
    """
    reader = _Reader(arrays, path, config)
    natoms = reader.required("natoms")
    if natoms.ndim != 1 or len(natoms) == 0 or natoms.dtype.kind not in "iu" or natoms.min() < 1:
        raise ValueError(
            f"{path}: natoms is {natoms.dtype} of shape {natoms.shape}; wanted positive integers, one a frame"
        )
    frames, atoms = len(natoms), int(natoms.sum())
    unit = ENERGY_UNITS["eV" if config.units == "auto" else config.units]
    energy, forces = reader.label("energy", (frames,)), reader.label("forces", (atoms, 3))
    cell = reader.numbers("cell", (frames, 3, 3), np.zeros((frames, 3, 3)))
    groups = reader.words(config.group_key or "sid", frames, required=config.group_key is not None)
    fids = reader.find("fid")
    structures = StructureArrays.of(
        name=str(path),
        sizes=natoms,
        positions=reader.numbers("pos", (atoms, 3)),
        atomic_numbers=reader.numbers("z", (atoms,)).astype(np.int64),
        cell=cell,
        pbc=reader.numbers("pbc", (frames, 3), (cell != 0).any(axis=2)).astype(bool),
        fixed=reader.numbers("fixed", (atoms,), np.zeros(atoms)).astype(bool),
        tags=reader.numbers("tags", (atoms,), np.zeros(atoms)).astype(np.int64),
        energy=None if energy is None else energy * unit,
        forces=None if forces is None else forces * unit,
        groups=groups,
        keys=tuple(sorted(arrays)),
        sids=reader.words("sid", frames, required=False),
        fids=None if fids is None else reader.numbers("fid", (frames,)).astype(np.int64),
        denoise=config.origin != "md",
    )
    absent = [name for name in ("fixed", "tags") if reader.find(name) is None]
    unit_text = "eV" if config.units == "auto" else f"{config.units}, converted to eV (data.units)"
    message = f"{path}: {frames} concatenated frames; energies in {unit_text}, lengths in Å"
    return structures, [message + (f"; no {' and no '.join(absent)} in the file: zeros" if absent else "")]


class _Reader:
    """Finds arrays by their names and holds them to their shapes."""

    def __init__(self, arrays: dict[str, np.ndarray], path: Path, config: DataConfig) -> None:
        self.arrays, self.path, self.config = arrays, path, config
        if config.stress_key is not None:
            raise ValueError(f"{path}: data.stress_key={config.stress_key}, but concatenated npz files carry no stress")

    def find(self, name: str) -> np.ndarray | None:
        found = [key for key in NAMES[name] if key in self.arrays]
        return self.arrays[found[0]] if found else None

    def required(self, name: str) -> np.ndarray:
        array = self.find(name)
        if array is None:
            raise ValueError(
                f"{self.path}: no array {' or '.join(NAMES[name])}; the file has {', '.join(sorted(self.arrays))}"
            )
        return array

    def numbers(self, name: str, shape: tuple[int, ...], default: np.ndarray | None = None) -> np.ndarray:
        """The array in float64, or ``default`` where there is none."""
        if default is not None and self.find(name) is None:
            return default
        return self._shaped(self.required(name), name, shape)

    def label(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        key = getattr(self.config, f"{name}_key")
        if key is None:
            array = self.find(name)
            return None if array is None else self._shaped(array, name, shape)
        if key not in self.arrays:
            raise ValueError(
                f"{self.path} has no array {key} (data.{name}_key); it has {', '.join(sorted(self.arrays))}"
            )
        return self._shaped(self.arrays[key], key, shape)

    def words(self, key: str, frames: int, *, required: bool) -> tuple[str, ...]:
        array = self.arrays.get(key)
        if array is None and not required:
            return ()
        if array is None or array.shape != (frames,):
            raise ValueError(f"{self.path} has no array {key} with one entry for each of {frames} frames")
        return tuple(str(value) for value in array)

    def _shaped(self, array: np.ndarray, name: str, shape: tuple[int, ...]) -> np.ndarray:
        if array.shape != shape or array.dtype.kind not in "fiub":
            raise ValueError(
                f"{self.path}: array {name} is {array.dtype} of shape {array.shape}; wanted numbers of shape {shape}, "
                "as natoms says"
            )
        return array.astype(np.float64)
