"""Published OC20 and OC22 objects as structures: both spellings, S2EF and IS2RE, shards, and what is missing."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data.published import new_object, old_object, pickled, s2ef, torch_geometric, write_lmdb, write_s2ef
from denskit.batch import System
from denskit.data import DataConfig, read_file


def _read(path: Path, attributes: dict[str, Any], **config: Any) -> System:
    write_lmdb(path / "one.lmdb", [pickled(new_object(attributes))])
    return read_file(path / "one.lmdb", DataConfig(**config))[0][0]


def test_the_classic_form(tmp_path: Path) -> None:
    wanted = s2ef(5)
    system = _read(tmp_path, wanted)
    np.testing.assert_array_equal(system.positions, wanted["pos"].double())
    np.testing.assert_array_equal(system.cell, wanted["cell"][0].double())
    np.testing.assert_array_equal(system.forces, wanted["force"].double())
    assert system.atomic_numbers.tolist() == wanted["atomic_numbers"].tolist()
    assert system.atomic_numbers.dtype == np.int64 and system.tags.dtype == np.int64 and system.fixed.dtype == bool
    assert system.fixed.tolist() == [True] + [False] * 5
    assert system.tags.tolist() == [0, 1, 2, 2, 2, 2]
    assert system.pbc.all()
    assert system.energy == wanted["y"]
    assert (system.sid, system.fid, system.group) == ("1001", 1, "1001")


def test_the_form_since_march_2024(tmp_path: Path) -> None:
    """energy, forces; atomic numbers uint8, fixed int32, tensors of one number."""
    old = s2ef(5)
    new = s2ef(
        5, y=None, force=None, energy=torch.tensor([old["y"]], dtype=torch.float64), forces=old["force"],
        atomic_numbers=old["atomic_numbers"].to(torch.uint8), fixed=old["fixed"].int(),
        sid=torch.tensor([old["sid"]]), fid=torch.tensor(old["fid"]), nedges=12,
    )  # fmt: skip
    (tmp_path / "old").mkdir()
    one, other = _read(tmp_path / "old", old), _read(tmp_path, new)
    for name in ("positions", "cell", "forces", "atomic_numbers", "fixed", "tags"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert (one.energy, one.sid, one.fid) == (other.energy, other.sid, other.fid)


def test_is2re_gives_the_relaxed_structure(tmp_path: Path) -> None:
    start = s2ef(2)
    relaxed = start["pos"] + 0.1
    system = _read(tmp_path, s2ef(2, y=None, y_init=1.5, y_relaxed=-0.5, pos_relaxed=relaxed))
    assert (system.energy, system.relaxed_energy) == (1.5, -0.5)
    np.testing.assert_array_equal(system.relaxed_positions, relaxed.double())
    assert system.forces is not None


def test_test_sets_have_no_labels(tmp_path: Path) -> None:
    unlabelled = s2ef(1, y=None, force=None)
    system = _read(tmp_path, unlabelled)
    assert system.energy is None and system.forces is None and system.relaxed_energy is None
    source, _ = read_file(tmp_path / "one.lmdb", required=("energy", "forces"))
    with pytest.raises(ValueError, match=r"one.lmdb, record 0 has no energy.*data.missing=mask"):
        source[0]
    masked, _ = read_file(tmp_path / "one.lmdb", DataConfig(missing="mask"), required=("energy", "forces"))
    assert masked[0].energy is None


def test_without_fixed_the_error_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"record 0 does not say which .* fixed.*data.fixed=tags.*data.fixed=none"):
        _read(tmp_path, s2ef(3, fixed=None))
    path = tmp_path / "one.lmdb"
    assert read_file(path, DataConfig(fixed="tags"))[0][0].fixed.tolist() == [True, False, False, False]
    assert not read_file(path, DataConfig(fixed="none"))[0][0].fixed.any()
    (tmp_path / "no_tags").mkdir()
    with pytest.raises(ValueError, match="no tags among"):
        _read(tmp_path / "no_tags", s2ef(3, fixed=None, tags=None), fixed="tags")


def test_without_tags_all_are_zero(tmp_path: Path) -> None:
    assert _read(tmp_path, s2ef(3, tags=None)).tags.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pos": None}, " has no array pos; it has atomic_numbers, cell"),
        ({"pos": torch.zeros(4, 2)}, "pos is float32 of shape .4, 2."),
        ({"atomic_numbers": torch.ones(3)}, "atomic_numbers is float32 of shape .3,."),
        ({"atomic_numbers": torch.zeros(4)}, "atomic numbers outside 1 to 118, from 0 to 0"),
        ({"cell": torch.eye(2)}, "cell is float32 of shape"),
        ({"cell": torch.zeros(1, 3, 3)}, "cell vectors are zero or linearly dependent"),
        ({"cell": torch.ones(1, 3, 3)}, "cell vectors are zero or linearly dependent"),
        ({"force": torch.zeros(3, 3)}, "force is float32 of shape"),
        ({"y": torch.zeros(2)}, "y is float32 of shape .2,."),
        ({"y": "text"}, "y is <U4 of shape"),
        ({"y": float("nan")}, "energy is NaN or infinite"),
        ({"force": torch.full((4, 3), torch.inf)}, "forces is NaN or infinite"),
        ({"y_relaxed": float("inf")}, "the relaxed energy is NaN or infinite"),
        ({"pos": torch.full((4, 3), torch.nan)}, "positions or cell are NaN"),
        ({name: torch.zeros(0, *width) for name, width in
          (("pos", (3,)), ("force", (3,)), ("atomic_numbers", ()), ("tags", ()), ("fixed", ()))}, "has no atoms"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_file_and_record(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"one.lmdb, record 0.*{message}"):
        _read(tmp_path, s2ef(3, **changes))


def test_shards_of_a_folder_follow_their_names(tmp_path: Path) -> None:
    for shard, (first, count) in {"data.0001": (3, 2), "data.0000": (0, 3), "data.0002": (5, 4)}.items():
        write_s2ef(tmp_path / f"{shard}.lmdb", count, first)
    (tmp_path / "data_log.0000.txt").write_text("random1,frame0\n")
    (tmp_path / "data.0000.lmdb-lock").touch()
    source, messages = read_file(tmp_path)
    assert len(source) == 9
    assert [system.energy for system in source] == [s2ef(index)["y"] for index in range(9)]
    assert [source[index].index for index in (0, 4, 8)] == [0, 4, 8]
    assert "9 structures in 3 files *.lmdb" in messages[0]
    with pytest.raises(IndexError):
        source[9]


def test_an_error_names_the_shard_and_its_own_record(tmp_path: Path) -> None:
    write_s2ef(tmp_path / "data.0000.lmdb", 3)
    write_lmdb(tmp_path / "data.0001.lmdb", [pickled(new_object(s2ef(0))), b"damage"], length=2)
    source, _ = read_file(tmp_path)
    with pytest.raises(ValueError, match=r"data.0001.lmdb, record 1 is damaged"):
        source[4]


def test_without_length_every_entry_counts(tmp_path: Path) -> None:
    records = [pickled(old_object(s2ef(index))) for index in range(3)]
    assert len(read_file(write_lmdb(tmp_path / "data.lmdb", records))[0]) == 3


def test_a_file_that_was_not_written_to_its_end(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "data.lmdb", [pickled(old_object(s2ef()))], length=7)
    with pytest.raises(ValueError, match="says that it has 7 records, but holds 1"):
        read_file(path)
    path = write_lmdb(tmp_path / "none.lmdb", [], length=0)
    with pytest.raises(ValueError, match="has no records"):
        read_file(path)


def test_an_attack_in_a_record_or_in_its_length_is_refused(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> Any:
            return open, (str(tmp_path / "touched"), "w")

    with torch_geometric():
        harmful = new_object(s2ef())
        harmful.__dict__["_store"].__dict__["_mapping"]["pos"] = Attack()
        raw = pickle.dumps(harmful)
    source, _ = read_file(write_lmdb(tmp_path / "a.lmdb", [pickled(new_object(s2ef())), raw], length=2))
    assert source[0].energy is not None
    with pytest.raises(ValueError, match=r"a.lmdb, record 1: the pickle asks for _?io.open.*nothing of it was run"):
        source[1]
    path = write_lmdb(tmp_path / "b.lmdb", [raw, raw])
    import lmdb

    with lmdb.open(str(path), subdir=False, map_size=2**24) as file, file.begin(write=True) as transaction:
        transaction.put(b"length", pickle.dumps(Attack()))
    with pytest.raises(ValueError, match=r"b.lmdb, key 'length': the pickle asks for _?io.open"):
        read_file(path)
    (tmp_path / "c.pkl").write_bytes(pickle.dumps([Attack()]))
    with pytest.raises(ValueError, match=r"c.pkl: the pickle asks for _?io.open"):
        read_file(tmp_path / "c.pkl")
    assert not (tmp_path / "touched").exists()


def test_lists_of_objects(tmp_path: Path) -> None:
    path = tmp_path / "list.pkl"
    path.write_bytes(pickled([old_object(s2ef(0)), new_object(s2ef(1, y_relaxed=-2.0))]))
    source, _ = read_file(path)
    assert [system.energy for system in source] == [s2ef(0)["y"], s2ef(1)["y"]]
    assert source[1].relaxed_energy == -2.0
    path.write_bytes(pickled([old_object(s2ef(0)), new_object(s2ef(1, pos=None))]))
    with pytest.raises(ValueError, match="list.pkl, record 1 has no array pos"):
        read_file(path)
    path.write_bytes(pickled([]))
    with pytest.raises(ValueError, match="empty list"):
        read_file(path)


def test_environments_that_are_folders(tmp_path: Path) -> None:
    """LMDB's other layout: a folder with data.mdb and lock.mdb, alone or as a shard."""
    for name in ("a.lmdb", "b.lmdb"):
        (tmp_path / name).mkdir()
        write_s2ef(tmp_path / name / "data.mdb", 2)
        (tmp_path / name / "lock.mdb").touch()
    assert len(read_file(tmp_path / "a.lmdb")[0]) == 2
    assert len(read_file(tmp_path)[0]) == 4


def test_sizes_beside_the_shards(tmp_path: Path) -> None:
    for shard in range(2):
        write_s2ef(tmp_path / f"data.{shard:04d}.lmdb", 3, 3 * shard)
    assert read_file(tmp_path)[0].sizes is None
    natoms = np.array([s2ef(index)["natoms"] for index in range(6)], dtype=np.int32)
    np.savez(tmp_path / "metadata.npz", natoms=natoms)
    assert read_file(tmp_path)[0].sizes.tolist() == [len(system) for system in read_file(tmp_path)[0]]
    assert read_file(tmp_path / "data.0000.lmdb")[0].sizes is None  # they are of all shards
    np.savez(tmp_path / "metadata.npz", natoms=natoms[:5])
    with pytest.raises(ValueError, match=r"metadata.npz has natoms of int32 .5,.; wanted 6"):
        read_file(tmp_path)


def test_real_s2ef_records(data_dir: Path) -> None:
    """The LMDB agrees with the arrays of the same relaxations."""
    source, _ = read_file(data_dir / "oc20_s2ef_sample.lmdb", required=("energy", "forces"))
    with np.load(data_dir / "oc20_s2ef_train.npz") as file:
        arrays = {name: file[name] for name in file.files}
    starts = np.concatenate([[0], np.cumsum(arrays["natoms"])])
    where = {(sid, fid): i for i, (sid, fid) in enumerate(zip(arrays["sid"], arrays["fid"], strict=True))}
    assert len(source) == 150
    for system in source:
        frame = where[f"random{system.sid}", system.fid]
        assert system.energy == arrays["energy"][frame]
        np.testing.assert_allclose(system.cell, arrays["cell"][frame], rtol=1e-6)
        for name, key in (("positions", "pos"), ("forces", "forces"), ("atomic_numbers", "z"), ("fixed", "fixed"),
                          ("tags", "tags")):  # fmt: skip
            np.testing.assert_array_equal(getattr(system, name), arrays[key][starts[frame] : starts[frame + 1]])


def test_real_oc22_objects(data_dir: Path) -> None:
    for name in ("train16", "val16"):
        source, _ = read_file(data_dir / f"oc22_s2ef_{name}.pkl", required=("energy", "forces"))
        assert len(source) == 16
        assert all(system.energy < -100 and not system.fixed.any() and system.tags.max() > 0 for system in source)
