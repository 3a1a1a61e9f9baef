"""What the files of a run folder say: messages, errors and curves."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from denskit import Run
from denskit.analysis.run_results import RunResults
from denskit.data.splits import Splits
from denskit.evaluation.study.running import seconds_of_run
from denskit.files import locked
from denskit.models.model_file import load_model
from denskit.runtime.run_state import state_of
from denskit.training.overview import errors_of, messages_of, metrics_of, overview_of
from denskit.training.run_folder import RunFolder

from trained import TRAINED


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run folder with the files that a training writes first."""
    (tmp_path / "config.yaml").write_text("{model: {name: equiformer}, task: {name: dens}, data: {name: embedded}}")
    (tmp_path / "environment.json").write_text("{}")
    return RunFolder(tmp_path)


def test_all_lines_of_a_long_error_are_whole(folder: RunFolder) -> None:
    """The time stands before the first of them alone."""
    stamp = "2026-01-01 00:00:00  "
    error = "the structures cannot be used:\n  mine.extxyz, frame 3: the energy is missing\nAdd it, or leave it out"
    folder.log.write_text(f"{stamp}begun\n{stamp}step 1/5  epoch 0\n{stamp}stopped: {error}\n", encoding="utf-8")
    told = ["begun", *f"stopped: {error}".splitlines()]
    assert messages_of(folder) == told == Run(folder.path).messages
    assert [line for line in RunResults(folder.path).messages if not line.startswith("step ")] == told
    assert state_of(folder.path) == "failed"


def test_errors_of_a_study_and_of_evaluate_are_the_same_for_all(folder: RunFolder) -> None:
    assert errors_of(folder) == {} and overview_of(folder.path).test == {}
    (folder.path / "test.json").write_text(json.dumps({"forces_mae_meV_per_A": 1.0}))
    assert errors_of(folder) == {"test": {"forces_mae_meV_per_A": 1.0}}
    of_study = {"test": {"forces_mae_meV_per_A": 2.0}, "hot": {"forces_mae_meV_per_A": 3.0}}
    (folder.path / "result.json").write_text(json.dumps({"errors": of_study}))
    assert errors_of(folder) == of_study == RunResults(folder.path).errors
    assert overview_of(folder.path).test == of_study["test"] == Run(folder.path).errors


@pytest.mark.parametrize(
    ("name", "text"),
    [("result.json", '{"errors": 3}'), ("result.json", "[1]"), ("test.json", "[1]"), ("result.json", '{"err')],
)
def test_damaged_errors_are_named(folder: RunFolder, name: str, text: str) -> None:
    (folder.path / name).write_text(text)
    with pytest.raises(ValueError, match=rf"{name} is damaged"):
        errors_of(folder)


def test_metrics_are_read_with_gaps(folder: RunFolder) -> None:
    with pytest.raises(FileNotFoundError, match="metrics.csv"):
        metrics_of(folder)
    folder.metrics.write_text("step,loss,valid,seconds\n")
    with pytest.raises(ValueError, match="no rows"):
        metrics_of(folder)
    assert overview_of(folder.path).validation == {}
    folder.metrics.write_text(
        "step,loss,valid_loss,seconds\n1,0.5,,2\n2,0.25,3,4.5\n3,0.1"
    )  # the last is being written
    columns = metrics_of(folder)
    np.testing.assert_array_equal(columns["loss"], [0.5, 0.25])
    np.testing.assert_array_equal(columns["valid_loss"], [np.nan, 3.0])
    assert overview_of(folder.path).validation == {}, "no model is kept yet"
    assert seconds_of_run(folder.path) == 4.5


def test_a_damaged_split_is_named(folder: RunFolder) -> None:
    assert folder.divided() is None
    Splits(np.arange(2), np.array([2]), np.array([], dtype=int), file="mine.extxyz").save(folder.splits)
    divided = folder.divided()
    assert divided is not None and divided.train.tolist() == [0, 1] and not len(divided.test)
    folder.splits.write_text('{"train": [0, 1]}')
    with pytest.raises(ValueError, match=r"splits.json is not a split file written by Denskit"):
        folder.divided()


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("step 100/2000  loss 1\n", r"ended early \(at step 100 of 2,000\).*To go on: denskit train .* --resume"),
        ("step 100/2000  loss 1\nstopped: the disk is full\n", "ended early"),
        ("step 90/100  loss 1\nstep 95/95  loss 1\nfinished: 95 steps in 9s of training\n", ""),  # by its budget
        ("step 90/100  loss 1\nfinished: 95 steps in 9s of training\n", ""),
        ("", ""),
    ],
)
def test_the_model_of_an_unfinished_run_is_told(folder: RunFolder, log: str, said: str) -> None:
    """By its folder and by its file; not where it has been copied to."""
    shutil.copy(TRAINED, folder.model)
    folder.log.write_text(log, encoding="utf-8")
    for given in (folder.path, folder.model):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            load_model(given)
        assert [re.search(said, str(one.message)) is not None for one in warned] == [True] * bool(said)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_model(shutil.copy(folder.model, folder.path.parent / "copy.safetensors"))


def test_the_model_of_a_run_that_still_trains_is_told(folder: RunFolder) -> None:
    shutil.copy(TRAINED, folder.model)
    folder.log.write_text("step 100/2000  loss 1\n", encoding="utf-8")
    with locked(folder.path), pytest.warns(UserWarning, match=r"still trains \(at step 100 of 2,000\)"):
        load_model(folder.path)
