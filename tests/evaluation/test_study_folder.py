"""A study's folder: files that Denskit did not write are never removed, nor replaced unseen."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from denskit.cli import app
from denskit.evaluation.study.config import StudyConfig, load_study
from denskit.evaluation.study.running import StudyFolder

FRAMES = Path(__file__).parents[2] / "examples" / "data" / "ethanol_dft.extxyz"
BY_HAND = """# which rate?
title: two rates
base: demo
variants: {one: {task: energy_forces}}
"""


def study_of(steps: int) -> StudyConfig:
    settings = {"training.max_steps": steps}
    return StudyConfig.model_validate(
        {"title": "mine", "base": "demo", "settings": settings, "variants": {"one": {"task": "energy_forces"}}}
    )


def project(folder: Path) -> dict[str, str]:
    """A folder with work of another kind; its files and their texts."""
    for name in ("inputs/INCAR", "splits/mine.json", "trials/first.txt", "frames.extxyz"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    return files_of(folder)


def files_of(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "command",
    [
        ["study", "FRAMES", "--question", "dens", "--frames", "50", "--hours", "1", "--dry-run"],
        ["study", "FRAMES", "--question", "dens", "--frames", "50"],
        ["study", "demo"],
        ["demo"],
        ["demo", "--force"],
    ],
    ids=" ".join,
)
def test_a_folder_of_other_work_is_refused(tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    work = importlib.import_module("denskit.cli.study_work")
    for name in ("train_and_report", "_costs"):  # none may begin
        monkeypatch.setattr(work, name, None)
    before = project(tmp_path)
    given = [str(FRAMES) if word == "FRAMES" else word for word in command]
    done = CliRunner().invoke(app, [*given, "--output", str(tmp_path)])
    assert done.exit_code == 1
    assert "holds trials, splits, inputs and no study of denskit; give another --output (nothing changed)" in " ".join(
        done.output.split()
    )
    assert files_of(tmp_path) == before


def test_a_new_demo_removes_the_old_one_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("denskit.cli.study_work.train_and_report", lambda *_, **__: None)
    monkeypatch.setattr(importlib.import_module("denskit.cli.demo"), "_judge", lambda *_: None)
    folder = tmp_path / "demo"

    def demo(*more: str) -> int:
        return CliRunner().invoke(app, ["demo", "--output", str(folder), *more]).exit_code

    assert demo() == 0
    first = folder / "runs" / "without-DeNS_seed-0"
    first.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    assert demo("--steps", "100") == 1 and first.exists()
    assert demo("--steps", "100", "--force") == 0
    assert not first.exists() and (folder / "notes.txt").read_text() == "mine"
    first.mkdir(parents=True)
    assert demo("--steps", "100") == 0 and first.exists(), "an unfinished demo goes on"
    assert demo("--steps", "100", "--force") == 0 and not first.exists()


def test_a_study_by_hand_keeps_its_text(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    folder.study.write_text(BY_HAND)
    study = load_study(folder.study)
    assert folder.keep(study) == (folder.study, study, [])
    assert folder.study.read_text() == BY_HAND
    _, _, said = folder.keep(study.model_copy(update={"seeds": (0, 1, 2, 3, 4)}))
    by_hand = tmp_path / "study_before.yaml"
    assert said == [f"{folder.study} as it was is {by_hand} now"]
    assert by_hand.read_text() == BY_HAND and load_study(folder.study).seeds == (0, 1, 2, 3, 4)


def test_a_study_that_trained_nothing_is_replaced(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "out")
    folder.keep(study_of(1))
    (folder.path / "trials").mkdir()
    folder.keep(study_of(2))
    assert not (folder.path / "trials").exists() and load_study(folder.study) == study_of(2)
