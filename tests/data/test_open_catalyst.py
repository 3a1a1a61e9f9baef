"""The datasets oc20 and oc22: parts with origins, splits by system, energies that look wrong, references."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase.build
import ase.io
import numpy as np
import pytest
from pydantic import ValidationError

from data.published import new_object, pickled, s2ef, write_lmdb, write_s2ef
from denskit.data import DataConfig, LoadedData, Splits, load_data, read_file
from denskit.data.convert import convert
from denskit.data.inspection import inspect_file
from denskit.data.records import once
from denskit.data.splits import content_in_words
from denskit.models.fitted_scaling import fit_scaling


def _load(required: tuple[str, ...] = ("energy", "forces"), **config: Any) -> LoadedData:
    return load_data(DataConfig.model_validate({"name": "oc20", **config}), seed=0, required=required)


def _said(data: LoadedData) -> str:
    return "\n".join(data.messages)


@pytest.fixture
def shard(tmp_path: Path) -> str:
    return str(write_s2ef(tmp_path / "data.lmdb", 24))


@pytest.fixture
def totals(tmp_path: Path) -> str:
    records = [pickled(new_object(s2ef(index) | {"y": -400.0 - index})) for index in range(24)]
    return str(write_lmdb(tmp_path / "totals.lmdb", records, length=24))


def test_whole_systems_go_to_one_part(shard: str) -> None:
    data = _load(path=shard)
    assert data.valid is not None and data.test is not None
    systems = [{part[index].sid for index in range(len(part))} for part in (data.train, data.valid, data.test)]
    assert set.union(*systems) == {str(1000 + index) for index in range(6)}
    assert sum(len(part) for part in systems) == 6
    assert "whole groups" in _said(data)


def test_a_split_is_kept_for_files_and_folders(shard: str, tmp_path: Path) -> None:
    folder = tmp_path / "train"
    folder.mkdir()
    write_s2ef(folder / "data.0000.lmdb", 24)
    for path in (shard, str(folder)):
        data = _load(path=path)
        assert data.splits is not None
        data.splits.save(tmp_path / "splits.json")
        again = _load(path=path, split={"file": str(tmp_path / "splits.json")})
        assert [s.index for s in again.train] == [s.index for s in data.train]  # type: ignore[attr-defined]
    write_s2ef(folder / "data.0001.lmdb", 2)
    with pytest.raises(ValueError, match="is another file or has changed"):
        _load(path=str(folder), split={"file": str(tmp_path / "splits.json")})


def test_a_split_of_shards_does_not_mind_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lock files of readers, sizes and files of the system."""
    folder, saved = tmp_path / "train", tmp_path / "splits.json"
    folder.mkdir()
    write_s2ef(folder / "data.0000.lmdb", 24)
    (folder / ".DS_Store").write_bytes(b"0")
    splits = _load(path=str(folder)).splits
    assert splits is not None and splits.size == (folder / "data.0000.lmdb").stat().st_size
    splits.save(saved)
    assert _load(path=str(folder), split={"file": str(saved)}).splits is not None
    (folder / "data.0000.lmdb-lock").write_bytes(b"0" * 8192)
    np.savez(folder / "metadata.npz", natoms=np.full(24, 3))
    assert Splits.load(saved, of=folder).sha256 == splits.sha256
    monkeypatch.setattr("denskit.data.splits.sha256_of", lambda path: pytest.fail(f"{path} is read"))
    pattern = _load(path=f"{folder}/*.lmdb").splits
    assert pattern is not None and content_in_words(folder / "*.lmdb") == f"sha256 {pattern.sha256}"
    assert not replace(pattern, size=1).is_of(folder / "*.lmdb")


def test_parts_with_their_own_origins(tmp_path: Path) -> None:
    for name, first in (("all", 0), ("md", 8), ("valid", 16)):
        (tmp_path / name).mkdir()
        write_s2ef(tmp_path / name / "data.0000.lmdb", 6, first)
    train = [str(tmp_path / "all"), {"path": str(tmp_path / "md"), "origin": "md"}]
    data = _load(train=train, valid=str(tmp_path / "valid"))
    assert len(data.train) == 12
    assert [data.train[index].denoise for index in range(12)] == [True] * 6 + [False] * 6
    assert [data.train[index].index for index in range(12)] == list(range(12))
    assert data.train[7].energy == s2ef(9)["y"]
    assert data.valid is not None and data.valid[0].denoise
    said = _said(data)
    assert "md: 6 structures of origin md: never corrupted by DeNS" in said
    assert f"{tmp_path / 'all'}: taken for relaxations" in said
    assert "neither the published files nor their logs tell which frames are MD" in said
    with pytest.raises(ValueError, match="data.train lists 2 sources.*give data.valid"):
        _load(train=train)
    with pytest.raises(ValueError, match="names one file twice.*repeat: 2"):
        _load(train=[train[0], train[0]], valid=str(tmp_path / "valid"))
    with pytest.raises(ValueError, match="name one file twice.*Divide it"):
        _load(train=train, valid=train[0])


@pytest.mark.parametrize("whole", ["", "*.lmdb"])
def test_a_shard_of_the_training_folder_judges_nothing(tmp_path: Path, whole: str) -> None:
    """Neither as validation nor as test data, whether the folder or a pattern of its shards is trained on."""
    folder = tmp_path / "all"
    folder.mkdir()
    for number in range(2):
        write_s2ef(folder / f"data.{number:04d}.lmdb", 4, 4 * number)
    write_s2ef(tmp_path / "other.lmdb", 2, 8)
    train, inside, other = str(folder / whole), str(folder / "data.0001.lmdb"), str(tmp_path / "other.lmdb")
    for judged in ({"valid": inside}, {"test": inside}, {"valid": other, "test": inside}):
        with pytest.raises(ValueError, match=r"name one file twice: \S*data.0001.lmdb, by \S*all\S* and \S*data.0001"):
            _load(train=train, **judged)
    with pytest.raises(ValueError, match="data.train names one file twice: .*repeat: 2"):
        _load(train=[train, inside], valid=other)
    assert len(_load(train=train, valid=other).train) == 8


def test_a_part_may_count_several_times(tmp_path: Path) -> None:
    for name, first, count in (("large", 0, 4), ("small", 4, 2), ("valid", 6, 2)):
        write_s2ef(tmp_path / f"{name}.lmdb", count, first)
    parts = [str(tmp_path / "large.lmdb"), {"path": str(tmp_path / "small.lmdb"), "repeat": 3, "origin": "md"}]
    valid = str(tmp_path / "valid.lmdb")
    data = _load(train=parts, valid=valid)
    energies = [system.energy for system in data.train]
    assert len(energies) == 10 and energies[4:6] * 3 == energies[4:] and not data.train[9].denoise
    assert "small.lmdb: each of 2 structures counts 3 times" in _said(data)
    assert "10 training frames" in _said(data) and len(once(data.train)) == 6
    with pytest.raises(ValueError, match=r"data.train repeats structures.*give data\.valid"):
        _load(train=parts[1:])


def test_one_origin_for_all(shard: str) -> None:
    data = _load(path=shard, origin="md")
    assert not data.train[0].denoise
    assert "taken for relaxations" not in _said(data)


def test_sizes_of_parts_are_joined_where_all_are_known(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 3)):
        (tmp_path / name).mkdir()
        write_s2ef(tmp_path / name / "data.0000.lmdb", 3, first)
    valid = write_s2ef(tmp_path / "valid.lmdb", 1, 6)
    config = {"train": [str(tmp_path / "a"), str(tmp_path / "b")], "valid": str(valid)}
    np.savez(tmp_path / "a" / "metadata.npz", natoms=np.array([4, 5, 6]))
    assert _load(**config).train.sizes is None
    np.savez(tmp_path / "b" / "metadata.npz", natoms=np.array([4, 5, 6]))
    sizes = _load(**config).train.sizes
    assert sizes is not None and sizes.tolist() == [4, 5, 6, 4, 5, 6]


def test_totals_are_announced_loudly(shard: str, totals: str) -> None:
    data = _load(path=totals)
    assert re.search(r"WARNING: the energies \(typically 4\d\d eV\) look like raw DFT totals", _said(data))
    assert data.references == "fit"
    advice = "data.references=fit takes references of the elements off"
    assert advice not in _said(data) and advice in _said(_load(path=totals, references="none"))
    data = _load(path=shard)
    assert "WARNING" not in _said(data)
    assert data.references == "mean"
    assert _load(path=shard, references="fit").references == "fit"


def test_validation_structures_with_other_energies_are_announced(shard: str, totals: str) -> None:
    for name in ("oc20", "oc22"):
        for train, valid in ((shard, totals), (totals, shard)):
            said = _said(_load(name=name, train=train, valid=valid))
            assert "validation structures (typically" in said and "of different kinds" in said


def test_oc22_expects_totals(shard: str, totals: str) -> None:
    assert "WARNING" not in _said(_load(name="oc22", path=totals))
    assert "look like adsorption energies" in _said(_load(name="oc22", path=shard))


def test_reference_energies_make_totals(shard: str, tmp_path: Path) -> None:
    references = {f"random{1000 + index}": -100.0 * (index + 1) for index in range(6)}
    (tmp_path / "ref.json").write_text(json.dumps(references))
    data = _load(path=shard, oc20_ref=str(tmp_path / "ref.json"))
    frame = data.train[0]
    assert frame.energy == pytest.approx(s2ef(frame.index)["y"] + references[f"random{frame.sid}"])
    assert "look like raw" not in _said(data)
    convert([shard], tmp_path / "shards", DataConfig(oc20_ref=str(tmp_path / "ref.json")))
    again, said = read_file(tmp_path / "shards", DataConfig(oc20_ref=str(tmp_path / "ref.json")))
    assert again[0].energy == read_file(tmp_path / "shards")[0][0].energy, "not added twice"
    assert "is not added again" in said[-1]
    convert([tmp_path / "shards"], tmp_path / "twice")
    twice = read_file(tmp_path / "twice", DataConfig(oc20_ref=str(tmp_path / "ref.json")))[0]
    assert twice[0].energy == again[0].energy, "nor after a second conversion"
    with pytest.raises(ValueError, match=r"some were converted with data.oc20_ref"):
        convert([tmp_path / "shards", shard], tmp_path / "mixed")
    ase.io.write(tmp_path / "other.extxyz", ase.build.molecule("H2O"))
    with pytest.raises(ValueError, match=r"data.oc20_ref=.* is for records with a sid"):
        _load(path=str(tmp_path / "other.extxyz"), oc20_ref=str(tmp_path / "ref.json"))
    (tmp_path / "ref.json").write_text('{"random1": 0.0}')
    with pytest.raises(ValueError, match=r"data.lmdb, record \d+: data.oc20_ref has no reference for system 100"):
        _load(path=shard, oc20_ref=str(tmp_path / "ref.json"))


def test_linear_references_from_a_file(totals: str, tmp_path: Path) -> None:
    coefficients = np.full(100, -2.5)
    coefficients[5] = 3e9
    np.savez(tmp_path / "linref.npz", coeff=coefficients)
    data = _load(name="oc22", path=totals, references=str(tmp_path / "linref.npz"))
    assert isinstance(data.references, dict) and data.references["Cu"] == -2.5
    assert "not used: B" in _said(data)
    published = {"energy_shift": 0.0, "energy_scale": 25.12, "force_scale": 0.1476}
    scaling, _ = fit_scaling(data.train, references=data.references, scale=published, gradient_forces=False)  # type: ignore[arg-type]
    assert [scaling.references[z].item() for z in (1, 6, 8, 29)] == [-2.5] * 4
    coefficients[29] = 5.8e10
    np.savez(tmp_path / "linref.npz", coeff=coefficients)
    with pytest.raises(ValueError, match=r"no plausible reference for Cu.*data.references=fit"):
        _load(name="oc22", path=totals, references=str(tmp_path / "linref.npz"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "file", "path": "x", "fixed": "tags"}, "data.fixed=tags needs data.name=oc20 or oc22"),
        ({"name": "file", "path": "x", "oc20_ref": "y"}, "data.oc20_ref=y needs data.name=oc20 or oc22"),
        ({"name": "md17", "path": "x", "energies": "total"}, "data.energies=total needs data.name"),
        ({"name": "oc20"}, "no data given"),
    ],
)
def test_what_would_be_ignored_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _load(**config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"train": []}, "empty list"),
        ({"train": [{"path": "x", "origin": "MD"}]}, "'relaxation', 'rattled' or 'md'"),
        ({"references": "fitted"}, "references=fitted: wanted fit, isolated"),
        ({"fixed": "all"}, "'file', 'tags' or 'none'"),
    ],
)
def test_configurations_that_mean_nothing(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataConfig.model_validate(config)


def test_a_configuration_survives_being_written() -> None:
    config = DataConfig.model_validate({"name": "oc20", "train": ["a", {"path": "b", "origin": "md"}], "valid": "c"})
    assert DataConfig.model_validate(json.loads(config.model_dump_json())) == config


@pytest.mark.parametrize("key", ["energy_key", "group_key", "units"])
def test_keys_that_shards_cannot_have(key: str, shard: str) -> None:
    with pytest.raises(ValueError, match=rf"data.{key}=.*own names, in eV"):
        _load(path=shard, **{key: "kcal/mol"})


@pytest.mark.parametrize("setting", [{"fixed": "tags"}, {"energies": "total"}])
def test_settings_without_effect_are_refused(tmp_path: Path, shard: str, setting: dict[str, str]) -> None:
    """Frames of ASE say which atoms are fixed, and so do converted shards, whose energies are chosen already."""
    frames = tmp_path / "frames.extxyz"
    ase.io.write(frames, ase.build.molecule("H2O"))
    convert([shard], tmp_path / "shards")
    (name,) = setting
    for path in (frames, tmp_path / "shards"):
        with pytest.raises(ValueError, match=rf"data.{name}=\w+ is for .*OC20.*, and none is given. Leave it out"):
            _load(path=str(path), **setting)
        with pytest.raises(ValueError, match=rf"data.{name}=\w+ is for"):
            convert([path], tmp_path / "again", DataConfig.model_validate({"name": "oc20", **setting}))
    with pytest.raises(FileNotFoundError, match="absent"):
        _load(path=str(tmp_path / "absent"), **setting)


def test_a_setting_may_be_for_one_of_several_files(tmp_path: Path) -> None:
    """Objects that do not say which atoms are fixed, judged on shards that do."""
    objects = [pickled(new_object(s2ef(index, fixed=None))) for index in range(8)]
    train = write_lmdb(tmp_path / "train.lmdb", objects, length=8)
    convert([str(write_s2ef(tmp_path / "valid.lmdb", 4))], tmp_path / "shards")
    data = _load(train=str(train), valid=str(tmp_path / "shards"), fixed="tags")
    assert data.valid is not None
    assert (len(data.train), len(data.valid)) == (8, 4)
    for part in (data.train, data.valid):
        assert part[0].fixed.any() and not part[0].fixed.all()


def test_isolated_references_need_one_file_in_memory(shard: str) -> None:
    with pytest.raises(ValueError, match="references=isolated reads one file"):
        _load(path=shard, references="isolated")


def test_shards_are_inspected(tmp_path: Path) -> None:
    good = [pickled(new_object(s2ef(index))) for index in range(5)]
    path = write_lmdb(tmp_path / "a.lmdb", [*good, b"damage", pickled(new_object(s2ef(6, fixed=None)))], length=7)
    found = inspect_file(path)
    assert found.frames == 7
    assert found.labels == {"energy": 5, "forces": 5, "stress": 0}
    assert found.fixed_atoms == 5
    assert any("record 5 is damaged" in problem for problem in map(str, found.problems))
    assert any("record 6 does not say which atoms are fixed" in problem for problem in map(str, found.problems))
    broken = write_lmdb(tmp_path / "b.lmdb", [b"damage"], length=1)
    with pytest.raises(ValueError, match="b.lmdb, record 0 is damaged"):
        inspect_file(broken)


def test_records_beyond_the_length_are_told(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a.lmdb", [pickled(new_object(s2ef(index))) for index in range(3)], length=2)
    with pytest.warns(UserWarning, match=r"a\.lmdb says that it has 2 records, but holds more: record 2"):
        assert inspect_file(path).frames == 2


def test_settings_of_shards_are_refused_for_other_files(tmp_path: Path) -> None:
    path = tmp_path / "water.extxyz"
    ase.io.write(path, ase.build.molecule("H2O"))
    with pytest.raises(ValueError, match=r"water\.extxyz: data\.fixed=tags is for"):
        inspect_file(path, DataConfig(fixed="tags"))


def test_many_shards_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("denskit.data.inspection.SAMPLE", 4)
    for number in range(3):
        write_s2ef(tmp_path / f"data.{number:04d}.lmdb", 5, 5 * number)
    found = inspect_file(tmp_path)
    assert found.frames == 15
    assert found.labels["energy"] == 4
    assert any("4 of 15 structures were looked at" in note.found for note in found.findings)
