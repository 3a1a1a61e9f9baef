"""Predictions beside labels: errors as evaluate gives them, kept in the run folder, by element and group."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
import yaml

from denskit.analysis.judged import Judged
from denskit.analysis.report.committee import shared
from denskit.analysis.report.elements import by_element, by_group
from denskit.analysis.report.errors import trends
from denskit.analysis.report.page import Picture, html_of
from denskit.analysis.report.run import run_sections
from denskit.analysis.report.summary import outliers
from denskit.analysis.run_results import PREDICTIONS, RunResults
from denskit.evaluation.evaluate import evaluate
from denskit.training.load_config import load_config
from denskit.training.run import train

TINY = Path(__file__).parent.parent / "training" / "tiny.yaml"
NAMED = ("summary", "parity", "errors", "trends", "structures")


@pytest.fixture
def judged(runs: list[Path]) -> Judged:
    found = RunResults(runs[0]).judged
    assert isinstance(found, Judged)
    return found


def test_errors_are_those_of_evaluate(runs: list[Path], judged: Judged) -> None:
    wanted = evaluate(runs[0])
    found = judged.errors
    assert set(found) == set(wanted)
    assert found == pytest.approx(wanted, rel=1e-4)


def test_predictions_are_kept_for_the_same_model_only(runs: list[Path], judged: Judged) -> None:
    path = runs[0] / PREDICTIONS
    before = path.stat().st_mtime_ns
    again = RunResults(runs[0]).judged
    assert isinstance(again, Judged)
    np.testing.assert_array_equal(again.all_forces, judged.all_forces)
    assert path.stat().st_mtime_ns == before
    assert Judged.load(path, "another model") is None


def test_shares_of_elements_and_groups_add_up(runs: list[Path], judged: Judged) -> None:
    groups = RunResults(runs[0]).groups
    assert set(groups) == {"config_type"}  # there is one composition only
    wanted = ["other" if index % 2 else "first" for index in judged.index]
    assert groups["config_type"].tolist() == wanted
    total = judged.errors["forces_mae_meV_per_A"]
    for shares in (by_element(judged), by_group(judged, groups["config_type"])):
        assert sum(share.atoms for share in shares) == len(judged.numbers)
        mean = sum(share.error * share.atoms for share in shares) / len(judged.numbers)
        assert 1000 * mean == pytest.approx(total)
    assert [share.label for share in by_element(judged)] == ["H", "C", "O"]


def test_groups_of_a_validation_file_are_its_own(runs: list[Path], tmp_path: Path) -> None:
    """Not the fields of the frames at these places of the file that was trained on, which may be the shorter one."""
    frames = ase.io.read(runs[0].parent / "mine.extxyz", ":12")
    ase.io.write(tmp_path / "train.extxyz", frames[:4])
    for place, atoms in enumerate(frames[4:]):
        atoms.info["config_type"] = "hot" if place < 3 else "cold"
    ase.io.write(tmp_path / "valid.extxyz", frames[4:])
    settings = yaml.safe_load(TINY.read_text())
    settings["data"] = {part: str(tmp_path / f"{part}.extxyz") for part in ("train", "valid")}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    overrides = [f"output={tmp_path / 'run'}", "device=cpu", "training.max_steps=1"]
    run = train(load_config(tmp_path / "run.yaml", overrides))
    assert RunResults(run).groups["config_type"].tolist() == 3 * ["hot"] + 5 * ["cold"]
    ase.io.write(tmp_path / "valid.extxyz", frames[:2])  # the file has changed since it was predicted
    judged = RunResults(run).judged
    assert isinstance(judged, Judged) and len(judged) == 2


def test_outliers_are_frames_with_three_times_the_median_error(judged: Judged) -> None:
    error = np.full(judged.all_forces.shape[1], 0.1)
    error[judged.atoms_of(3)], error[judged.atoms_of(5)] = 0.31, 0.29
    labels = judged.all_forces[0]
    wrong = replace(judged, all_forces=np.stack([labels, labels + error[:, None]]))
    assert outliers(wrong).tolist() == [3]


@pytest.mark.parametrize("labels", ["exact", "zero", "absent"])
def test_every_section_stands_labels_that_leave_nothing_to_draw(runs: list[Path], judged: Judged, labels: str) -> None:
    """Predictions without an error; perfect crystals, whose forces vanish by symmetry; no labels at all."""
    values = {"exact": judged.all_forces[1], "zero": 0.0, "absent": np.nan}[labels]
    sides = judged.energies[1] if labels != "absent" else np.nan
    odd = replace(
        judged,
        all_forces=np.stack([np.broadcast_to(values, judged.all_forces[1].shape), judged.all_forces[1]]),
        energies=np.stack([np.broadcast_to(sides, len(judged)), judged.energies[1]]),
    )
    if labels == "zero":
        odd = replace(odd, all_forces=np.zeros_like(odd.all_forces))
    run = RunResults(runs[0])
    run.__dict__["judged"] = odd
    told = html_of(part for section in run_sections(run, NAMED) for part in section.parts)
    assert ("no labels to compare with" in told) == (labels == "absent")


def test_atoms_of_new_elements_are_not_drawn_against_novelty(judged: Judged) -> None:
    """They are infinitely new."""
    some = replace(judged, novelty=np.where(judged.numbers == 1, np.inf, judged.novelty))
    (picture,) = trends(some).parts
    assert isinstance(picture, Picture)
    forces, novelty = picture.figure.axes
    assert len(novelty.collections[0].get_offsets()) == (judged.numbers != 1).sum()
    assert len(forces.collections[0].get_offsets()) == len(judged.numbers)


def test_committees_share_structures(judged: Judged) -> None:
    first, second = judged.take(np.array([0, 2, 5])), judged.take(np.array([2, 5, 6]))
    both = shared([first, second])
    assert [member.index.tolist() for member in both] == [judged.index[[2, 5]].tolist()] * 2
    np.testing.assert_array_equal(both[0].positions, both[1].positions)
    assert shared([first, judged.take(np.array([7]))]) == []
    assert shared([first, replace(first, positions=first.positions + 0.1)]) == []
