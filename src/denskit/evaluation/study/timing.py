"""Duration of a study, from a trial of a few steps."""

from __future__ import annotations

import tempfile
from pathlib import Path

from denskit.evaluation.study.config import FRAMES, StudyConfig
from denskit.evaluation.study.data import split_settings
from denskit.evaluation.study.judges import require_judgeable
from denskit.evaluation.study.runs import StudyRun, runs_of
from denskit.runtime.device import choose_device, gpus_to_share
from denskit.runtime.threads import cores
from denskit.training.cost import Cost
from denskit.training.fitted_settings import training_for
from denskit.training.forecast import forecast_of
from denskit.training.overview import rows_of
from denskit.training.run_folder import RunFolder
from denskit.training.settings import RunConfig


def seconds_of(run: StudyRun, config: RunConfig, cost: Cost) -> float:
    """Time that is left of a run: the start of its process with imports, data and model; training from its last row of
    metrics.csv, its validations, and the final test."""
    frames, row = run.point.get(FRAMES), next(reversed(rows_of(RunFolder(Path(config.output)))), {})
    training = training_for(config, cost.train if frames is None else frames)
    total = cost.schedule(training, frames).total_steps
    left = 1 - min(int(row.get("step", 0)), total) / total
    return cost.start + left * cost.training_seconds(training, frames) + cost.test * cost.structure


def abreast(study: StudyConfig, processes: int) -> int:
    """Trainings that run side by side, each as fast as alone: on CPUs one for each core, on GPUs one for each."""
    return min(processes, max(1, len(gpus_to_share(device_of(study)))) if on_gpus(study) else cores())


def on_gpus(study: StudyConfig) -> bool:
    """Whether the study trains on GPUs."""
    return choose_device(device_of(study)).type != "cpu"


def device_of(study: StudyConfig) -> str:
    """``device`` of the first run, for all: a study whose variants differ in it has no forecast for each."""
    return runs_of(study)[0].config().device


def require_structures(study: StudyConfig) -> None:
    """Raise ValueError, naming the run, where one of :func:`runs_to_try` cannot have its structures.

    As a trial would, but for all before the first is timed.  Each way to divide the data is looked at once.
    """
    seen: list[object] = []
    with tempfile.TemporaryDirectory() as name:
        for run in runs_to_try(study).values():
            try:
                config = run.config(Path(name) / "run", split_settings(study, run, Path(name) / "splits"))
                needs = config.data, config.required_labels, config.training.init_from
                if needs not in seen:
                    seen.append(needs)
                    require_judgeable(study, config)
            except ValueError as error:
                point = [f"{key} {value}" for key, value in run.point.items()]
                raise ValueError(f"{', '.join([run.variant, *point])}: {error}") from None


def trial(study: StudyConfig, run: StudyRun) -> Cost:
    """Time a few steps of a run and a small evaluation.  Raises as these, and as :func:`require_judgeable`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = run.config(folder / "run", split_settings(study, run, folder / "splits"))
        require_judgeable(study, config)
        return forecast_of(config).cost


def runs_to_try(study: StudyConfig) -> dict[str, StudyRun]:
    """One run of each cell: the first of those with the most structures."""
    tried: dict[str, StudyRun] = {}
    for run in sorted(runs_of(study), key=_frames, reverse=True):
        tried.setdefault(run.cell, run)
    return tried


def _frames(run: StudyRun) -> int:
    frames = run.point.get(FRAMES)
    return frames if isinstance(frames, int) else 0
