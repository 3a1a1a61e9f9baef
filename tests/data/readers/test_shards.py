"""The shard format: what goes in comes out, in little memory, and damage is named."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from data.shard_files import same, write_index
from denskit.batch import System
from denskit.data import DataConfig, load_data, read_file
from denskit.data.convert import convert, verify
from denskit.data.readers.shards import INDEX, SIZES, ShardFile, open_shards, write_shard
from denskit.files import sha256_of

PER_SHARD = 4
BOUND_MB = 24  # by how much streaming may raise the memory of a process, whatever the data's size


@pytest.fixture
def mixed(systems: dict[str, System]) -> list[System]:
    """Nine structures of different sizes, some without some labels."""
    base = list(systems.values())
    return [
        *base,
        replace(base[0], energy=None, forces=None, denoise=False, sid="random12", fid=7, group="Cu3 Å", of_model=True,
            electrons=(("charge", -1.0), ("spin", 0.5))),
        replace(base[4], stress=None, relaxed_energy=-1.5, relaxed_positions=base[4].positions + 0.1, fid=0,
            electrons=(("total_charge", 2.0),), unconverged=True),
        replace(
            base[1], positions=base[1].positions.astype(np.float32).astype(np.float64), tags=np.array([300, -1, 0])
        ),
    ]  # fmt: skip


@pytest.fixture
def shard(mixed: list[System], tmp_path: Path) -> ShardFile:
    path = tmp_path / "shard-00000.safetensors"
    write_shard(path, mixed)
    return ShardFile(path, len(mixed), path.stat().st_size)


def test_what_goes_in_comes_out(mixed: list[System], shard: ShardFile) -> None:
    for record, system in enumerate(mixed):
        same(system, shard[record])
        assert shard[record].index == record
    assert shard.sizes.tolist() == [len(system) for system in mixed]
    assert shard.elements_of_structures() == [frozenset(system.atomic_numbers.tolist()) for system in mixed]
    with pytest.raises(IndexError, match="record 9 of"):
        shard[9]


def test_arrays_are_the_readers_own(shard: ShardFile) -> None:
    """Writable, and a change in one leaves the file and other readers alone."""
    before = shard[0].positions.copy()
    shard[0].positions[:] = 0
    assert np.array_equal(shard[0].positions, before)


def test_any_reader_of_safetensors_can_read_it(mixed: list[System], shard: ShardFile) -> None:
    columns = load_file(shard.path)
    begin, end = columns["starts"][1:3]
    assert np.array_equal(columns["forces"][begin:end], mixed[1].forces)
    assert columns["has_energy"].tolist() == [system.energy is not None for system in mixed]
    assert columns["positions"].dtype == np.float64 and columns["tags"].dtype == np.int64


def test_numbers_of_single_precision_take_its_room(mixed: list[System], tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    single = [replace(mixed[8], forces=None, tags=np.zeros(3, dtype=np.int64))]
    write_shard(path, single)
    columns = load_file(path)
    assert columns["positions"].dtype == np.float32 and columns["tags"].dtype == np.uint8
    assert "forces" not in columns and "has_forces" not in columns
    assert not {"charge", "spin", "of_model", "unconverged"} & set(columns)  # as in shards of earlier versions
    same(single[0], ShardFile(path, 1, path.stat().st_size)[0])


def test_columns_in_fortran_order_are_stored_right(mixed: list[System], tmp_path: Path) -> None:
    path = tmp_path / "fortran.safetensors"
    turned = replace(
        mixed[0], forces=np.asfortranarray(mixed[0].forces), positions=np.asfortranarray(mixed[0].positions)
    )
    write_shard(path, [turned])
    same(mixed[0], ShardFile(path, 1, path.stat().st_size)[0])


def test_pickled_and_by_many_threads(mixed: list[System], shard: ShardFile) -> None:
    copy = pickle.loads(pickle.dumps(shard))
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda k: copy[k % 9], range(180)))
    for k, system in enumerate(found):
        same(mixed[k % 9], system)


def test_after_a_fork(mixed: list[System], shard: ShardFile) -> None:
    same(mixed[3], shard[3])  # the parent has the file open
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(shard[5].positions, mixed[5].positions) else 1)
    same(mixed[2], shard[2])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def damaged(shard: ShardFile, edit: object, tmp_path: Path) -> ShardFile:
    """A copy of the shard with other bytes."""
    raw = bytearray(shard.path.read_bytes())
    raw = edit(raw) or raw  # type: ignore[operator]
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(raw)
    return ShardFile(path, shard.count, len(raw))


def starts_at(raw: bytearray) -> int:
    length = int.from_bytes(raw[:8], "little")
    return 8 + length + json.loads(raw[8 : 8 + length])["starts"]["data_offsets"][0]


def test_a_truncated_file_is_named(shard: ShardFile, tmp_path: Path) -> None:
    short = damaged(shard, lambda raw: raw[:-10], tmp_path)
    with pytest.raises(ValueError, match=r"damaged.safetensors is damaged, .*does not fit the file"):
        short[0]
    with pytest.raises(ValueError, match=r"is damaged.*bytes and a short header"):
        replace(short, size=short.size + 1)[0]


@pytest.mark.parametrize(
    "raw", [b"\x00", b"\x02" + b"\x00" * 7 + b"[]", b"\xff" * 400, b"\x10" + b"\x00" * 7 + b"[1,2,3,4,5,6,7,8"]
)
def test_what_is_no_shard_is_named(raw: bytes, shard: ShardFile, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="damaged.safetensors is damaged, or no shard of Denskit"):
        damaged(shard, lambda _: bytearray(raw), tmp_path)[0]


def test_offsets_that_lead_elsewhere_name_the_record(shard: ShardFile, tmp_path: Path) -> None:
    def edit(raw: bytearray) -> None:
        place = starts_at(raw) + 8 * 3
        raw[place : place + 8] = (10**9).to_bytes(8, "little")

    broken = damaged(shard, edit, tmp_path)
    same(shard[0], broken[0])
    with pytest.raises(ValueError, match=r"damaged.safetensors, record 2 is damaged.*\(rows"):
        broken[2]


@pytest.fixture
def folder(mixed: list[System], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three shards."""
    source = tmp_path / "source"
    source.mkdir()
    write_shard(source / "shard-00000.safetensors", mixed)
    write_index(source, [ShardFile(source / "shard-00000.safetensors", 9, 0)], [len(system) for system in mixed])
    out = tmp_path / "folder"
    convert([source], out, per_shard=PER_SHARD)
    return out


def test_a_folder_is_a_source(mixed: list[System], folder: Path) -> None:
    source, messages = read_file(folder)
    assert len(source) == 9 and source.sizes is not None
    assert isinstance(source.sizes, np.memmap)
    assert source.sizes.tolist() == [len(system) for system in mixed]
    for place, system in enumerate(mixed):
        same(system, source[place])
        assert source[place].index == place
    assert any("9 structures in 3 shards" in line for line in messages)


def test_training_reads_it(folder: Path) -> None:
    config = DataConfig.model_validate({"train": str(folder), "valid": str(folder / "x"), "missing": "mask"})
    with pytest.raises(FileNotFoundError, match="no file"):
        load_data(config, 0)
    data = load_data(DataConfig.model_validate({"path": str(folder), "missing": "mask"}), 0)
    assert data.valid is not None and len(data.train) + len(data.valid) < 10
    assert data.train.sizes is not None and data.train.sizes.tolist() == [
        len(data.train[i]) for i in range(len(data.train))
    ]


def test_an_incomplete_folder_is_refused(folder: Path) -> None:
    assert verify(folder) == 9
    second = folder / "shard-00001.safetensors"
    raw = second.read_bytes()
    second.write_bytes(raw[:-1])
    with pytest.raises(ValueError, match=r"shard-00001.safetensors has \d+ bytes; .*index.json says"):
        open_shards(folder)
    second.write_bytes(raw[:-1] + b"?")
    with pytest.raises(ValueError, match="shard-00001.safetensors is missing, or differs from the written file"):
        verify(folder)
    second.unlink()
    with pytest.raises(ValueError, match="shard-00001.safetensors is missing"):
        open_shards(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "denskit-shards-9"}, "is of format denskit-shards-9"),
        ({"structures": 8}, "do not add up"),
        ({"shards": [{"file": "../x", "structures": 9, "bytes": 1}]}, "lies elsewhere"),
        ({"shards": [{"file": "x", "structures": "9", "bytes": 1}]}, "structures is '9'"),
        ({"shards": 3}, "is not an index of shards"),
    ],
)
def test_an_index_of_another_kind_is_refused(change: dict[str, object], message: str, folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text()) | change
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match=message):
        open_shards(folder)


def test_streaming_takes_constant_memory(systems: dict[str, System], tmp_path: Path) -> None:
    """A shuffled pass over a set of many gigabytes: the same shard under 600 names."""
    made, count, shards = tmp_path / "large", 2048, 600
    made.mkdir()
    first = made / "shard-00000.safetensors"
    write_shard(first, [replace(systems["slab"], positions=np.tile(systems["slab"].positions, (8, 1)),
        atomic_numbers=np.tile(systems["slab"].atomic_numbers, 8), fixed=np.tile(systems["slab"].fixed, 8),
        tags=np.tile(systems["slab"].tags, 8), forces=np.tile(systems["slab"].forces, (8, 1)))] * count)  # fmt: skip
    sha = sha256_of(first)
    size = first.stat().st_size
    for number in range(1, shards):
        os.link(first, made / f"shard-{number:05d}.safetensors")
    entry = {"structures": count, "bytes": size, "sha256": sha}
    entries = [{"file": f"shard-{number:05d}.safetensors", **entry} for number in range(shards)]
    index = {"format": "denskit-shards-1", "structures": count * shards, "shards": entries}
    (made / INDEX).write_text(json.dumps(index))
    np.save(made / SIZES, np.full(count * shards, 80, dtype=np.int32))
    assert size * shards > 4e9
    run = subprocess.run([sys.executable, "-c", _STREAM, str(made)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    atoms, grown = map(float, run.stdout.split())
    assert atoms == 1200 * 80
    assert grown < BOUND_MB


_STREAM = """
import resource, sys
import numpy as np
from denskit.data import read_file
from denskit.training.loader import epoch_order

source, _ = read_file(sys.argv[1])
def stream(first, last):
    order = epoch_order(0, 0, len(source), np.arange(first, last))
    return sum(len(source[int(place)]) + 0 * int(source.sizes[place]) for place in order)
stream(0, 100)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
atoms = stream(100, 1300)
print(atoms, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
