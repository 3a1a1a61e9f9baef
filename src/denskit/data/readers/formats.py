"""The reader of a file or folder.  Small files are read at once; shards are opened, their records stay in the file."""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from denskit.data.base import Shard, Source
from denskit.data.config import DataConfig
from denskit.data.readers.ase_files import read_ase
from denskit.data.readers.aselmdb import AseLmdbShard
from denskit.data.readers.extxyz import unpacked
from denskit.data.readers.npz import read_npz
from denskit.data.readers.oc20 import LmdbShard, PickledList
from denskit.data.readers.pymatgen_json import published_as, read_published
from denskit.data.readers.raw_oc20 import RawPair, text_of
from denskit.data.readers.shards import INDEX, PROGRESS, SIZES, open_shards, read_index
from denskit.data.records import Joined, Records, Rules, sizes_beside
from denskit.data.structure_arrays import LABELS, StructureArrays
from denskit.reading.remote import address_of, local
from denskit.runtime.progress import counted

# Endings of shards, and their readers.
_SHARDS: dict[str, Callable[[Path, DataConfig], Shard]] = {
    ".lmdb": lambda path, config: LmdbShard(path, config.fixed),
    "data.mdb": lambda path, config: LmdbShard(path, config.fixed),
    ".aselmdb": lambda path, config: AseLmdbShard(path),
    ".pkl": lambda path, config: PickledList(path, config.fixed),
    ".extxyz.xz": lambda path, config: RawPair(path, config.energies or "referenced"),
    ".extxyz": lambda path, config: RawPair(path, config.energies or "referenced"),
}
_OF_FRAMES = (".extxyz", ".xyz", ".traj", ".db", ".npz", ".cif", ".vasp")  # ordinary files in folders
_UNPACKED = (".npz", ".db", ".lmdb", ".aselmdb", ".pkl")  # whose reader opens no packed files
TRAJECTORIES, UNCERTAIN = "trajectory_*.extxyz", "uncertain.extxyz"  # of a simulation; the second from the first runs
_WITH_TEXT = (".extxyz.xz", ".extxyz")  # shards only with their text beside them
LABEL_KEYS = tuple(f"{label}_key" for label in LABELS)
_USED_BY = {  # setting: endings of the files that it is for, and what they are
    "fixed": ((".lmdb", "data.mdb", ".pkl"), "objects of OC20 and OC22 (*.lmdb, *.pkl)"),
    "oc20_ref": (tuple(_SHARDS), "records with a sid (OC20's *.lmdb and raw downloads, also converted)"),
    "energies": ((".extxyz.xz", ".extxyz"), "OC20's raw downloads (*.extxyz.xz with *.txt.xz)"),
}


def open_unchecked(path: str | Path, config: DataConfig) -> tuple[StructureArrays | Records, list[str]]:
    """The structures of a file or of a folder of shards, and messages for the log.

    Arrays in memory are unchecked, defects included; records of shards are checked when they are read.
    Raises FileNotFoundError, and ValueError for a file that cannot be read.
    """
    path = path_of(path)
    if path.is_dir():
        if (path / INDEX).is_file():
            return _folder(path, config)
        kind, files = _shards_of(path)
        return _records(path, files, kind, config)
    _require_file(path)
    ending = _ending(path)
    if ending is not None:
        return _records(path, [path], ending, config)
    if (dataset := published_as(path)) is not None:
        return read_published(path, dataset, config)
    if unpacked(path) != path and unpacked(path).suffix.lower() in _UNPACKED:
        raise ValueError(f"{path} is packed, and {unpacked(path).suffix} files are read unpacked; unpack it first")
    return (read_ase if is_read_by_ase(path) else read_npz)(path, config)


def path_of(name: str | Path) -> Path:
    """A path of this machine: for an address that of its copy, see :func:`denskit.reading.remote.local`."""
    return local(name, (INDEX, SIZES))


def place_of(name: str) -> str:
    """The address or the absolute path that a setting names: the same for one file."""
    return address_of(name) or str(Path(name).expanduser().resolve())


def places_in(name: str | Path) -> frozenset[str]:
    """The places of all files that a setting names: the same ones for a folder and for a pattern of its files.

    Shards of ``denskit data convert`` are one place, their folder.
    """
    if address_of(name) is not None:
        return frozenset({str(address_of(name))})
    path = Path(name).expanduser()
    return frozenset(str(file.resolve()) for file in files_in(path) or shards_in(path) or [path])


def _require_file(path: Path) -> None:
    """Raise FileNotFoundError where there is no file, and ValueError for a pipe."""
    if path.is_file():
        return
    if path.is_symlink() and not path.exists():
        raise FileNotFoundError(f"{path} is a broken link to {os.readlink(path)}")
    if path.exists():
        raise ValueError(f"{path} is a pipe or device, and files are read more than once; write it to a file first")
    raise FileNotFoundError(f"no file {path}{_similar(path)}")


def _similar(path: Path) -> str:
    """'; did you mean ...?' where the folder has a file of a similar name."""
    if any(letter in path.name for letter in "*?["):
        return " that this pattern names"
    names = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def is_read_by_ase(path: Path) -> bool:
    """Whether ASE reads the file."""
    other = _ending(path) is not None or path.suffix.lower() == ".npz"
    return path.is_file() and not other and published_as(path) is None


def are_shards(path: Path) -> bool:
    """Whether the path is a folder of shards or one shard."""
    return (path.is_dir() and not files_in(path)) or _ending(path) is not None


def _ending(path: Path) -> str | None:
    """The ending of a shard, None for other files; an extxyz file is a shard only with its text beside it."""
    ending = next((ending for ending in _SHARDS if path.name.endswith(ending)), None)
    return None if ending in _WITH_TEXT and text_of(path) is None else ending


def shards_in(path: Path) -> list[Path]:
    """The shards in a folder by name, but for those of ``denskit data convert``; empty for all other paths."""
    if not path.is_dir() or (path / INDEX).is_file():
        return []
    return sorted(file for files in _by_ending(path).values() for file in files)


def _by_ending(folder: Path) -> dict[str, list[Path]]:
    """The shards in a folder by name, of each ending."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        ending = next((ending for ending in _SHARDS if path.name.endswith(ending)), None)
        if ending is not None and not path.name.startswith("."):
            found.setdefault(ending, []).append(path / "data.mdb" if path.is_dir() else path)
    for ending in _WITH_TEXT:
        if ending in found and all(text_of(path) is None for path in found[ending]):
            del found[ending]  # ordinary files
    return found


def _shards_of(folder: Path) -> tuple[str, list[Path]]:
    """The shards of a folder by name, all of one kind."""
    found = _by_ending(folder)
    frames = [path for path in sorted(folder.iterdir()) if _holds_frames(path)]
    if not found and frames:
        raise ValueError(
            f"{folder} is a folder of {len(frames)} files of structures ({frames[0].name}, ...), and one file is "
            "wanted here. OC20's downloads need their texts, N.txt.xz beside N.extxyz.xz"
        )
    if (folder / PROGRESS).is_file():
        raise ValueError(f"{folder}: a conversion that has not finished; the same denskit data convert continues it")
    if not found:
        raise ValueError(f"{folder}: there is no file of structures in this folder (npz, extxyz, traj, db, ...)")
    if len(found) != 1:
        seen = ", ".join(f"{len(paths)} *{ending}" for ending, paths in found.items())
        raise ValueError(
            f"{folder} is a folder with {seen}; wanted a file of structures (npz, extxyz, traj, db, ...), or a folder "
            f"of shards of one kind ({', '.join('*' + ending for ending in _SHARDS)})"
        )
    return next(iter(found.items()))


def files_in(path: Path) -> list[Path]:
    """The ordinary files of structures in a folder, or that a pattern such as ``calc/*/OUTCAR`` names, by name.

    Of a folder of VASP the outputs: OUTCAR, else vasprun.xml, without the POSCAR and CONTCAR beside them.
    Of a simulation (:func:`of_simulation`) the trajectories alone: its uncertain frames come from these runs, and many
    are in both.  Empty for a file, for a folder of shards, and where a pattern has no file.
    """
    if glob.has_magic(str(path)) and not path.exists():
        there = next(folder for folder in path.parents if folder.exists())  # may have brackets in its name
        pattern = os.path.join(glob.escape(str(there)), path.relative_to(there))
        return sorted(file for file in map(Path, glob.glob(pattern, recursive=True)) if file.is_file())
    if not path.is_dir() or (path / INDEX).is_file() or (path / PROGRESS).is_file():
        return []
    inside = sorted(path.iterdir())
    if any(_ending(file) is not None for file in inside):
        return []
    frames = [file for file in inside if _holds_frames(file)]
    if all(file.name.startswith(("POSCAR", "CONTCAR")) for file in frames):  # of VASP, whose labels are elsewhere
        for output in ("OUTCAR", "vasprun"):
            if calculated := [file for file in inside if file.name.startswith(output) and file.is_file()]:
                return calculated
    return [file for file in frames if file.name != UNCERTAIN] if of_simulation(path) else frames


def of_simulation(path: Path) -> bool:
    """Whether this is a folder of ``denskit md`` with uncertain frames beside its trajectories."""
    return (path / UNCERTAIN).is_file() and any(path.glob(TRAJECTORIES))


def is_there(path: Path) -> bool:
    """Whether there is such a file or folder, or a file that the pattern names."""
    return path.exists() or bool(files_in(path))


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files of a folder or a pattern."""
    return sum(file.stat().st_size for file in files_in(path) or [path])


def _holds_frames(path: Path) -> bool:
    """Whether the name is that of structures as ASE or numpy write them."""
    name = path.name.removesuffix(".gz").removesuffix(".bz2").removesuffix(".xz")
    usual = Path(name).suffix.lower() in _OF_FRAMES or name.startswith(("POSCAR", "CONTCAR"))
    return usual and path.is_file() and not path.name.startswith(".")


def _records(path: Path, files: list[Path], ending: str, config: DataConfig) -> tuple[Records, list[str]]:
    shards = tuple(_SHARDS[ending](file, config) for file in files)
    rules = _rules(path, ending, config)
    whole = path.is_dir()
    count = sum(len(shard) for shard in shards)
    sizes = sizes_beside(path if whole else path.parent, count, whole=whole)
    where = f"{counted(len(shards), 'file')} *{ending}" if whole else "one file"
    said = f"{path}: {counted(count, 'structure')} in {where}, read as they are used; energies in eV, lengths in Å"
    return Records(str(path), shards, sizes, rules), [said]


def _folder(path: Path, config: DataConfig) -> tuple[Records, list[str]]:
    """A folder that ``denskit data convert`` wrote."""
    shards, sizes = open_shards(path)
    rules, converted = _rules(path, ".safetensors", config), reading_of_index(path)
    found = f"{counted(len(sizes), 'structure')} in {counted(len(shards), 'shard')}"
    said = [f"{path}: {found}, read as they are used"]
    if (origin := converted.get("origin")) is not None and config.origin not in (None, origin):
        raise ValueError(f"{path}: data.origin={config.origin}, but it was converted with data.origin={origin}")
    if rules.offsets is not None and converted.get("oc20_ref") is not None:
        rules = replace(rules, offsets=None)
        said.append(f"{path}: data.oc20_ref was added to its energies when it was converted, and is not added again")
    return Records(str(path), shards, sizes, rules), said


def reading_of_index(folder: Path) -> dict[str, Any]:
    """The settings with which a folder was converted; empty for other folders."""
    return dict(read_index(folder).get("reading", {})) if (folder / INDEX).is_file() else {}


def _rules(path: Path, ending: str, config: DataConfig) -> Rules:
    for key in (*LABEL_KEYS, "group_key", "units", "forces_unit", "stress_unit", "stress_sign"):
        value = getattr(config, key)
        if value not in (None, "auto", "eV", "tension"):
            raise ValueError(f"{path}: data.{key}={value}, but *{ending} files have their own names, in eV and Å")
    offsets = None if config.oc20_ref is None else Path(config.oc20_ref).expanduser()
    return Rules(missing="mask", denoise=config.origin != "md", offsets=offsets)


def require_effect(config: DataConfig, paths: Sequence[str | Path]) -> None:
    """Raise ValueError for ``data.fixed`` or ``data.energies`` where no file or folder is of the kind they are for.

    A path that is not there may be of any kind: whoever reads it says so.
    """
    for name, (endings, kind) in _USED_BY.items():
        value = getattr(config, name)
        if value == DataConfig.model_fields[name].default:
            continue
        found = [path_of(path) for path in paths]
        if any(not path.exists() or _is_one_of(path, endings) for path in found):
            continue
        raise ValueError(
            f"{', '.join(map(str, paths))}: data.{name}={value} is for {kind}, and none is given. Leave it out; shards "
            "of denskit data convert keep what was chosen then, other files say it themselves"
        )


def require_keys(data: Mapping[str, Any] | None, *sources: Source) -> None:
    """Raise ValueError for a field that ``data`` names as a label and that no structure of the sources has."""
    parts = [part for source in sources for part in (source.sources if isinstance(source, Joined) else [source])]
    arrays = [source for source in parts if isinstance(source, StructureArrays)]
    if len(arrays) < len(parts):
        return  # shards have names of their own
    keys = sorted({key for source in arrays for key in source.keys})
    for name in LABEL_KEYS:
        key = (data or {}).get(name)
        if key is not None and key not in keys:
            near = "".join(f"; did you mean {near}?" for near in difflib.get_close_matches(key, keys, 1))
            raise ValueError(
                f"{', '.join(source.name for source in arrays)}: no frame has {key} (data.{name}). Fields that frames "
                f"have: {', '.join(keys) or 'none'}{near}"
            )


def _is_one_of(path: Path, endings: Sequence[str]) -> bool:
    """Whether a file has one of the endings, or a folder a shard with one."""
    if not path.is_dir():
        return _ending(path) in endings
    if (path / INDEX).is_file():
        return endings == _USED_BY["oc20_ref"][0]
    return any(_ending(file) in endings for file in path.iterdir())
