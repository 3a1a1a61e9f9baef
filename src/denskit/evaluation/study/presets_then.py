"""Whether runs that a study has begun are of the models that its presets have now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from denskit.evaluation.study.config import StudyConfig
from denskit.evaluation.study.runs import StudyRun, runs_of
from denskit.models.config import MEASURED
from denskit.training.load_config import load_config
from denskit.training.run_folder import RunFolder


def require_same_models(study: StudyConfig, folder_of: Callable[[StudyRun], Path]) -> None:
    """Raise ValueError where a run began with another model than its preset has now, and other runs have not begun.

    A study names its presets, which later versions of Denskit may change: then its runs would be of two models.
    """
    runs = runs_of(study)
    begun = [run for run in runs if RunFolder(folder_of(run)).config.is_file()]
    if len(begun) == len(runs):
        return
    for run in begun:
        now = run.config()
        own = {*MEASURED, *(key for row in now.sizes for key in row.model)}  # of so many structures
        wanted, found = (one.model.model_dump() for one in (now, load_config(folder_of(run))))
        changed = next((key for key in wanted if key not in own and found.get(key) != wanted[key]), None)
        if changed is not None:
            raise ValueError(
                f"{folder_of(run)} began with model.{changed}={found.get(changed)}, and its preset {run.base} now has "
                f"{wanted[changed]}: the runs of this study would be of two models. Begin it again in another "
                "--output; denskit compare shows the runs that are there"
            )
