"""npz files of many structures of different sizes: the arrays of all atoms, one structure behind the other.

B structures, N atoms in all.  ``natoms`` [B] has the atoms of each structure.  Lengths in Å, energies in eV unless
``data.units`` names another unit.

    pos [N, 3], z [N]                     always; also positions, and atomic_numbers or numbers
    energy [B], forces [N, 3]             labels; also y and force
    cell [B, 3, 3], pbc [B, 3]            rows are lattice vectors; without pbc, structures are periodic along vectors
                                          that are not zero
    fixed [N], tags [N]                   default: none fixed, all tags 0
    sid [B], fid [B]                      name of the system, number of the frame in its relaxation; sid is the group
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from denskit.data.config import ENERGY_UNITS, DataConfig
from denskit.data.readers.named_arrays import NamedArrays
from denskit.data.structure_arrays import StructureArrays
from denskit.runtime.progress import counted


def read_concatenated(
    arrays: dict[str, np.ndarray], path: Path, config: DataConfig
) -> tuple[StructureArrays, list[str]]:
    """The structures of the npz file ``path``, in eV and Å, and messages about units and an absent array.

    Raises ValueError, naming the file and the array, for arrays that are missing or do not fit each other.
    """
    if config.stress_settings:
        raise ValueError(f"{path}: {config.stress_settings}, but concatenated npz files carry no stress")
    named, natoms = NamedArrays(arrays, path), arrays["natoms"]
    if natoms.ndim != 1 or len(natoms) == 0 or natoms.dtype.kind not in "iu" or natoms.min() < 1:
        raise ValueError(f"{path}: natoms is {natoms.dtype} of shape {natoms.shape}; wanted positive integers [B]")
    count, atoms = len(natoms), int(natoms.sum())
    unit_name = "eV" if config.units == "auto" else config.units
    unit = ENERGY_UNITS[unit_name]
    energy = named.optional("energy", "y", shape=(count,), key=config.energy_key, option="data.energy_key")
    forces = named.optional("forces", "force", shape=(atoms, 3), key=config.forces_key, option="data.forces_key")
    cell = named.optional("cell", shape=(count, 3, 3))
    cell = np.zeros((count, 3, 3)) if cell is None else cell
    pbc, fids = named.optional("pbc", shape=(count, 3)), named.optional("fid", shape=(count,))
    fixed, tags = named.optional("fixed", shape=(atoms,)), named.optional("tags", shape=(atoms,))
    sids = named.words("sid", count) if "sid" in arrays else ()
    structures = StructureArrays.of(
        name=str(path),
        sizes=natoms,
        positions=named.numbers("pos", "positions", shape=(atoms, 3)),
        atomic_numbers=named.numbers("z", "atomic_numbers", "numbers", shape=(atoms,)).astype(np.int64),
        cell=cell,
        pbc=cell.any(axis=2) if pbc is None else pbc != 0,
        fixed=None if fixed is None else fixed != 0,
        tags=None if tags is None else tags.astype(np.int64),
        energy=None if energy is None else energy * unit,
        forces=None if forces is None else forces * config.force_factor(unit),
        groups=sids if config.group_key is None else named.words(config.group_key, count),
        keys=tuple(sorted(arrays)),
        sids=sids,
        fids=None if fids is None else fids.astype(np.int64),
        denoise=config.origin != "md",
        unit=unit_name,
    )
    unit_text = "eV" if config.units == "auto" else f"{config.units}, converted to eV (data.units)"
    message = f"{path}: {counted(count, 'concatenated frame')}; energies in {unit_text}, lengths in Å"
    if forces is not None and config.forces_unit != "auto":
        message += f"; forces in {config.forces_unit}, converted to eV/Å (data.forces_unit)"
    if "fixed" not in arrays and structures.pbc.any():  # of molecules nobody expects fixed atoms
        message += "; no array fixed, so no atom is held in relaxations"
    return structures, [message]
