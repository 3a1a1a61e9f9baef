"""Every kind of file that comes from outside: a small whole one, how it is read, and how it is damaged."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import torch
from ase.build import bulk

from data.published import write_s2ef
from data.readers.test_ase_databases import written as _rows_of_ase
from data.readers.test_aselmdb import ROWS
from data.readers.test_raw_oc20 import _write as write_raw
from denskit.cli.import_ import _settings
from denskit.data import DataConfig, load_data, read_file
from denskit.data.datasets.embedded import FOLDER as EMBEDDED
from denskit.data.readers.shards import INDEX, SIZES, ShardFile, write_shard
from denskit.data.references import linear_references, system_references
from denskit.data.splits import Splits, identity_of
from denskit.evaluation.study.config import load_study
from denskit.models import build_force_field
from denskit.models.equiformer import EquiformerConfig
from denskit.models.importing import import_checkpoint
from denskit.models.model_file import load_model, read_header, save_model
from denskit.models.scaling import Scaling
from denskit.presets import preset_text, study_names, study_text
from denskit.settings import dotted
from denskit.training.checkpoint import MAY_CHANGE, Checkpoint, load_checkpoint, save_checkpoint
from denskit.training.load_config import load_config
from denskit.training.run_folder import RunFolder
from fuzz.child import Files
from fuzz.mutations import (
    Mutation,
    arrays,
    contents,
    damage,
    in_lmdb,
    in_model_header,
    in_safetensors,
    in_xz,
    in_zip,
    in_zlib,
    lmdb_of,
    records,
    values,
    words,
)  # fmt: skip
from models.test_published import TINY, state_of
from models.test_published_open_catalyst import checkpoint

RUN = Path(__file__).parent.parent / "training" / "tiny.yaml"
MOST = 30  # records of a file that are read
SMALL = EquiformerConfig(
    num_layers=1, channels=(4, 2), feature_channels=(4, 2), head_channels=(2, 2), num_heads=1, ffn_channels=(4, 2),
    num_basis=4, radial_hidden=(4,), average_degree=5.0, average_atoms=9.0,
)  # fmt: skip


@dataclass(frozen=True)
class Format:
    """A kind of file."""

    make: Callable[[Path], None]  # whole files, into a folder
    read: Callable[[Path], None]  # the files of a folder
    mutations: dict[str, tuple[Mutation, ...]] = field(default_factory=dict)  # by file; the others stay whole

    @cache  # noqa: B019 (formats live as long as the tests)
    def seed(self) -> Files:
        """Whole files by name."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            self.make(folder)
            return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def mutated(self, rng: np.random.Generator) -> Files:
        """One file damaged in one way."""
        name = str(rng.choice(list(self.mutations)))
        ways = self.mutations[name]
        whole = self.seed()
        return {**whole, name: ways[int(rng.integers(0, len(ways)))](whole[name], rng)}

    def __hash__(self) -> int:
        return id(self)


def structures(name: str) -> Callable[[Path], None]:
    """Reads all structures of a file of the folder; of "" the folder itself."""

    def read(folder: Path) -> None:
        os.environ["DENSKIT_CACHE"] = str(folder / "cache")
        source, _ = read_file(folder / name)
        errors: list[ValueError] = []
        for record in range(min(len(source), MOST)):
            try:
                source[record]
            except ValueError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        list(source)

    return read


def _frames() -> dict[str, np.ndarray]:
    """Real frames of ethanol."""
    with np.load(EMBEDDED / "ethanol.npz", allow_pickle=False) as file:
        return {name: array[:4] if name in "REF" else array for name, array in ((n, file[n]) for n in file.files)}


def _npz(folder: Path) -> None:
    np.savez_compressed(folder / "a.npz", **_frames())


def _concatenated(folder: Path) -> None:
    real = _frames()
    np.savez(
        folder / "a.npz",
        natoms=np.full(4, 9),
        pos=real["R"].reshape(-1, 3),
        z=np.tile(real["z"], 4),
        energy=real["E"].reshape(-1),
        forces=real["F"].reshape(-1, 3),
        cell=np.tile(np.eye(3) * 20, (4, 1, 1)),
        fixed=np.zeros(36, bool),
        tags=np.zeros(36, int),
        sid=np.array(["a", "a", "b", "b"]),
        fid=np.arange(4),
    )


def _extxyz(folder: Path) -> None:
    write_raw(folder, packed=False)
    (folder / "0.txt").unlink()


def _database(folder: Path) -> None:
    _rows_of_ase(folder / "a.db", rows=3)


def _poscar(folder: Path) -> None:
    ase.io.write(folder / "POSCAR", bulk("NaCl", "rocksalt", a=5.6, cubic=True), format="vasp")


def _shards(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        source, _ = read_file(write_s2ef(Path(name) / "a.lmdb", 5))
        systems = list(source)
    write_shard(folder / "shard-00000.safetensors", systems)
    shard = ShardFile(folder / "shard-00000.safetensors", 5, (folder / "shard-00000.safetensors").stat().st_size)
    np.save(folder / SIZES, np.array([len(system) for system in systems], dtype=np.int32))
    entry = {"file": shard.path.name, "structures": 5, "bytes": shard.size, "sha256": "0"}
    (folder / INDEX).write_text(json.dumps({"format": "denskit-shards-1", "structures": 5, "shards": [entry]}))


def _read_shards(folder: Path) -> None:
    """As :func:`structures`; the index says of a damaged shard how long it is now."""
    index, said = (folder / INDEX).read_bytes(), len(SHARDS.seed()["shard-00000.safetensors"])
    is_now = (folder / "shard-00000.safetensors").stat().st_size
    (folder / INDEX).write_bytes(index.replace(b'"bytes": %d' % said, b'"bytes": %d' % is_now))
    structures("")(folder)


def _lmdb(folder: Path) -> None:
    """Real records where the real file is at hand, else made ones."""
    real = Path(os.environ.get("DENSKIT_DATA", "absent")) / "oc20_s2ef_sample.lmdb"
    if not real.is_file():
        write_s2ef(folder / "a.lmdb", 5)
        return
    held = records(real.read_bytes())
    kept = {str(number).encode(): held[str(number).encode()] for number in range(4)}
    (folder / "a.lmdb").write_bytes(lmdb_of({**kept, b"length": pickle.dumps(4)}))


def _pickled(folder: Path) -> None:
    from data.published import new_object, old_object, pickled, s2ef

    (folder / "a.pkl").write_bytes(pickled([old_object(s2ef(0)), new_object(s2ef(1))]))


def _aselmdb(folder: Path) -> None:
    (folder / "a.aselmdb").write_bytes(lmdb_of(records(ROWS.read_bytes())))  # smaller


def _model(folder: Path) -> None:
    torch.manual_seed(0)
    scaling = Scaling(elements=[1, 8], references={"O": -432.1}, energy_scale=0.7, force_scale=0.7)
    save_model(folder / "a.safetensors", build_force_field(SMALL, heads={"noise": "1"}, scaling=scaling), {"about": 1})


def _read_model(folder: Path) -> None:
    """As ``denskit info`` and all that use a model do."""
    list(dotted(read_header(folder / "a.safetensors")))
    load_model(folder / "a.safetensors")


def _last(folder: Path) -> None:
    torch.manual_seed(0)
    force_field = build_force_field(SMALL, heads={}, scaling=Scaling(elements=[1, 8]))
    optimizer = torch.optim.AdamW(force_field.parameters(), lr=1e-3)
    for parameter in force_field.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    save_checkpoint(
        folder / "last.pt",
        Checkpoint(
            step=3, weights=force_field.state_dict(), optimizer=optimizer.state_dict(), average=None, best=0.5,
            seconds=1.0, num_train=20, num_processes=1, config=load_config(RUN).document(), loss_scale={}, window={},
            inputs={}, scaling=force_field.scaling.to_dict(), unjudged=False, failure="",
        ),
    )  # fmt: skip


def _read_last(folder: Path) -> None:
    loaded = load_checkpoint(folder / "last.pt")
    try:
        now = load_config(RUN).document() | {"training structures": 20}
        RunFolder(folder).require_same(loaded.config | {"training structures": loaded.num_train}, now, MAY_CHANGE)
    except ValueError as error:  # about settings: the caller knows the file
        raise ValueError(f"last.pt: {error}") from error


def _published(folder: Path) -> None:
    torch.manual_seed(0)
    normalizers = {"energy": {"mean": 0.1, "std": torch.tensor(2.0)}, "forces": {"mean": 0.0, "std": np.float64(2.0)}}
    model = {"name": "equiformer", "num_layers": 2}
    torch.save(checkpoint(state_of(), model, normalizers=normalizers), folder / "a.pt")


def _references(folder: Path) -> None:
    np.savez(folder / "linear.npz", coeff=np.linspace(-5, 0, 100))
    (folder / "linear.json").write_text(json.dumps({"H": -3.4, "O": -7}))
    (folder / "systems.json").write_text(json.dumps({"random7": -3.4, "8": -7}))
    (folder / "systems.pkl").write_bytes(pickle.dumps({"random7": -3.4, "random8": np.float64(2.0)}))


def _read_references(folder: Path) -> None:
    linear = dict.fromkeys(("linear.npz", "linear.json"), linear_references)
    _read_each(folder, {**linear, **dict.fromkeys(("systems.json", "systems.pkl"), system_references)})


def _splits(folder: Path) -> None:
    _npz(folder)
    Splits(np.arange(2), np.array([2]), np.array([3]), file="a.npz", how="by hand").save(folder / "splits.json")
    data = json.loads((folder / "splits.json").read_text())
    data["size"], data["sha256"] = identity_of(folder / "a.npz")
    (folder / "splits.json").write_text(json.dumps(data))


def _read_splits(folder: Path) -> None:
    split: Any = {"file": str(folder / "splits.json")}
    load_data(DataConfig(path=str(folder / "a.npz"), split=split), seed=0)


def _yaml(folder: Path) -> None:
    (folder / "run.yaml").write_bytes(RUN.read_bytes())
    (folder / "preset.yaml").write_text(preset_text("md17/equiformer_l2_dens"))
    (folder / "study.yaml").write_text(study_text(study_names()[0]))
    (folder / "model.yaml").write_text(
        "model:\n  name: equiformer\n  num_layers: 2\n  channels: [8, 4]\n  feature_channels: &two [8, 4]\n"
        "  head_channels: *two\n  ffn_channels: *two\n"
    )


def _read_yaml(folder: Path) -> None:
    reads: dict[str, Callable[[Path], Any]] = {
        "model.yaml": lambda path: _settings(str(path)),
        "run.yaml": load_config,
        "preset.yaml": lambda path: load_config(path, ["data.molecule=aspirin"]),
        "study.yaml": load_study,
    }
    _read_each(folder, reads)


def _read_each(folder: Path, reads: dict[str, Callable[[Path], Any]]) -> None:
    """Read all files, and raise the first error for people."""
    errors: list[ValueError] = []
    for name, read in reads.items():
        try:
            read(folder / name)
        except ValueError as error:
            errors.append(error)
    if errors:
        raise errors[0]


SHARDS = Format(
    _shards,
    _read_shards,
    {
        INDEX: (values, damage),
        SIZES: (damage,),
        "shard-00000.safetensors": (damage, in_safetensors(values), in_safetensors(damage)),
    },
)
FORMATS = {
    "npz": Format(_npz, structures("a.npz"), {"a.npz": (damage, arrays, in_zip(damage, ".npy"))}),
    "concatenated": Format(_concatenated, structures("a.npz"), {"a.npz": (arrays, in_zip(damage, ".npy"))}),
    "extxyz": Format(_extxyz, structures("0.extxyz"), {"0.extxyz": (words, damage)}),
    "database": Format(_database, structures("a.db"), {"a.db": (damage,)}),
    "poscar": Format(_poscar, structures("POSCAR"), {"POSCAR": (words, damage)}),
    "raw": Format(
        write_raw, structures(""), {name: (damage, in_xz(words), in_xz(damage)) for name in ("0.extxyz.xz", "0.txt.xz")}
    ),
    "lmdb": Format(_lmdb, structures("a.lmdb"), {"a.lmdb": (damage, in_lmdb(damage))}),
    "pickled": Format(_pickled, structures("a.pkl"), {"a.pkl": (damage,)}),
    "aselmdb": Format(
        _aselmdb, structures("a.aselmdb"), {"a.aselmdb": (damage, in_lmdb(in_zlib(values)), in_lmdb(in_zlib(damage)))}
    ),
    "shards": SHARDS,
    "model": Format(
        _model,
        _read_model,
        {"a.safetensors": (in_model_header(values), in_model_header(damage), in_safetensors(values), damage)},
    ),
    "last": Format(_last, _read_last, {"last.pt": (damage, in_zip(damage, "data.pkl"), contents)}),
    "published": Format(
        _published,
        lambda folder: import_checkpoint(folder / "a.pt", config=TINY) and None,
        {"a.pt": (damage, in_zip(damage, "data.pkl"), contents)},
    ),
    "references": Format(
        _references,
        _read_references,
        {
            "linear.npz": (damage, arrays),
            "linear.json": (values, damage),
            "systems.json": (values, damage),
            "systems.pkl": (damage,),
        },
    ),
    "splits": Format(_splits, _read_splits, {"splits.json": (values, damage)}),
    "yaml": Format(
        _yaml, _read_yaml, {f"{name}.yaml": (words, damage) for name in ("run", "model", "preset", "study")}
    ),
}
