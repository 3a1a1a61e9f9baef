"""A folder of ordinary files, given to a model."""

from __future__ import annotations

from pathlib import Path

import ase.io
import pytest
from ase.build import molecule

from cli_calls import denskit
from denskit.data import DataConfig, read_file
from denskit.data.inspection import inspect_file
from denskit.data.readers.folders import Files, read_given
from denskit.data.readers.formats import are_shards
from denskit.data.writing import Originals

from trained import TRAINED


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
    result = denskit("md", TRAINED, folder, "--index", ":2", "--steps", 2, "-o", tmp_path_factory.mktemp("md") / "runs")
    assert "2 of 2 runs are stable" in result.output, result.output
