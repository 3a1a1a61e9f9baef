"""From a DataConfig to sources: files, datasets by name, references, what is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator
from pydantic import ValidationError

from denskit.data import DATASETS, DataConfig, SplitConfig, Splits, load_data, read_file
from denskit.data.base import elements_of
from denskit.data.config import FilterConfig
from denskit.data.convert import convert
from denskit.data.datasets.md17 import molecule_file
from denskit.data.structure_arrays import StructureArrays


def _frames(count: int, name: str = "CH4") -> list[ase.Atoms]:
    rng = np.random.default_rng(len(name) + count)
    frames = []
    for _ in range(count):
        atoms = molecule(name)
        atoms.rattle(0.05, rng=rng)
        forces = rng.normal(size=(len(atoms), 3))
        atoms.calc = SinglePointCalculator(atoms, energy=rng.normal() - 7.0 * len(atoms), forces=forces)
        frames.append(atoms)
    return frames


def _write(path: Path, frames: list[ase.Atoms]) -> str:
    ase.io.write(path, frames)
    return str(path)


@pytest.fixture
def mine(tmp_path: Path) -> str:
    return _write(tmp_path / "mine.extxyz", _frames(40))


def test_a_bare_path_is_divided_at_random_and_says_so(mine: str) -> None:
    loaded = load_data(DataConfig(path=mine), seed=0)
    assert (len(loaded.train), len(loaded.valid or ()), len(loaded.test or ())) == (30, 5, 5)
    assert loaded.references == "fit"
    said = "\n".join(loaded.messages)
    for words in ("energy from energy", "30 train / 5 valid / 5 test (random, seed 0)", "data.split.mode=blocks"):
        assert words in said


def test_a_gap_is_one_between_blocks(mine: str) -> None:
    splits = load_data(DataConfig(path=mine, split=SplitConfig(gap=2)), seed=0).splits
    assert splits is not None and "contiguous blocks in file order, 2 frames left out" in splits.how


def test_three_files(tmp_path: Path, mine: str) -> None:
    valid, test = (_write(tmp_path / f"{part}.extxyz", _frames(5)) for part in ("valid", "test"))
    loaded = load_data(DataConfig(train=mine, valid=valid, test=test), seed=0)
    assert loaded.splits is None
    assert loaded.valid is not None
    assert loaded.test is not None
    assert (len(loaded.train), len(loaded.valid), len(loaded.test)) == (40, 5, 5)


def test_structures_that_are_trained_on_and_judged_are_counted(tmp_path: Path) -> None:
    """Also where they are turned to other numbers below 1e-6 Å, and in one of several training files."""
    frames, other = _frames(8), _frames(3, "NH3")
    train = [_write(tmp_path / "a.extxyz", frames), _write(tmp_path / "b.extxyz", other)]
    frames[5].positions += 1e-8
    valid = _write(tmp_path / "valid.extxyz", [*_frames(2, "H2O"), frames[5], other[0]])
    test = _write(tmp_path / "test.extxyz", [*_frames(2, "H2O"), other[2]])
    loaded = load_data(DataConfig(train=train, valid=valid, test=test), seed=0)
    said = [message for message in loaded.messages if "with the geometry of a structure of" in message]
    assert len(said) == 1 and f"{valid}: 2 of 4 structures" in said[0]
    assert "frames 2, 3 (counted from 0)" in said[0]
    assert loaded.test is not None
    with pytest.warns(UserWarning, match=r"^\S*test\.extxyz: 1 of 3 structures .* frame 2"):
        len(loaded.test)
    loaded = load_data(DataConfig(train=train, valid=test), seed=0)
    fine = load_data(DataConfig(train=train[:1], valid=test), seed=0)
    assert [sum("with the geometry" in line for line in each.messages) for each in (loaded, fine)] == [1, 0]


def test_the_test_file_is_only_opened_when_used(tmp_path: Path, mine: str) -> None:
    later = tmp_path / "later.extxyz"
    loaded = load_data(DataConfig(path=mine, test=str(later), split=SplitConfig(train=30, valid=10)), seed=0)
    assert loaded.test is not None
    with pytest.raises(FileNotFoundError, match="later.extxyz"):
        len(loaded.test)
    _write(later, _frames(3))
    assert len(loaded.test) == 3
    assert (len(loaded.train), len(loaded.valid or ())) == (30, 10)


def test_a_saved_split_is_reused(tmp_path: Path, mine: str) -> None:
    first = load_data(DataConfig(path=mine), seed=5)
    assert first.splits is not None
    first.splits.save(tmp_path / "splits.json")
    again = load_data(DataConfig(path=mine, split=SplitConfig(file=str(tmp_path / "splits.json"))), seed=99)
    assert [s.index for s in again.train] == [s.index for s in first.train]  # type: ignore[attr-defined]
    assert "reused" in again.messages[-1]


def test_a_dataset_that_draws_another_split_than_the_saved_one_is_refused(
    tmp_path: Path, mine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(config: DataConfig, seed: int, required: Any) -> Any:
        return load_data(config.model_copy(update={"name": "file", "split": SplitConfig()}), seed, required)

    monkeypatch.setitem(DATASETS, "careless", careless)
    first = load_data(DataConfig(name="careless", path=mine), seed=5)
    assert first.splits is not None
    first.splits.save(tmp_path / "splits.json")
    config = DataConfig(name="careless", path=mine, split=SplitConfig(file=str(tmp_path / "splits.json")))
    assert len(load_data(config, seed=5).train) == len(first.train)  # by chance the same
    with pytest.raises(ValueError, match=r"does not divide its structures as .*splits.json says.*split_of"):
        load_data(config, seed=6)


def test_a_saved_split_with_frames_twice_is_refused(tmp_path: Path, mine: str) -> None:
    splits = load_data(DataConfig(path=mine), seed=5).splits
    assert splits is not None
    twice = Splits(splits.train, splits.train[:2], splits.test, splits.file, splits.size, splits.sha256)
    twice.save(tmp_path / "splits.json")
    with pytest.raises(ValueError, match=r"splits.json does not divide the 40 frames"):
        load_data(DataConfig(path=mine, split=SplitConfig(file=str(tmp_path / "splits.json"))), seed=0)


def test_groups_stay_together_by_default(tmp_path: Path) -> None:
    frames = _frames(30)
    for index, atoms in enumerate(frames):
        atoms.info["material"] = f"m{index % 6}"
    path = _write(tmp_path / "groups.extxyz", frames)
    loaded = load_data(DataConfig(path=path, group_key="material"), seed=0)
    parts = [{system.group for system in part} for part in (loaded.train, loaded.valid, loaded.test)]  # type: ignore[union-attr]
    assert [len(part) for part in parts] == [4, 1, 1]
    assert len(set.union(*parts)) == 6


@pytest.mark.parametrize("seed", [0, 2])
def test_training_has_all_elements_also_of_files_on_disk(tmp_path: Path, seed: int) -> None:
    path = _write(tmp_path / "few.extxyz", [*_frames(20), *_frames(1, "H2O"), *_frames(1, "NH3")])
    convert([path], tmp_path / "shards")
    for place in (path, str(tmp_path / "shards")):
        loaded = load_data(DataConfig(path=place, split=SplitConfig(train=10, valid=6)), seed=seed)
        assert elements_of(loaded.train) == {1, 6, 7, 8}


def test_isolated_atoms_give_references_and_are_not_trained_on(tmp_path: Path) -> None:
    atoms = {"H": -13.6, "C": -1000.0}
    single = []
    for symbol, energy in atoms.items():
        one = ase.Atoms(symbol)
        one.calc = SinglePointCalculator(one, energy=energy, forces=np.zeros((1, 3)))
        single.append(one)
    path = _write(tmp_path / "isolated.extxyz", [*_frames(20), *single])
    wanted_of = {"isolated": atoms, "fit": "fit", "none": "none", "mean": "mean"}
    for references, wanted in [*wanted_of.items(), (None, "fit")]:
        loaded = load_data(DataConfig(path=path, references=references), seed=0)
        assert (loaded.references, loaded.isolated) == (wanted, atoms)
        assert f"{path}: isolated atoms of H, C are not trained on: frames 20, 21 (counted from 0)" in loaded.messages
        parts = (loaded.train, loaded.valid, loaded.test)
        sizes = [len(system) for part in parts for system in part]  # type: ignore[union-attr]
        assert sizes == [5] * 20
    with pytest.raises(
        ValueError, match=r"has 20 frames to divide; .* isolated atoms of H, C are not trained on: frames 2"
    ):
        load_data(DataConfig(path=path, split=SplitConfig(train=20, valid=2)), seed=0)
    given = load_data(DataConfig(path=path, references=atoms), seed=0)
    assert (given.references, given.isolated) == (atoms, atoms)
    for rules in (FilterConfig(isolated=5.0), FilterConfig(max_energy_deviation=20.0)):  # eV an atom
        exempt = load_data(DataConfig(path=path, filter=rules), seed=0)
        assert exempt.isolated == atoms and "left out 0 of 22 structures" in "\n".join(exempt.messages)
        assert len(exempt.train) == len(loaded.train)
    path = _write(tmp_path / "lacking.extxyz", [*_frames(20), single[0]])
    partly = load_data(DataConfig(path=path, split=SplitConfig(train=20, valid=1)), seed=0)
    assert partly.isolated == {} and not any("not trained on" in line for line in partly.messages)
    partly = load_data(DataConfig(path=path, filter=FilterConfig(isolated=5.0)), seed=0)
    assert "left out 1 of 21 structures" in "\n".join(partly.messages), "it is a structure like others"
    with pytest.raises(ValueError, match=r"needs a frame with one atom and an energy for each element; none for C\."):
        load_data(DataConfig(path=path, references="isolated"), seed=0)
    cell = ase.Atoms("C", cell=np.full((3, 3), 1.8) - 1.8 * np.eye(3), pbc=True)
    cell.calc = SinglePointCalculator(cell, energy=-1009.0, forces=np.zeros((1, 3)))
    loaded = load_data(DataConfig(path=_write(tmp_path / "cell.extxyz", [*_frames(20), *single, cell]),
                                  references="isolated"), seed=0)  # fmt: skip
    assert loaded.isolated == atoms, "an atom beside its images is none"
    excited = single[0].copy()
    excited.calc = SinglePointCalculator(excited, energy=-3.4, forces=np.zeros((1, 3)))
    path = _write(tmp_path / "twice.extxyz", [*_frames(20), excited, *single])
    loaded = load_data(DataConfig(path=path), seed=0)
    assert loaded.isolated == atoms
    assert any(
        "warning: isolated atoms of one element" in said and "H -3.4, -13.6; the" in said for said in loaded.messages
    )


def test_isolated_atoms_judge_no_training(tmp_path: Path) -> None:
    """Also of elements that no structure to train on has; a file of nothing else stays."""
    atoms = [ase.Atoms(symbol) for symbol in ("H", "N")]
    for one in atoms:
        one.calc = SinglePointCalculator(one, energy=-500.0, forces=np.zeros((1, 3)))
    train, judged = _write(tmp_path / "train.extxyz", _frames(20)), [*_frames(4), *atoms]
    valid, test = _write(tmp_path / "valid.extxyz", judged), _write(tmp_path / "test.extxyz", judged[1:])
    loaded = load_data(DataConfig(train=train, valid=valid, test=test), seed=0)
    assert loaded.valid is not None and len(loaded.valid) == 4
    assert f"{valid}: isolated atoms are not judged: frames 4, 5 (counted from 0)" in loaded.messages
    with pytest.warns(UserWarning, match="test.extxyz: isolated atoms are not judged: frames 3, 4"):
        assert loaded.test is not None and len(loaded.test) == 3
    alone = _write(tmp_path / "alone.extxyz", atoms)
    loaded = load_data(DataConfig(train=train, valid=alone), seed=0)
    assert loaded.valid is not None and len(loaded.valid) == 2


def test_isolated_atoms_are_trained_on_where_not_every_element_has_one(tmp_path: Path) -> None:
    xenon, hydrogen = ase.Atoms("Xe"), ase.Atoms("H")
    for one in (xenon, hydrogen):
        one.calc = SinglePointCalculator(one, energy=-400.0, forces=np.zeros((1, 3)))
    path = _write(tmp_path / "xenon.extxyz", [*_frames(20), xenon, hydrogen])
    loaded = load_data(DataConfig(path=path, split=SplitConfig(train=19, valid=2)), seed=0)
    assert loaded.isolated == {} and 54 in elements_of(loaded.train), "carbon has none"
    carbon = ase.Atoms("C")
    carbon.calc = SinglePointCalculator(carbon, energy=-1000.0)
    path = _write(tmp_path / "carbon.extxyz", [*_frames(20), xenon, hydrogen, carbon])
    loaded = load_data(DataConfig(path=path, split=SplitConfig(train=19, valid=2)), seed=0)
    assert loaded.isolated == {"H": -400.0, "C": -1000.0} and 54 in elements_of(loaded.train)
    assert any("atoms of H, C are not trained on: frames 21, 22" in line for line in loaded.messages)
    listed = DataConfig(train=[{"path": path, "repeat": 2}], valid=_write(tmp_path / "v.extxyz", _frames(2)))  # type: ignore[list-item]
    assert any("frames 21, 22, 21, 22 of" in line for line in load_data(listed, seed=0).messages)
    atoms = load_data(DataConfig(path=_write(tmp_path / "atoms.extxyz", [xenon, hydrogen] * 5)), seed=0)
    assert atoms.isolated == {} and len(atoms.train) == 8


def test_an_isolated_atom_needs_no_forces_in_shards_either(tmp_path: Path) -> None:
    carbon, methane = ase.Atoms("C"), _frames(1)[0]
    carbon.calc = SinglePointCalculator(carbon, energy=-1000.0)
    convert([_write(tmp_path / "mine.extxyz", [methane, carbon])], tmp_path / "shards")
    source = read_file(tmp_path / "shards", required=("energy", "forces"))[0]
    assert [system.forces is None for system in source] == [False, True]
    carbon.calc = None
    convert([_write(tmp_path / "bare.extxyz", [methane, carbon])], tmp_path / "bare")
    with pytest.raises(ValueError, match="record 1 has no energy"):
        list(read_file(tmp_path / "bare", required=("energy", "forces"))[0])


def test_missing_labels_follow_the_weights(tmp_path: Path) -> None:
    frames = _frames(20)
    frames[3].calc = SinglePointCalculator(frames[3], energy=-30.0)
    path = _write(tmp_path / "holes.extxyz", frames)
    with pytest.raises(ValueError, match=r"1 of 20 frames have no forces: frame 3"):
        load_data(DataConfig(path=path), seed=0)
    assert len(load_data(DataConfig(path=path), seed=0, required=("energy",)).train) == 16
    masked = load_data(DataConfig(path=path, missing="mask", split=SplitConfig(mode="blocks")), seed=0)
    assert [system.index for system in masked.train if system.forces is None] == [3]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="frames 0, 1, 2, .* cannot have a stress"):
        load_data(DataConfig(path=path, missing="mask"), seed=0, required=("energy", "stress"))


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({}, "no data given: data.path=FILE"),
        ({"name": "md71"}, "'md71' is not a dataset .file, md17, rmd17, embedded, oc20, oc22.; did you mean 'md17'"),
        ({"path": "x.extxyz", "molecule": "aspirin"}, "data.molecule=aspirin needs data.name"),
        (
            {"name": "embedded", "molecule": "aspirin"},
            "'aspirin' is not embedded; data.molecule is one of ethanol, aceta",
        ),
        ({"name": "embedded", "path": "x.npz"}, "data.path is for your own, with data.name=file"),
        ({"name": "md17"}, "no molecule given; data.molecule is one of aspirin, benzene"),
        ({"name": "md17", "molecule": "paracetamol"}, "'paracetamol' is not in md17"),
        ({"train": "a.npz", "test": "a.npz"}, "one file twice"),
    ],
)
def test_configs_that_name_no_data(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        load_data(DataConfig(**config), seed=0)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"path": "a", "train": "b"}, "data.path=a or data.train=b, not both"),
        ({"path": "a", "valid": "b"}, "with data.valid given call it data.train"),
        ({"train": "a", "valid": "b", "split": {"train": 5}}, "it would be ignored"),
        ({"path": "a", "group_key": "g", "split": {"mode": "random"}}, "data.group_key=g acts with split.mode=group"),
        ({"path": "a", "references": {"Xx": 1.0}}, "element symbols like H or O"),
        ({"path": "a", "references": {}}, "element symbols like H or O"),
        ({"path": "a", "energie_key": "E"}, "Extra inputs"),
    ],
)
def test_configs_that_contradict_themselves(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        DataConfig(**config)


def test_md17_reads_the_downloaded_file_and_divides_as_published(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DENSKIT_CACHE", str(tmp_path))
    config = DataConfig(name="md17", molecule="ethanol")
    with pytest.raises(FileNotFoundError, match="denskit data download md17 ethanol"):
        load_data(config, seed=3)
    path = molecule_file("md17", "ethanol")
    path.parent.mkdir(parents=True)
    path.symlink_to(data_dir / "md17_ethanol.npz")
    loaded = load_data(config, seed=3)
    assert [system.index for system in loaded.train] == np.random.default_rng(1).permutation(1500)[:950].tolist()  # type: ignore[attr-defined]
    assert (len(loaded.valid or ()), len(loaded.test or ())) == (50, 500)
    smaller = load_data(DataConfig(name="md17", molecule="ethanol", split=SplitConfig(train=100, valid=20)), seed=3)
    assert (len(smaller.train), len(smaller.valid or ()), len(smaller.test or ())) == (100, 20, 1380)
    drawn = [
        load_data(DataConfig(name="md17", molecule="ethanol", split=SplitConfig(seed=s)), 3).splits for s in (5, 6)
    ]
    assert drawn[0] is not None and drawn[1] is not None and "random, seed 5" in drawn[0].how
    assert set(drawn[0].train) != set(drawn[1].train)


@pytest.mark.parametrize("name", ["ethanol", "acetamide"])
def test_embedded_data(name: str) -> None:
    drawn = load_data(DataConfig(name="embedded", molecule=name, split=SplitConfig(seed=5)), seed=0).splits
    assert drawn is not None and drawn.how == "1400 train / 200 valid / 360 test (random, seed 5)"
    loaded = load_data(DataConfig(name="embedded", molecule=name), seed=0)
    assert loaded.splits is not None
    np.testing.assert_array_equal(loaded.splits.train, np.arange(1400))
    np.testing.assert_array_equal(loaded.splits.valid, np.arange(1420, 1620))
    np.testing.assert_array_equal(loaded.splits.test, np.arange(1640, 2000))
    forces = np.concatenate([system.forces for system in loaded.train])  # type: ignore[attr-defined]
    assert 0.8 < np.sqrt((forces**2).mean()) < 1.3  # eV/Å at 500 K
    assert np.abs(forces.reshape(-1, 9, 3).sum(axis=1)).max() < 1e-4  # they add up to zero
    fewer = load_data(DataConfig(name="embedded", molecule=name, split=SplitConfig(train=300, valid=100)), seed=0)
    assert (len(fewer.train), len(fewer.valid or ()), len(fewer.test or ())) == (300, 100, 1600 - 40)


def test_every_dataset_is_a_loader() -> None:
    assert set(DATASETS) == {"file", "md17", "rmd17", "embedded", "oc20", "oc22"}


def test_real_rmd17(data_dir: Path) -> None:
    config = DataConfig(
        train=str(data_dir / "rmd17_ethanol_a.extxyz"),
        test=str(data_dir / "rmd17_ethanol_b.extxyz"),
        split=SplitConfig(train=950, valid=50),
    )
    loaded = load_data(config, seed=0)
    assert (len(loaded.train), len(loaded.valid or ()), len(loaded.test or ())) == (950, 50, 1000)


def test_a_file_with_a_similar_name_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "frames.extxyz").touch()
    with pytest.raises(FileNotFoundError, match=r"no file .*frames.xyz; did you mean frames.extxyz\?"):
        read_file(tmp_path / "frames.xyz")
    with pytest.raises(FileNotFoundError, match=r"no file .*nowhere/a.xyz$"):
        read_file(tmp_path / "nowhere" / "a.xyz")


def test_references_that_a_reader_did_not_resolve_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(config: DataConfig, seed: int, required: Any) -> Any:
        return replace(load_data(DataConfig(name="embedded"), seed, required), references=config.references)

    monkeypatch.setitem(DATASETS, "careless", careless)
    with pytest.raises(ValueError, match="data.references=isolated is not understood by data.name=careless"):
        load_data(DataConfig(name="careless", references="isolated"), seed=0)
    with pytest.raises(ValueError, match="data.references=None"):
        load_data(DataConfig(name="careless"), seed=0)
    assert load_data(DataConfig(name="careless", references="fit"), seed=0).references == "fit"


def test_isolated_atoms_are_told_from_cells_of_one_atom(tmp_path: Path) -> None:
    """By a mask over all structures as by each of them; they need no forces."""
    box, layers = np.eye(3) * 15.0, np.diag([15.0, 15.0, 3.0])
    atoms = [
        ase.Atoms("H"), ase.Atoms("H", cell=box, pbc=True), ase.Atoms("Po", cell=0.2 * box, pbc=True),
        ase.Atoms("H", cell=layers, pbc=[True, True, False]), ase.Atoms("H2", [[0, 0, 0], [0, 0, 0.74]]),
    ]  # fmt: skip
    for one in atoms:
        one.calc = SinglePointCalculator(one, energy=-1.0, forces=np.zeros((len(one), 3)))
    atoms[0].calc = SinglePointCalculator(atoms[0], energy=-1.0)
    structures, _ = read_file(_write(tmp_path / "atoms.extxyz", atoms), required=("energy", "forces"))
    assert isinstance(structures, StructureArrays)
    assert structures.isolated.tolist() == [s.is_isolated for s in structures] == [True, True, False, True, False]
    atoms[4].calc = SinglePointCalculator(atoms[4], energy=-1.0)
    with pytest.raises(ValueError, match="1 of 5 frames have no forces: frame 4"):
        read_file(_write(tmp_path / "fewer.extxyz", atoms), required=("energy", "forces"))
