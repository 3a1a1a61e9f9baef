"""Training says what looks wrong with its data before the first step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from denskit.data.datasets.embedded import FOLDER
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


def test_training_on_sound_data_mentions_no_problem(tiny: Callable[..., RunConfig]) -> None:
    log = (train(tiny("training.max_steps=1")) / "train.log").read_text(encoding="utf-8")
    assert "problem" not in log
