"""Training says what looks wrong with its data before the first step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.data.datasets.embedded import FOLDER
from denskit.training.forecast import forecast_of
from denskit.training.run import train
from denskit.training.settings import RunConfig


def test_training_says_that_forces_have_the_wrong_sign(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    with np.load(FOLDER / "ethanol.npz") as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(tmp_path / "flipped.npz", **{**arrays, "F": -arrays["F"]})
    split = ("data.split.train=200", "data.split.valid=4", "data.split.test=4")
    given = ("data.name=file", "data.molecule=null", f"data.path={tmp_path / 'flipped.npz'}", "training.max_steps=1")
    log = (train(tiny(*split, *given)) / "train.log").read_text(encoding="utf-8")
    assert "training data: problem: -F.dx is -" in log
    assert log.index("training data: problem") < log.index("1/1")


def test_a_test_file_is_looked_at_before_the_first_step(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    with np.load(FOLDER / "ethanol.npz") as file:
        arrays = {name: file[name] for name in file.files}
    of_frames = {name for name, values in arrays.items() if len(np.shape(values)) and len(values) == len(arrays["E"])}
    for part, frames in {"mine": slice(0, 40), "test": slice(30, 50)}.items():
        some = {name: values[frames] if name in of_frames else values for name, values in arrays.items()}
        np.savez(tmp_path / f"{part}.npz", **some)
    given = ("data.name=file", "data.molecule=null", f"data.path={tmp_path / 'mine.npz'}", "training.max_steps=1")
    given += ("data.split={train: 36, valid: 4, test: 0}",)
    with pytest.raises(FileNotFoundError, match=r"data\.test=.*absent\.npz: there is no such file"):
        train(tiny(*given, f"data.test={tmp_path / 'absent.npz'}"))
    log = (train(tiny(*given, f"data.test={tmp_path / 'test.npz'}")) / "train.log").read_text(encoding="utf-8")
    assert "of 20 structures with the geometry of a structure of" in log
    assert log.index("which is trained on") < log.index("1/1")
    (tmp_path / "broken.npz").write_text("nothing")
    run = train(tiny(*given, f"data.test={tmp_path / 'broken.npz'}", f"output={tmp_path / 'other'}"))
    assert "warning: data.test: " in (run / "train.log").read_text(encoding="utf-8")


def test_training_on_sound_data_mentions_no_problem(tiny: Callable[..., RunConfig]) -> None:
    log = (train(tiny("training.max_steps=1")) / "train.log").read_text(encoding="utf-8")
    assert "problem" not in log


def test_single_atoms_among_molecules_stop_no_training(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    """They have no neighbours, and nothing to compare."""
    frames = [molecule("H2O") for _ in range(12)] + [ase.Atoms("H"), ase.Atoms("H")]
    for seed, atoms in enumerate(frames):
        atoms.rattle(0.03, seed=seed)
        atoms.calc = SinglePointCalculator(atoms, energy=-5.0 * len(atoms) + 0.01 * seed, forces=0 * atoms.positions)
    ase.io.write(tmp_path / "mixed.extxyz", frames)
    given = ("data.name=file", "data.molecule=null", f"data.path={tmp_path / 'mixed.extxyz'}", "training.max_steps=2")
    run = train(tiny(*given, "data.split={train: 12, valid: 2, test: 0}", "data.references=fit", "task=dens"))
    assert (run / "model.safetensors").is_file()


def test_findings_come_before_a_step_is_tried(
    tiny: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In cells with thousands of neighbours a single step may take all memory; each is said once, also in the log."""

    def ended(*_: object, **__: object) -> float:
        raise ValueError("the trial")

    frames = []
    for seed in range(24):
        atoms = molecule("H2O", cell=[0.8, 0.8, 0.8], pbc=True)
        atoms.rattle(0.03, seed=seed)
        atoms.calc = SinglePointCalculator(atoms, energy=-15.0 + 0.01 * seed, forces=0.1 * atoms.positions)
        frames.append(atoms)
    ase.io.write(tmp_path / "tiny.extxyz", frames)
    given = ["data.name=file", "data.molecule=null", f"data.path={tmp_path / 'tiny.extxyz'}", "model.cutoff=2"]
    given += ["data.split={train: 20, valid: 4, test: 0}", "data.filter.max_force=100", "data.references=fit"]
    crowded, filtered = "these cells are far too small", "left out 0 of 24 structures"
    with monkeypatch.context() as patch:
        patch.setattr("denskit.training.forecast.time_steps", ended)
        for begin in (
            lambda: train(tiny(*given, "training.budget=1 minute"), progress=True),
            lambda: forecast_of(tiny(*given), say=print),
        ):
            with pytest.raises(ValueError, match="the trial"):
                begin()
            shown = capsys.readouterr().out
            for words in (crowded, filtered):
                assert shown.count(words) == 1 and shown.index(words) < shown.index("timing a few steps")
    run = train(tiny(*given, "training.max_steps=1"), progress=True)
    shown, log = capsys.readouterr().out, (run / "train.log").read_text(encoding="utf-8")
    for words in (crowded, filtered):
        assert (shown.count(words), log.count(words)) == (1, 1)
    assert log.index(filtered) < log.index("references (fit)") < log.index(crowded) < log.index("step 1/1")
