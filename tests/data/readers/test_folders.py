"""A folder of ordinary files, given to a model."""

from __future__ import annotations

import re
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator

from cli_calls import denskit
from denskit.active.frames import read_frames
from denskit.data import DataConfig, load_data, read_file
from denskit.data.convert import convert
from denskit.data.frames import exact_extxyz
from denskit.data.inspection import inspect_file
from denskit.data.loading import read_files
from denskit.data.readers.folders import Files, read_given
from denskit.data.readers.formats import are_shards, files_in
from denskit.data.splits import identity_of
from denskit.data.writing import Originals, plain, relabelled
from denskit.evaluation.unseen import warnings_for_file
from denskit.training.load_config import load_config
from denskit.training.run import train

from trained import TRAINED


def _said_of(run: Path, given: str | Path) -> list[str]:
    """The warnings where a file, folder or pattern is judged by a run."""
    return warnings_for_file([run], Path(given), read_files(given, DataConfig())[0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    water, methane = molecule("H2O"), molecule("CH4")
    ase.io.write(tmp_path / "b.extxyz", [water, methane])
    ase.io.write(tmp_path / "a.xyz", methane)
    ase.io.write(tmp_path / "c.traj", water)
    (tmp_path / "broken.extxyz").write_text("3\nnothing\nH 0 0\n")
    (tmp_path / "readme.txt").write_text("water and methane")
    return tmp_path


def test_files_are_joined_by_name_and_the_broken_one_is_named(folder: Path) -> None:
    found, said = read_given(folder, DataConfig(), read_file)
    assert isinstance(found, Files)
    assert not are_shards(folder)
    assert [len(system) for system in found] == [5, 3, 5, 3]
    assert [system.index for system in found] == [0, 1, 2, 3]
    assert said[0] == f"{folder}: 4 structures in 3 files, by their names"
    (warning,) = [line for line in said if line.startswith("warning")]
    assert "broken.extxyz cannot be read" in warning
    original = Originals(folder, found)
    assert [original(system).info["name"] for system in found] == ["a.xyz", "b.extxyz:0", "b.extxyz:1", "c.traj"]


def test_a_folder_of_which_nothing_can_be_read(folder: Path) -> None:
    for name in ("a.xyz", "b.extxyz", "c.traj"):
        (folder / name).unlink()
    with pytest.raises(ValueError, match=r"none of 1 file can be read.*broken.extxyz cannot be read"):
        read_given(folder, DataConfig(), read_file)


def test_a_file_is_read_as_before(folder: Path) -> None:
    assert len(read_given(folder / "b.extxyz", DataConfig(), read_file)[0]) == 2
    (folder / "b.extxyz").rename(folder / "b.dat")
    with pytest.raises(FileNotFoundError):
        read_given(folder / "b.extxyz", DataConfig(), read_file)


def test_a_folder_is_looked_at_and_simulated(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = inspect_file(folder)
    assert found.frames == 4 and found.elements == {"H": 12, "C": 2, "O": 2}
    assert any("broken.extxyz cannot be read" in str(problem) for problem in found.problems)
    output = tmp_path_factory.mktemp("md") / "runs"
    result = denskit("md", TRAINED, folder, "--index", ":2", "--steps", 2, "-o", output)
    assert "2 of 2 runs are stable" in result.output, result.output
    assert re.search(r"left out: .*broken.extxyz cannot be read", " ".join((result.output + result.stderr).split()))
    with pytest.warns(UserWarning, match=r"left out: .*broken.extxyz cannot be read"):
        assert len(read_frames(folder)) == 4


@pytest.mark.parametrize("pattern", ["", "*/run.extxyz", "**/*.extxyz"])
def test_the_files_of_a_folder_or_pattern_are_trained_on(tmp_path: Path, pattern: str) -> None:
    shipped = load_data(DataConfig(name="embedded"), 0).train
    frames = [relabelled(plain(s), {"energy": s.energy, "forces": s.forces}) for s in list(shipped)[:24]]
    for number, frame in enumerate(frames):
        place = tmp_path / "calc" / (f"{number:02d}/run.extxyz" if pattern else f"{number:02d}.extxyz")
        place.parent.mkdir(parents=True, exist_ok=True)
        ase.io.write(place, frame)
    given = str(tmp_path / "calc" / pattern) if pattern else str(tmp_path / "calc")
    whole = tmp_path / "all.extxyz"
    ase.io.write(whole, frames)
    split = {"train": 12, "valid": 6}
    one, many = (load_data(DataConfig(path=path, split=split), 0) for path in (str(whole), given))
    for part in ("train", "valid", "test"):
        assert [s.energy for s in getattr(one, part)] == [s.energy for s in getattr(many, part)]
    assert many.messages[0].startswith(f"{given}: 24 structures in 24 files")
    output = str(tmp_path / "run")
    settings = {"data.path": given, "data.split": split, "training.max_steps": 2}
    run = train(load_config("demo", settings | {"output": output}))
    parts = sorted((tmp_path / "calc").rglob("*.extxyz"))
    said = [_said_of(run, file) for file in (*parts, whole)]
    for file, (warning,) in zip(parts, said[:-1], strict=True):
        assert warning.startswith(f"warning: {output} has trained on files of which {file} is one, whose errors")
    (copied,) = said[-1]
    assert copied.startswith(f"warning: {output} has trained on copies of 12 of the 24 structures of {whole}, whose")
    (one,) = _said_of(run, Path(given))
    assert one.startswith(f"warning: {output} has trained on 12 of the 24 structures of {given}, whose")
    given_otherwise = [tmp_path / "calc" / "**" / "*.extxyz", *([] if pattern else [tmp_path / "calc" / "*"])]
    for other in given_otherwise:
        (one,) = _said_of(run, other)
        assert one.startswith(f"warning: {output} has trained on 12 of the 24 structures of {other}, whose")
    some = tmp_path / "calc" / ("0*/run.extxyz" if pattern else "0*.extxyz")
    (one,) = _said_of(run, some)
    assert one.startswith(f"warning: {output} has trained on 10 of the 10 files of {some}, whose")
    if pattern == "*/run.extxyz":
        ase.io.write(parts[0].with_name("new.extxyz"), frames[:2])
        (one,) = _said_of(run, parts[0].parent)
        assert f"has trained on 1 of the 2 files of {parts[0].parent}, whose" in one
        parts[0].with_name("new.extxyz").unlink()
    gained = parts[0].parent.with_name("99") / "run.extxyz" if pattern else parts[0].with_name("99.extxyz")
    gained.parent.mkdir(exist_ok=True)
    ase.io.write(gained, frames[0])
    (one,) = _said_of(run, Path(given))
    assert f"has trained on {given} as it was (" in one and "perhaps on some of its 25 structures, whose" in one
    gained.unlink()
    before = identity_of(Path(given))
    changed = sorted((tmp_path / "calc").rglob("*.extxyz"))[3]
    text = changed.read_text()
    changed.write_text(text.replace(text.split()[-1], text.split()[-1][::-1]))  # as many bytes
    assert identity_of(Path(given))[0] == before[0] and identity_of(Path(given)) != before
    changed.write_text("nothing")
    with pytest.raises(ValueError, match=changed.name):
        load_data(DataConfig(path=given, split=split), 0)


def _labelled(path: Path, number: int, *, prefix: str = "", stress: bool = True, sid: str | None = None) -> None:
    """A file of one crystal with labels."""
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=number)
    atoms.info |= {f"{prefix}energy": -float(number)} | ({f"{prefix}stress": np.full(9, 0.01)} if stress else {})
    atoms.arrays[f"{prefix}forces"] = np.full((4, 3), 0.1 * number)
    atoms.info |= {} if sid is None else {"sid": sid}
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(exact_extxyz([atoms])))


def test_labels_of_two_names_are_refused_in_several_files_as_in_one(tmp_path: Path) -> None:
    for number in range(6):
        _labelled(tmp_path / "calc" / f"{number}.extxyz", number, prefix="REF_" if number < 3 else "")
    words = r"name their energy differently \(REF_energy in 3, energy in 3 frames\).*data.energy_key"
    folder, files = tmp_path / "calc", sorted((tmp_path / "calc").iterdir())
    for given in (folder, folder / "*.extxyz"):
        with pytest.raises(ValueError, match=words):
            load_data(DataConfig(path=str(given)), 0)
    with pytest.raises(ValueError, match=r"\(REF_energy in 2, energy in 3 frames\)"):
        load_data(DataConfig.model_validate({"train": [*map(str, files[1:])], "valid": str(files[0])}), 0)
    with pytest.raises(ValueError, match=words):
        inspect_file(folder)
    with pytest.raises(ValueError, match=r"REF_energy in 1, energy in 1"):
        convert([files[0], files[5]], tmp_path / "shards")
    assert len(read_frames(folder)) == 6  # labels do not matter


def test_a_label_that_one_of_several_files_lacks_may_be_masked(tmp_path: Path) -> None:
    for number in range(6):
        _labelled(tmp_path / "calc" / f"{number}.extxyz", number, stress=number != 3)
    required = ("energy", "forces", "stress")
    folder, files = tmp_path / "calc", sorted((tmp_path / "calc").iterdir())
    data = load_data(DataConfig(path=str(folder), missing="mask"), 0, required)
    (said,) = [text for text in data.messages if "have no stress" in text]
    assert said.endswith("1 of 1 frames have no stress; they count in no loss (1 of 6 files)")
    listed = {"train": [str(files[3]), str(files[4])], "valid": str(files[5]), "missing": "mask"}
    assert len(load_data(DataConfig.model_validate(listed), 0, required).train) == 2
    with pytest.raises(ValueError, match=r"3.extxyz: no frame has stress"):
        load_data(DataConfig(path=str(folder)), 0, required)
    for file in files:
        _labelled(file, 1, stress=False)
    with pytest.raises(ValueError, match=r"0.extxyz and 5 more: no frame has stress"):
        load_data(DataConfig(path=str(folder), missing="mask"), 0, required)


def test_frames_of_one_system_in_several_files_stay_together(tmp_path: Path) -> None:
    for number in range(20):
        _labelled(tmp_path / "calc" / f"{number:02d}.extxyz", number, sid=f"s{number // 4}")
    data = load_data(DataConfig(path=str(tmp_path / "calc")), 0)
    assert data.splits is not None and "whole groups" in data.splits.how
    assert data.valid is not None and not {s.sid for s in data.train} & {s.sid for s in data.valid}


OUTCAR = Path(ase.__file__).parent / "test" / "testdata" / "vasp" / "OUTCAR_example_1"


def test_messages_that_differ_in_numbers_are_one(tmp_path: Path) -> None:
    for number in range(3):
        frame = molecule("H2O")
        frame.calc = SinglePointCalculator(
            frame, energy=1.0, free_energy=1.0 - 0.05 * (number + 1), forces=np.ones((3, 3))
        )
        ase.io.write(tmp_path / f"{number}.traj", frame)
    said = [
        text for text in read_files(tmp_path, DataConfig(), ("energy", "forces"))[1] if "free_energy differs" in text
    ]
    assert len(said) == 1 and "by 50 meV" in said[0]
    assert said[0].endswith("(and in 2 more files, with other numbers)")


@pytest.mark.skipif(not OUTCAR.is_file(), reason="this installation of ASE has no OUTCAR")
def test_a_folder_of_vasp_is_its_output(tmp_path: Path) -> None:
    """POSCAR and CONTCAR, which ASE reads, too, have no labels."""
    for name in ("POSCAR", "CONTCAR"):
        ase.io.write(tmp_path / name, bulk("Cu"), format="vasp")
    assert [file.name for file in files_in(tmp_path)] == ["CONTCAR", "POSCAR"]
    (tmp_path / "vasprun.xml").write_text("")
    assert [file.name for file in files_in(tmp_path)] == ["vasprun.xml"]
    (tmp_path / "OUTCAR").write_bytes(OUTCAR.read_bytes())
    source, _ = read_files(tmp_path, DataConfig(), ("energy", "forces", "stress"))
    assert len(source) == 1 and source[0].energy == pytest.approx(-68.23103, abs=1e-4)
    ase.io.write(tmp_path / "mine.extxyz", bulk("Cu"))
    assert [file.name for file in files_in(tmp_path)] == ["CONTCAR", "POSCAR", "mine.extxyz"]


@pytest.mark.skipif(not OUTCAR.is_file(), reason="this installation of ASE has no OUTCAR")
def test_outputs_of_vasp_in_folders_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "OUTCAR").write_bytes(OUTCAR.read_bytes())
    source = read_files(tmp_path / "*" / "OUTCAR", DataConfig(), ("energy", "forces", "stress"))[0]
    first, second = source
    assert isinstance(source, Files) and [source.name_of(index) for index in (0, 1)] == ["a/OUTCAR", "b/OUTCAR"]
    assert first.energy == second.energy == pytest.approx(-68.23103, abs=1e-4)
    assert len(first) == 18 and first.forces is not None and first.stress is not None
