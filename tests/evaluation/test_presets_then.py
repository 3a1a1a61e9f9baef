"""A study goes on with the models that it began with, also where a preset has changed since."""

from __future__ import annotations

from pathlib import Path

import pytest

from denskit.evaluation.study.config import StudyConfig
from denskit.evaluation.study.running import StudyFolder
from denskit.evaluation.study.runs import runs_of
from denskit.training.run_folder import RunFolder


def begun(folder: StudyFolder, study: StudyConfig, **model: object) -> None:
    """The first run has begun with these settings of its model, and with measured numbers and the size for its data."""
    folder.keep(study)
    run = runs_of(study)[0]
    config = run.config(folder.run(run))
    own = {"average_degree": 7.5, "num_layers": 3, "channels": (64, 32, 16), **model}
    folder.run(run).mkdir(parents=True)
    RunFolder(folder.run(run)).write_start(config.model_copy(update={"model": config.model.model_copy(update=own)}))


def study_of(seeds: int) -> StudyConfig:
    return StudyConfig.model_validate({
        "title": "two seeds", "base": "equiformer", "settings": {"data.path": "mine.extxyz"},
        "variants": {"one": {"task": "energy_forces"}}, "seeds": seeds,
    })  # fmt: skip


def test_runs_of_two_models_are_refused(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    begun(folder, study_of(1), parity=False)
    folder.keep(study_of(1))  # nothing is left to begin
    with pytest.raises(
        ValueError, match=r"one_seed-0 began with model\.parity=False, and its preset equiformer now has True"
    ):
        folder.keep(study_of(2))


def test_sizes_and_measured_numbers_are_the_runs_own(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    begun(folder, study_of(1))
    assert folder.keep(study_of(2))[1].seeds == (0, 1)
