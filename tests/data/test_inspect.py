"""``denskit data inspect``: what is found in a file, and each thing that looks wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator
from typer.testing import CliRunner

from denskit.cli.data import app
from denskit.data.config import DataConfig
from denskit.data.inspect import inspect_file

RUNNER = CliRunner()


def _frames(count: int = 30) -> list[ase.Atoms]:
    rng = np.random.default_rng(3)
    frames = []
    for _ in range(count):
        atoms = molecule("CH4")
        atoms.rattle(0.05, rng=rng)
        forces = rng.normal(size=(5, 3))
        atoms.calc = SinglePointCalculator(atoms, energy=rng.normal() - 40, forces=forces - forces.mean(axis=0))
        frames.append(atoms)
    return frames


def _file(folder: Path, frames: list[ase.Atoms]) -> Path:
    path = folder / "mine.traj"  # keeps NaN and every digit
    ase.io.write(path, frames)
    return path


def test_a_good_file(tmp_path: Path) -> None:
    frames = _frames()
    found = inspect_file(_file(tmp_path, frames))
    forces = np.concatenate([atoms.get_forces() for atoms in frames])
    assert found.wrong == []
    assert (found.frames, found.compositions, found.duplicates, found.fixed_atoms) == (30, 1, 0, 0)
    assert found.elements == {"H": 120, "C": 30}
    assert found.periodicity == {"none": 30}
    assert found.labels == {"energy": 30, "forces": 30, "stress": 0}
    assert found.force_rms == pytest.approx(np.sqrt((forces**2).mean()))
    assert found.force_max == pytest.approx(np.linalg.norm(forces, axis=1).max())
    closest = min(np.min(atoms.get_all_distances()[~np.eye(5, dtype=bool)]) for atoms in frames)
    assert found.closest == pytest.approx(closest)
    assert found.energy is not None
    assert found.energy[0] == pytest.approx(min(atoms.get_potential_energy() for atoms in frames))


def _nan(frames: list[ase.Atoms]) -> None:
    frames[4].calc.results["energy"] = np.nan


def _twin(frames: list[ase.Atoms]) -> None:
    frames[7] = frames[2].copy()
    frames[7].calc = SinglePointCalculator(frames[7], **frames[2].calc.results)


def _kcal(frames: list[ase.Atoms]) -> None:
    for atoms in frames:
        atoms.calc.results["forces"] *= 23.06


def _net(frames: list[ase.Atoms]) -> None:
    frames[9].calc.results["forces"][0] = 0


def _outlier(frames: list[ase.Atoms]) -> None:
    frames[11].calc.results["energy"] += 100


def _large(frames: list[ase.Atoms]) -> None:
    frames[6].calc.results["forces"] += np.array([[60.0, 0, 0], [-60, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]])


def _zero(frames: list[ase.Atoms]) -> None:
    for atoms in frames:
        atoms.calc.results["forces"] *= 0


def _equal(frames: list[ase.Atoms]) -> None:
    for atoms in frames:
        atoms.calc.results["energy"] = -40.0


def _bare(frames: list[ase.Atoms]) -> None:
    frames[5].calc = SinglePointCalculator(frames[5], energy=-40.0)


def _short(frames: list[ase.Atoms]) -> None:
    frames[1].positions[2] = frames[1].positions[1] + [0.3, 0, 0]


def _same_place(frames: list[ase.Atoms]) -> None:
    frames[1].positions[2] = frames[1].positions[1]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_nan, "energy is NaN or infinite in 1 frames"),
        (_twin, "geometries that occurred before: frame 7"),
        (_kcal, "looks like kcal/mol/Å: say data.units=kcal/mol"),
        (_net, "do not add up to zero in frame 9"),
        (_outlier, "deviations from their composition's: frame 11"),
        (_large, "forces above 50 eV/Å in frame 6"),
        (_zero, "all forces are zero"),
        (_equal, "all energies are equal"),
        (_bare, "forces is absent in 1 frames (fields: energy, forces)"),
        (_short, "atoms only 0.300 Å apart"),
        (_same_place, "of frame 1 (both counted from 0) are at one place"),
    ],
)
def test_what_looks_wrong(tmp_path: Path, spoil: Any, words: str) -> None:
    frames = _frames()
    spoil(frames)
    found = inspect_file(_file(tmp_path, frames))
    assert [problem for problem in found.wrong if words in problem], found.wrong


def test_a_trajectory_is_recognised(tmp_path: Path) -> None:
    frames, start = _frames(60), molecule("CH4").positions
    for time, atoms in enumerate(frames):
        atoms.positions = start * (1 + 0.1 * np.sin(time / 20)) + 0.001 * np.random.default_rng(time).normal(
            size=(5, 3)
        )
    found = inspect_file(_file(tmp_path, frames))
    assert [note for note in found.notes if "data.split.mode=blocks" in note]
    shuffled = [frames[i] for i in np.random.default_rng(0).permutation(60)]
    assert not [note for note in inspect_file(_file(tmp_path, shuffled)).notes if "blocks" in note]


def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    frames = _frames()
    _twin(frames)
    path = _file(tmp_path, frames)
    table = RUNNER.invoke(app, ["inspect", str(path)])
    assert table.exit_code == 0, table.output
    assert "H 120, C 30" in table.output
    assert "looks wrong: geometries that occurred before: frame 7" in table.output
    printed = RUNNER.invoke(app, ["inspect", str(path), "--json", "--units", "kcal/mol"])
    found = inspect_file(path, DataConfig(units="kcal/mol")).to_dict()
    assert json.loads(printed.output) == json.loads(json.dumps(found))


def test_real_files(data_dir: Path) -> None:
    found = inspect_file(data_dir / "md17_ethanol.npz")
    assert found.wrong == []
    assert found.force_rms == pytest.approx(1.146, abs=1e-3)  # eV/Å: kcal/mol were converted
