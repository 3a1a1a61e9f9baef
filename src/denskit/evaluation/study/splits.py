"""Splits of a study over the number of training structures: the same validation and test structures for all numbers.

``data.split.train=50`` alone gives all other structures to the test split, so that each number has another test set.
Here the largest number is divided as usual; smaller training sets are nested in it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from denskit.data import load_data
from denskit.data.base import known_elements
from denskit.data.splits import Splits, rare_first
from denskit.evaluation.study.config import FRAMES, StudyConfig, StudyRun, file_name, runs_of


def split_settings(study: StudyConfig, run: StudyRun, folder: Path) -> dict[str, Any]:
    """Settings that give a run its structures; writes the split file if it is missing.

    Raises ValueError for fewer structures than asked, and where there is no file to divide.
    """
    if FRAMES not in study.axes:
        return {}
    numbers = study.axes[FRAMES]
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        raise ValueError(f"axes: {FRAMES}: {list(numbers)}; numbers of frames are wanted")
    reference = next(other for other in runs_of(study) if (other.point, other.seed) == (run.point, run.seed))
    shared = run.config().data == reference.config().data  # else it divides other data, or otherwise
    path = folder / f"{run.name.removeprefix(file_name(run.variant)) if shared else run.name}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _nested(run, largest=max(numbers)).save(path)
    return {"data.split.file": str(path.resolve())}


def _nested(run: StudyRun, *, largest: int) -> Splits:
    config = run.config(more={FRAMES: largest})
    data = load_data(config.data, config.seed, config.required_labels)
    splits = data.splits
    if splits is None:
        raise ValueError(f"axes: {FRAMES} divides one file (data.path, or data.train without data.valid); found none")
    if len(splits.train) < run.point[FRAMES]:
        raise ValueError(
            f"axes: {FRAMES}: {run.label} gets {len(splits.train)} training structures, since {splits.how}; "
            "give smaller numbers or data.split.mode=random"
        )
    order = np.random.default_rng(run.seed).permutation(len(splits.train))
    if elements := known_elements(data.train):  # the smallest sets have all elements, too, where they can
        order = rare_first(order, [elements[place] for place in order])
    chosen = np.sort(splits.train[order[: run.point[FRAMES]]])
    return replace(splits, train=chosen, how=f"{len(chosen)} of {len(splits.train)} training frames, {splits.how}")
