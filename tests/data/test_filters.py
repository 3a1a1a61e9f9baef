"""``data.filter``: structures are left out and counted, once and for all runs on the same file."""

from __future__ import annotations

from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.data import DataConfig, SplitConfig, load_data, read_file
from denskit.data.config import FilterConfig
from denskit.data.convert import convert
from denskit.data.filters import filtered
from denskit.data.inspection import findings_of


def _frames(count: int) -> list[ase.Atoms]:
    """Copper; frame 3 has an atom far away, 5 a large force, 7 both, 9 a large stress."""
    frames = []
    for number in range(count):
        atoms = bulk("Cu", cubic=True)
        atoms.rattle(0.05, seed=number)
        if number in (3, 7):
            atoms = ase.Atoms("Cu2", [[0, 0, 0], [9, 0, 0]], cell=[18, 18, 18], pbc=True)
        forces, stress = np.full((len(atoms), 3), 0.1), np.full(6, 0.001 * number)
        forces[1, 2] = 60.0 if number in (5, 7) else 0.2
        stress[3] = -2.0 if number == 9 else 0.0
        atoms.calc = SinglePointCalculator(atoms, energy=-4.0 - number, forces=forces, stress=stress)
        frames.append(atoms)
    return frames


@pytest.fixture
def mine(tmp_path: Path) -> str:
    ase.io.write(tmp_path / "mine.extxyz", _frames(30))
    return str(tmp_path / "mine.extxyz")


FILTER = FilterConfig(isolated=5.0, max_force=50.0, max_stress=1.0)


def test_each_structure_is_counted_once(mine: str) -> None:
    source, _ = read_file(mine)
    kept, (said,) = filtered(source, FILTER)
    assert sorted(set(range(30)) - set(kept.tolist())) == [3, 5, 7, 9]
    assert "left out 4 of 30 structures (data.filter): 2 with an atom without neighbours within 5 Å, " in said
    assert said.endswith("1 with a force above 50 eV/Å, 1 with a stress above 1 eV/Å^3")
    assert filtered(source, FilterConfig()) == (pytest.approx(np.arange(30)), [])
    with pytest.raises(ValueError, match="left out 30 of 30.*none is left"):
        filtered(source, FilterConfig(max_force=0.01))


def test_training_never_sees_them(tmp_path: Path, mine: str) -> None:
    loaded = load_data(DataConfig(path=mine, filter=FILTER), seed=0)
    assert loaded.splits is not None
    assert any("left out 4 of 30" in line for line in loaded.messages)
    parts = [loaded.splits.train, loaded.splits.valid, loaded.splits.test]
    assert set(np.concatenate(parts).tolist()) == set(range(30)) - {3, 5, 7, 9}
    loaded.splits.save(tmp_path / "splits.json")
    config = DataConfig(path=mine, filter=FILTER, split=SplitConfig(file=str(tmp_path / "splits.json")))
    again = load_data(config, seed=1)
    assert again.splits is not None
    assert again.splits.train.tolist() == loaded.splits.train.tolist()


def test_an_older_split_loses_them(tmp_path: Path, mine: str) -> None:
    older = load_data(DataConfig(path=mine, split=SplitConfig(train=1.0, valid=0, test=0)), seed=0)
    assert older.splits is not None and 5 in older.splits.train
    older.splits.save(tmp_path / "splits.json")
    config = DataConfig(path=mine, filter=FILTER, split=SplitConfig(file=str(tmp_path / "splits.json")))
    assert len(load_data(config, seed=0).train) == 26


def test_files_of_their_own(tmp_path: Path, mine: str) -> None:
    valid, test = str(tmp_path / "valid.extxyz"), str(tmp_path / "test.extxyz")
    ase.io.write(valid, _frames(8)), ase.io.write(test, _frames(8))
    loaded = load_data(DataConfig(train=mine, valid=valid, test=test, filter=FILTER), seed=0)
    assert loaded.valid is not None and loaded.test is not None
    assert (len(loaded.train), len(loaded.valid), len(loaded.test)) == (26, 5, 8), "a test file is judged whole"
    assert sum("data.filter" in line for line in loaded.messages) == 2


def test_shards_are_filtered_when_they_are_written_and_when_they_are_read(tmp_path: Path, mine: str) -> None:
    said = convert([mine], tmp_path / "without", DataConfig(filter=FILTER))
    assert any("left out 4 of 30" in line for line in said)
    assert len(read_file(tmp_path / "without")[0]) == 26
    convert([mine], tmp_path / "whole")
    config = DataConfig(path=str(tmp_path / "whole"), filter=FILTER, split=SplitConfig(valid=2, test=0))
    assert len(load_data(config, seed=0).train) == 24


ENERGIES = {"Cu": -3.5, "Ni": -5.5, "O": -4.9}  # eV


def _alloys(count: int, *, wrong: dict[int, float], last: str = "Cu") -> list[ase.Atoms]:
    """Four metal atoms of random kinds with the energies of their elements, ``wrong`` eV an atom more in some."""
    lots = np.random.default_rng(3)
    frames = []
    for number in range(count):
        atoms = bulk("Cu", cubic=True)
        atoms.symbols = [*lots.choice(["Cu", "Ni"], 3), last if number == count - 1 else "Ni"]
        energy = sum(ENERGIES[symbol] for symbol in atoms.symbols) + lots.normal(0, 0.02)
        atoms.calc = SinglePointCalculator(atoms, energy=energy + 4 * wrong.get(number, 0), forces=np.zeros((4, 3)))
        frames.append(atoms)
    return frames


def test_implausible_energies(tmp_path: Path) -> None:
    mine, valid = str(tmp_path / "mine.extxyz"), str(tmp_path / "valid.extxyz")
    ase.io.write(mine, _alloys(40, wrong={4: 20.0, 11: -1.5, 12: 0.5}))
    ase.io.write(valid, _alloys(6, wrong={2: 3.0}, last="O"))  # an element that the training structures lack
    config = FilterConfig(max_energy_deviation=1.0)
    loaded = load_data(DataConfig(train=mine, valid=valid, filter=config), seed=0)
    assert sorted(set(range(40)) - {system.index for system in loaded.train}) == [4, 11]
    assert loaded.valid is not None and [system.index for system in loaded.valid] == [0, 1, 3, 4, 5]
    words = "2 with an energy more than 1 eV an atom from a sum over the elements"
    assert any(words in said for said in loaded.messages)
    few, _ = read_file(valid)
    with pytest.raises(ValueError, match="with 3 elements that wants at least 15 structures with energies, found 6"):
        filtered(few, config)


def test_the_advice_of_info_leaves_out_the_frames_that_it_names(tmp_path: Path) -> None:
    mine = str(tmp_path / "mine.extxyz")
    ase.io.write(mine, _alloys(40, wrong={4: 20.0, 11: -5.0}))
    source, _ = read_file(mine)
    (finding,) = [found for found in findings_of(source) if "sum over the elements" in found.found]
    setting, value = finding.advice.rsplit("data.filter.", 1)[1].split("=")
    kept, _ = filtered(source, FilterConfig.model_validate({setting: float(value)}))
    assert set(finding.frames) == set(range(40)) - set(kept.tolist()) == {4, 11}
