"""How long a study will take, from a trial of a few steps."""

from __future__ import annotations

import csv
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denskit.data.base import Source, evenly
from denskit.evaluation.evaluate import load_force_field, source_of
from denskit.evaluation.study.config import FRAMES, StudyConfig, StudyRun, runs_of
from denskit.evaluation.study.splits import split_settings
from denskit.tasks.measure import measure
from denskit.training.loader import steps_per_epoch
from denskit.training.schedule import Schedule
from denskit.training.settings import RunConfig, parse_interval
from denskit.training.trainer import train

STEPS = 30  # of a trial; the last third is timed
STRUCTURES = 32  # judged in a trial
_SHORT: Mapping[str, Any] = {
    "training.max_steps": STEPS,
    "training.log_every": STEPS // 3,
    "training.evaluate_every": f"{STEPS} steps",
    "training.evaluate_structures": STRUCTURES,
    "training.warmup": 0,
}


@dataclass(frozen=True)
class Cost:
    """What a trial measured."""

    step: float  # s of one training step
    structure: float  # s of the evaluation of one structure
    train: int  # structures
    valid: int
    test: int

    def seconds(self, run: StudyRun, config: RunConfig) -> float:
        """Time of a whole run: training, its validations, and the final test."""
        training = config.training
        frames = run.point.get(FRAMES, self.train)
        schedule = Schedule(training, steps_per_epoch(frames, training.batch_size, training.drop_last))
        interval = parse_interval(training.evaluate_every)
        every = interval.number * (schedule.steps_per_epoch if interval.unit == "epoch" else 1)
        judged = max(1, int(schedule.total_steps / every)) * min(self.valid, training.evaluate_structures or self.valid)
        return schedule.total_steps * self.step + (judged + self.test) * self.structure


def trial(study: StudyConfig, run: StudyRun) -> Cost:
    """Time a few steps of a run and a small evaluation, in a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = {**split_settings(study, run, folder / "splits"), **_SHORT}
        config = run.config(folder / "run", settings)
        path = train(config)
        with (path / "metrics.csv").open(newline="") as stream:
            step = float(list(csv.DictReader(stream))[-1]["step_ms"]) / 1000
        parts = {split: _part(path, split) for split in ("train", "valid", "test")}
        train_part = parts["train"]
        assert train_part is not None
        sample = evenly(parts["valid"] or train_part, STRUCTURES)
        force_field = load_force_field(path, None, config.device)
        measure(force_field, sample, batch_size=STRUCTURES)  # compiles what it needs
        start = time.perf_counter()
        measure(force_field, sample, batch_size=STRUCTURES)
        structure = (time.perf_counter() - start) / len(sample)
        valid, test = (0 if (part := parts[split]) is None else len(part) for split in ("valid", "test"))
        return Cost(step=step, structure=structure, train=len(train_part), valid=valid, test=test)


def _part(path: Path, split: str) -> Source | None:
    try:
        return source_of(path, None, split)
    except ValueError:
        return None


def cell_of(run: StudyRun) -> str:
    """Name of all that decides the cost of a step: variant and point, but not the number of frames."""
    return "_".join([run.variant, *(f"{key}={value}" for key, value in run.point.items() if key != FRAMES)])


def runs_to_try(study: StudyConfig) -> dict[str, int]:
    """For each cell the number of one run in it, with the most frames."""
    runs = runs_of(study)
    order = sorted(range(len(runs)), key=lambda number: runs[number].point.get(FRAMES, 0))
    return {cell_of(runs[number]): number for number in order}
