"""LMDB files: shared by threads and forks, pickled by path, and every damage named instead of a crash."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import numpy as np
import pytest

from data.published import write_lmdb, write_s2ef
from denskit.data import DataConfig, read_file
from denskit.data.readers.lmdb import LmdbFile


def test_values_by_key(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a.lmdb", [b"zero", b"one"], length=2)
    file = LmdbFile(path)
    assert file.entries == 3
    assert file.get("1") == b"one"
    assert file.get("2") is None


@pytest.mark.parametrize("seed", range(6))
def test_the_tree_is_read_as_by_the_library(seed: int, tmp_path: Path) -> None:
    """Trees of one to four levels, values inside pages and on pages of their own, keys absent, changed and deleted."""
    rng = np.random.default_rng(seed)
    count, longest = [(1, 10), (40, 300), (500, 9000), (3000, 100), (20_000, 60), (2000, 3000)][seed]
    held = {str(number): rng.bytes(int(rng.integers(0, longest))) for number in range(count)}
    path = tmp_path / "a.lmdb"
    with lmdb.open(str(path), subdir=False, map_size=2**28, lock=False) as file:
        for part in range(3):  # transactions, which leave old pages behind
            with file.begin(write=True) as transaction:
                for key in list(held)[part::3]:
                    transaction.put(key.encode(), held[key])
        with file.begin(write=True) as transaction:
            for key in list(held)[:: 1 + count // 20]:
                held[key] = rng.bytes(5)
                transaction.put(key.encode(), held[key])
            gone = list(held)[1 :: 1 + count // 10]
            for key in gone:
                del held[key]
                transaction.delete(key.encode())
    found = LmdbFile(path)
    assert found.entries == len(held)
    assert all(found.get(key) == value for key, value in held.items())
    assert all(found.get(key) is None for key in (*gone, "", "~", str(count)))


def test_more_keys_than_bytes_are_refused(tmp_path: Path) -> None:
    """The number of keys is that of the header, and arrays of that length are made from it."""
    path = write_lmdb(tmp_path / "a.lmdb", [b"zero", b"one"])
    raw = bytearray(path.read_bytes())
    for page in (0, 4096):
        raw[page + 120 : page + 128] = (10**12).to_bytes(8, "little")
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"a.lmdb is damaged: it says that it holds 1000000000000 keys, more than fit"):
        read_file(path)


def test_smallest_keys_fit(tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    keys = [bytes([first, second]) for first in range(33, 127) for second in range(33, 127)]
    with lmdb.open(str(path), subdir=False, map_size=2**24, lock=False) as file, file.begin(write=True) as transaction:
        for key in keys:
            transaction.put(key, b"", append=True)
    assert LmdbFile(path).entries == len(keys)


def test_damaged_pages_are_named(tmp_path: Path) -> None:
    """Where the library reads beyond the file and kills the process."""
    whole = write_s2ef(tmp_path / "whole.lmdb", 300).read_bytes()
    path, errors, rng = tmp_path / "a.lmdb", [], np.random.default_rng(0)
    for page in range(2, len(whole) // 4096):
        for begin in (page * 4096 + 10, page * 4096 + int(rng.integers(16, 4000))):
            path.write_bytes(whole[:begin] + rng.bytes(8) + whole[begin + 8 :])
            file = LmdbFile(path)
            for key in range(0, 300, 7):
                try:
                    file.get(str(key))
                except ValueError as error:
                    errors.append(str(error))
    assert len(errors) > 100
    assert all("a.lmdb, key '" in error and "the LMDB file is corrupt" in error for error in errors)


def test_one_file_may_be_read_from_many_places(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a.lmdb", [b"zero"])
    (tmp_path / "link.lmdb").symlink_to(path)
    files = [
        LmdbFile(path),
        LmdbFile(path),
        LmdbFile(tmp_path / "link.lmdb"),
        pickle.loads(pickle.dumps(LmdbFile(path))),
    ]
    assert [file.get("0") for file in files] == [b"zero"] * 4


def test_nothing_is_written_beside_the_file(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a.lmdb", [b"zero"])
    path.chmod(0o444)
    LmdbFile(path).get("0")
    assert [file.name for file in tmp_path.iterdir()] == ["a.lmdb"]


def test_threads_and_forks_read_the_same(tmp_path: Path) -> None:
    source, _ = read_file(write_s2ef(tmp_path / "a.lmdb", 40))
    wanted = [source[index].energy for index in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda index: source[index % 40].energy, range(400))) == wanted * 10
    child = os.fork()
    if child == 0:  # inherits what its parent opened, and unpickles a reader as a worker would
        again = pickle.loads(pickle.dumps(source))
        fine = [s[i].energy for s in (source, again) for i in range(40)] == wanted * 2
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert source[3].energy == wanted[3]


def test_a_fresh_process_opens_its_own(tmp_path: Path) -> None:
    source, _ = read_file(write_s2ef(tmp_path / "a.lmdb", 3))
    (tmp_path / "source").write_bytes(pickle.dumps(source))
    code = f"import pickle; print(pickle.load(open({str(tmp_path / 'source')!r}, 'rb'))[2].energy)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(printed) == source[2].energy


def test_a_truncated_file_is_named_and_does_not_kill(tmp_path: Path) -> None:
    whole = write_s2ef(tmp_path / "whole.lmdb", 60)
    for share in (0.9, 0.5, 0.2):
        cut = tmp_path / f"cut{share}.lmdb"
        cut.write_bytes(whole.read_bytes()[: int(share * whole.stat().st_size)])
        with pytest.raises(ValueError, match=rf"cut{share}.lmdb is truncated"):
            read_file(cut)


@pytest.mark.parametrize("content", [b"", b"no LMDB" * 2000, bytes(8192)])
def test_foreign_files_are_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "foreign.lmdb"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="foreign.lmdb is no LMDB file"):
        read_file(path)


def test_a_record_that_is_damaged_is_named(tmp_path: Path) -> None:
    path = write_s2ef(tmp_path / "a.lmdb", 5)
    raw = path.read_bytes()
    where = raw.index(b"torch_geometric", raw.index(b"torch_geometric") + 3000)
    path.write_bytes(raw[:where] + b"?" * 15 + raw[where + 15 :])
    source, _ = read_file(path)
    errors = []
    for index in range(5):
        try:
            source[index]
        except ValueError as error:
            errors.append(str(error))
    assert len(errors) == 1
    assert "a.lmdb, record" in errors[0]


def test_nothing_is_held_but_counts(tmp_path: Path) -> None:
    """Reading a record keeps nothing: two reads give two arrays."""
    source, _ = read_file(write_s2ef(tmp_path / "a.lmdb", 2), DataConfig())
    first, second = source[0], source[0]
    assert first.positions is not second.positions
    np.testing.assert_array_equal(first.positions, second.positions)
    assert len(pickle.dumps(source)) < 2000
