"""Frames of a simulation whose energies and forces are still the model's are named before a training learns them."""

from __future__ import annotations

from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase.build import molecule
from ase.calculators.emt import EMT
from typer.testing import CliRunner

from denskit.active import label, select
from denskit.active.selection import write_selection
from denskit.cli import app
from denskit.data.base import Subset
from denskit.data.config import DataConfig
from denskit.data.inspection import findings_of, inspect_file
from denskit.data.loading import read_file
from denskit.data.records import joined
from denskit.models.model_file import save_model

from trained import TRAINED, trained

LAB = """
from ase.calculators.emt import EMT

def emt():
    return EMT()
"""


def named(file: Path) -> list[int]:
    """Numbers of the frames that are said to carry results of a model."""
    found = [finding for finding in inspect_file(file).findings if "seem to be a model's own" in finding.found]
    assert all(finding.severity == "problem" and "denskit label" in finding.advice for finding in found)
    return [number for finding in found for number in finding.frames]


@pytest.fixture(scope="module")
def committee(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    other = trained(torch.float32)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter *= 1.02
    file = tmp_path_factory.mktemp("committee") / "other.safetensors"
    save_model(file, other, {})
    return [str(TRAINED), str(file)]


@pytest.mark.parametrize("models", [1, 2])
def test_frames_of_a_simulation_until_they_are_labelled(
    tmp_path: Path, committee: list[str], models: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lab_of_unlabelled.py").write_text(LAB)
    ase.io.write("water.xyz", molecule("H2O"))
    options = ["--committee", committee[1], "--uncertain", "1e-9"] if models == 2 else []
    steps = ["--steps", "30", "--frame-every", "10", "--no-bonds", "-o", "md"]
    done = CliRunner().invoke(app, ["md", committee[0], "water.xyz", *steps, *options])
    assert done.exit_code == 0, done.output
    files = [Path("md/trajectory_00.extxyz"), *([Path("md/uncertain.extxyz")] if models == 2 else [])]
    assert all(len(named(file)) == len(ase.io.read(file, ":")) > 0 for file in files)

    write_selection(select([], "md", count=2, duplicate=0.0), "md", "chosen.extxyz")
    assert named(Path("chosen.extxyz")) == [0, 1]
    label("chosen.extxyz", "labelled.extxyz", method="lab_of_unlabelled:emt")
    assert named(Path("labelled.extxyz")) == []

    # beside frames that have labels, as in a training; and an answer by another program under names of its own
    sources = [read_file(name, DataConfig())[0] for name in ("labelled.extxyz", "chosen.extxyz")]
    whole = joined(sources)
    (finding,) = [each for each in findings_of(whole) if "seem to be a model's own" in each.found]
    assert finding.frames == (2, 3) and "frames 0, 1 of chosen.extxyz" in finding.where
    assert not [each for each in findings_of(Subset(whole, np.arange(2), "train")) if "model's own" in each.found]
    frames = ase.io.read("chosen.extxyz", ":")
    for atoms in frames:
        atoms.info["REF_energy"], atoms.arrays["REF_forces"] = -1.0, np.zeros((3, 3))
    ase.io.write("named.extxyz", frames)
    assert named(Path("named.extxyz")) == []


def test_predictions_of_a_committee(tmp_path: Path, committee: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frames = [molecule("H2O"), molecule("H2O")]
    for number, atoms in enumerate(frames):
        atoms.rattle(0.05, seed=number)
    ase.io.write("bare.xyz", frames)
    for atoms in frames:
        atoms.calc = EMT()
        atoms.get_forces()
    ase.io.write("with.extxyz", frames)
    for file, wanted in (("bare.xyz", [0, 1]), ("with.extxyz", [])):  # labels go on as REF_energy and REF_forces
        command = ["predict", committee[0], file, "--committee", committee[1], "-o", f"out_{file}"]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        assert named(Path(f"out_{file}")) == wanted
