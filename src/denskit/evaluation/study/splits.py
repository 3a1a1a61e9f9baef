"""Splits of a study over the number of training frames: the same validation and test frames for every number.

``data.split.train=50`` alone would give all other frames to the test split, so that each number is judged on other
frames.  Here the largest number is divided as usual; smaller training sets are parts of it, each in the next.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from denskit.data import load_data
from denskit.data.splits import Splits
from denskit.evaluation.study.config import FRAMES, StudyConfig, StudyRun


def split_settings(study: StudyConfig, run: StudyRun, folder: Path) -> dict[str, Any]:
    """Settings that give a run its frames; writes the split file if it is missing.

    Raises ValueError where the data cannot be divided like this: fewer frames than asked, no file to divide.
    """
    if FRAMES not in study.axes:
        return {}
    numbers = study.axes[FRAMES]
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        raise ValueError(f"axes: {FRAMES}: {list(numbers)}; numbers of frames are wanted")
    path = folder / f"{run.name.removeprefix(run.variant)}.json"
    if not path.exists():
        _nested(run, largest=max(numbers), path=path)
    return {"data.split.file": str(path.resolve())}


def _nested(run: StudyRun, *, largest: int, path: Path) -> None:
    config = run.config(path.parent / "unused", {FRAMES: largest})
    splits = load_data(config.data, config.seed, config.required_labels).splits
    if splits is None:
        raise ValueError(f"axes: {FRAMES} divides one file (data.path, or data.train without data.valid); found none")
    order = np.random.default_rng(run.seed).permutation(len(splits.train))
    chosen = np.sort(splits.train[order[: run.point[FRAMES]]])
    how = f"{len(chosen)} of {len(splits.train)} training frames, {splits.how}"
    _save(replace(splits, train=chosen, how=how), path)


def _save(splits: Splits, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    splits.save(path)
