"""Frames in the folder of a run: those of a start that was killed are no data of the next one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ase.build import molecule

from denskit.training.given_frames import kept
from denskit.training.load_config import RunConfig, load_config
from denskit.training.run_folder import RunFolder


def test_frames_of_a_killed_start_are_removed(tmp_path: Path) -> None:
    folder, water = RunFolder(tmp_path / "run"), [molecule("H2O")]
    folder.frames("test").parent.mkdir(parents=True)
    folder.frames("test").write_text("of a killed start")
    with kept({"train": water, "valid": water}, folder, continues=False):
        assert folder.frames("train").is_file() and not folder.frames("test").exists()


def test_the_error_of_a_start_is_not_hidden_by_files_of_others(tmp_path: Path) -> None:
    folder, water = RunFolder(tmp_path / "run"), [molecule("H2O")]
    note = folder.frames("train").with_name("note.txt")
    note.parent.mkdir(parents=True)
    note.write_text("mine")
    with pytest.raises(ValueError, match="the true reason"), kept({"train": water}, folder, continues=False):
        raise ValueError("the true reason")
    assert list(note.parent.iterdir()) == [note]


def test_only_frames_that_the_run_names_are_its_data(tiny: Callable[..., RunConfig]) -> None:
    """Where its folder has moved, too."""
    config = tiny(
        "data.name=file", "data.molecule=null", "data.path=null", "data.train=/before/run/frames/train.extxyz"
    )
    folder = RunFolder(config.output)
    folder.write_start(config)
    for part in ("train", "test"):
        folder.frames(part).parent.mkdir(exist_ok=True)
        folder.frames(part).write_text("")
    data = load_config(folder.path).data
    assert (data.train, data.test) == (str(folder.frames("train").resolve()), None)
