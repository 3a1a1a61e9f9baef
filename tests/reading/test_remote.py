"""Data at an address: copied once, shards when they are read, checked, used without a connection."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import ase
import numpy as np
import pytest
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms
from ase.io import write

from data.shard_files import same
from denskit.active.frames import read_frames
from denskit.cli.md import _read
from denskit.data import DataConfig, read_file
from denskit.data.convert import convert
from denskit.data.loading import load_files
from denskit.data.readers.shards import INDEX, SIZES
from denskit.data.writing import Originals
from denskit.reading.remote import address_of, local


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DENSKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    """A file of ten structures."""
    path = tmp_path / "elsewhere" / "frames.extxyz"
    path.parent.mkdir()
    write(path, [copper(seed) for seed in range(10)])
    return path


def copper(seed: int) -> ase.Atoms:
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.1, seed=seed)
    atoms.calc = EMT()
    atoms.get_potential_energy()
    return atoms


@pytest.fixture
def shards(frames: Path) -> Path:
    """A folder of three shards, with four structures at most."""
    folder = frames.parent / "shards"
    convert([frames], folder, per_shard=4)
    return folder


def arrived(cache: Path) -> set[str]:
    return {path.name for path in cache.rglob("*") if path.is_file()} - {"denskit_origin.json"}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("s3://bucket/some/omat24", "s3://bucket/some/omat24"),
        (Path("s3://bucket/some/omat24"), "s3://bucket/some/omat24"),  # Path has taken a slash away
        (Path("https://host:80/x.npz"), "https://host:80/x.npz"),
        ("file:///shared/x.npz", "file:///shared/x.npz"),
        (Path("file:///shared/x.npz"), "file:///shared/x.npz"),
        ("C:/data/x.npz", None),
        ("runs/a:b/x.npz", None),
        ("/data/x.npz", None),
    ],
)
def test_addresses(name: str | Path, wanted: str | None) -> None:
    assert address_of(name) == wanted


def test_a_file_is_copied_once_and_again_when_it_changes(frames: Path, cache: Path) -> None:
    here, there = read_file(frames)[0], read_file(frames.as_uri())[0]
    for ours, theirs in zip(here, there, strict=True):
        same(ours, theirs)
    copy = local(frames.as_uri(), (INDEX, SIZES))
    assert cache in copy.parents
    first = copy.stat().st_mtime_ns
    assert local(frames.as_uri(), (INDEX, SIZES)).stat().st_mtime_ns == first
    write(frames, [copper(seed) for seed in range(3)])
    assert len(read_file(frames.as_uri())[0]) == 3


def test_a_name_without_an_ending_may_be_a_file(frames: Path) -> None:
    plain = frames.rename(frames.parent / "frames")
    assert local(plain.as_uri(), (INDEX, SIZES)).read_bytes() == plain.read_bytes()


def test_shards_arrive_when_they_are_read(shards: Path, cache: Path) -> None:
    here, there = read_file(shards)[0], read_file(shards.as_uri())[0]
    assert arrived(cache) == {INDEX, SIZES}
    same(here[5], there[5])
    assert arrived(cache) == {INDEX, SIZES, "shard-00001.safetensors"}
    for ours, theirs in zip(here, there, strict=True):
        same(ours, theirs)
    assert len(arrived(cache)) == 5


def test_a_damaged_shard_is_refused(shards: Path, cache: Path) -> None:
    there = read_file(shards.as_uri())[0]
    shard = shards / "shard-00001.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(ValueError, match=r"file:.*shard-00001.safetensors has other contents than the index"):
        there[5]
    assert "shard-00001.safetensors" not in arrived(cache)


def test_splits_are_those_of_the_folder_itself(shards: Path) -> None:
    """So a run may begin with the folder and go on with a copy, of which shards are still missing."""
    splits = [load_files(DataConfig(path=str(path)), seed=0).splits for path in (shards, shards.as_uri())]
    assert splits[0] is not None and splits[1] is not None
    assert splits[0].sha256 == splits[1].sha256
    assert splits[0].train.tolist() == splits[1].train.tolist()


def test_without_a_connection_the_copy_is_used(shards: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="absent cannot be reached .* or is neither a file nor a folder of shards"):
        read_file(f"{shards.as_uri()}/absent")
    read_file(shards.as_uri())[0][5]
    shards.rename(shards.parent / "gone")
    with caplog.at_level(logging.WARNING):
        there = read_file(shards.as_uri())[0]
    assert "cannot be reached" in caplog.text
    assert len(there[5]) > 0
    with pytest.raises(ValueError, match=r"file:.*shard-00000.safetensors cannot be fetched"):
        there[0]


def test_names_stay_in_the_cache(tmp_path: Path, cache: Path) -> None:
    for address in ("memory://a/..", "memory://a/b?c=../../d"):
        with pytest.raises(ValueError, match="cannot be reached"):
            read_file(address)
    assert not arrived(cache)


@pytest.mark.parametrize(
    ("address", "words"), [("foo://x/y", "Protocol not known"), ("s3://x/y", "denskit\\[cloud\\]")]
)
def test_what_is_lacking_is_named(address: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"{address}: .*{words}"):
        read_file(address)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(shards: Path) -> Iterator[str]:
    pytest.importorskip("aiohttp")
    handler = functools.partial(_Quiet, directory=str(shards.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_server_of_the_web(server: str, frames: Path, shards: Path) -> None:
    for name in ("frames.extxyz", "shards"):
        for ours, theirs in zip(read_file(frames)[0], read_file(f"{server}/{name}")[0], strict=True):
            assert len(ours) == len(theirs)
            assert ours.energy == pytest.approx(theirs.energy)


@pytest.mark.parametrize("ending", [".extxyz", ".traj"])
def test_all_fields_of_a_file_at_an_address_are_kept(tmp_path: Path, ending: str) -> None:
    """Charge, constraints and velocities, for labels, predictions and simulations."""
    ion = copper(0)
    ion.info["charge"] = 1
    ion.set_momenta(ion.positions)
    ion.set_constraint(FixAtoms([1]))
    write(tmp_path / f"ions{ending}", [ion])
    address = f"file://{tmp_path}/ions{ending}"
    source = read_file(address)[0]
    given = (read_frames(address)[0], Originals(address, source)(source[0]), _read(tmp_path, Path(address), None)[0])
    for found in given:
        assert found.info["charge"] == 1 and list(found.constraints[0].index) == [1]
        np.testing.assert_allclose(found.get_momenta(), ion.get_momenta(), atol=1e-7)
