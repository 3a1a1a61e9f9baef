"""``denskit stability`` and ``denskit export`` on a tiny model."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase.build import molecule

from cli_calls import denskit
from denskit.models.model_file import save_model
from denskit.simulation.stability.folder import StudyFiles

from trained import nearly_free


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model.safetensors, which holds nothing together, and labelled frames of water in water.extxyz."""
    folder = tmp_path_factory.mktemp("stability")
    save_model(folder / "model.safetensors", nearly_free(torch.float32), {})
    frames = [molecule("H2O") for _ in range(8)]
    for index, atoms in enumerate(frames):
        atoms.rattle(0.02, seed=index)
        atoms.info["REF_energy"], atoms.arrays["REF_forces"] = 0.1 * index, np.zeros((3, 3))
    ase.io.write(folder / "water.extxyz", frames)
    return folder


def test_stability(folder: Path, tmp_path: Path) -> None:
    arguments = ("stability", folder / "model.safetensors", folder / "water.extxyz", "--replicas", 2)
    done = denskit(*arguments, "--time", 0.2, "--output", tmp_path, "--device", "cpu")
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "stability.json").read_text(encoding="utf-8"))
    # nothing holds the molecules together
    assert len(found["unstable"]) == 2 and "h(r) error" in done.output and "became unstable at" in done.output
    assert found["reference_structures"] == 8 and found["h_of_r_error_by_chance"]["mean"] > 0
    assert found["protocol"]["temperature"] == 500 and found["protocol"]["timestep"] == 0.5
    with (tmp_path / "series.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["time_ps"]) for row in rows] == [0.05 * frame for frame in range(len(rows))]
    with (tmp_path / "h_of_r.csv").open(encoding="utf-8") as file:
        curves = list(csv.DictReader(file))
    assert len(curves) == 500
    assert sum(float(row["reference"]) for row in curves) * (10 - 1e-6) / 500 == pytest.approx(1)
    assert (tmp_path / "stability.png").stat().st_size > 10_000


@pytest.mark.parametrize(("error", "remarked"), [(0.6, True), (1.4, False), (None, False)])
def test_an_error_of_few_samples_is_called_so(error: float | None, remarked: bool) -> None:
    summary = {"h_of_r_error": {"mean": error}, "h_of_r_error_by_chance": {"mean": 0.5}, "reference_structures": 20}
    remark = StudyFiles(summary, {}, {}).remark
    assert (
        "error of 0.600 says little" in remark and "have about 0.500" in remark and "20 refer" in remark
    ) == remarked
    assert bool(remark) == remarked


def test_a_folder_with_a_study_is_continued_on_demand_only(folder: Path, tmp_path: Path) -> None:
    arguments = ("stability", folder / "model.safetensors", folder / "water.extxyz", "--replicas", 1, "--nve", 0)
    assert denskit(*arguments, "--time", 0.05, "-o", tmp_path).exit_code == 0
    again = denskit(*arguments, "--time", 0.1, "-o", tmp_path)
    assert again.exit_code == 1 and "--resume" in again.output
    longer = denskit(*arguments, "--time", 0.1, "-o", tmp_path, "--resume")
    assert longer.exit_code == 0, longer.output
    assert json.loads((tmp_path / "stability.json").read_text(encoding="utf-8"))["protocol"]["length"] == 0.1


def test_a_model_file_alone_needs_an_output(folder: Path) -> None:
    done = denskit("stability", folder / "model.safetensors", folder / "water.extxyz")
    assert done.exit_code == 1 and "say with --output" in done.output


def test_export(folder: Path, tmp_path: Path) -> None:
    done = denskit("export", folder / "model.safetensors", "-o", tmp_path / "model.onnx")
    assert done.exit_code == 1 and "are .pt2 files" in done.output
