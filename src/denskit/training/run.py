"""One training, from its settings to its folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from denskit.data import LoadedData, load_data
from denskit.data.base import Source, Subset, evenly
from denskit.data.inspection import findings_of
from denskit.files import locked
from denskit.models.base import SYMMETRIC_SITES
from denskit.runtime.determinism import use_deterministic_algorithms
from denskit.runtime.memory import peak_memory
from denskit.runtime.processes import Processes, join_processes
from denskit.runtime.threads import threads_for
from denskit.tasks.metrics import measure
from denskit.training.checkpoint import Checkpoint, full_disk_named, load_checkpoint
from denskit.training.checks import PlannedTraining, hints_before, warnings_before
from denskit.training.cost import TRIAL_SECONDS, TRIAL_STEPS, Cost, time_steps
from denskit.training.fitted_settings import fit_model_to_data, fit_sigma_to_data
from denskit.training.given_frames import Frames, kept, with_frames
from denskit.training.loader import steps_per_epoch
from denskit.training.run_folder import RunFolder
from denskit.training.run_log import RunLog
from denskit.training.schedule import Schedule
from denskit.training.settings import RunConfig
from denskit.training.trainer import BEST_BY, Trainer

_SAFE_NORM = "model.norm=merged (equiformer) or model.norm=rms_norm (equiformer_v2) for crystals and small molecules"
_JUDGED = 32  # structures evaluated in a trial
_LENGTHS = ("epochs", "max_steps", "budget")


def train(config: RunConfig, *, resume: bool = False, frames: Frames | None = None, progress: bool = False) -> Path:
    """Train, and return the run folder ``config.output`` (its files: docs/cli.md).

    ``frames``: structures in memory, the data of the run instead of files; they are written into the folder.
    ``progress`` shows the log and a progress bar; train.log is written in any case.

    ``resume`` continues the run in that folder from ``checkpoints/last.pt`` bit for bit; without a checkpoint the run
    begins.  Under torchrun every process calls this.  On Ctrl-C and SIGTERM the step is finished, a checkpoint saved,
    and SystemExit raised with 130 or 143.

    Raises ValueError for settings and data that do not go together, a folder in use, a checkpoint of another run, a
    loss that is not finite, errors far above those of predicting zero at the end, a full disk; FileNotFoundError for
    missing files.
    """
    folder = RunFolder(Path(config.output))
    if config.deterministic:
        use_deterministic_algorithms()
    group = join_processes(config.device)
    if frames is not None:
        config = with_frames(config, frames)
    with locked(folder.path) if group.is_first else contextlib.nullcontext():
        continues = folder.continues(resume=resume)
        group.wait()  # all have looked at the folder before it changes
        with kept(frames or {}, folder, continues=continues) if group.is_first else contextlib.nullcontext():
            group.wait()  # the frames are there
            trainer, changes = _prepared(config, folder, group, resume=resume, continues=continues)
        _run(trainer, changes, progress=progress)
    return folder.path


def _prepared(
    config: RunConfig, folder: RunFolder, group: Processes, *, resume: bool, continues: bool
) -> tuple[Trainer, dict[str, tuple[Any, Any]]]:
    """The training at its beginning or at its checkpoint, and the settings that changed since; nothing is written."""
    checkpoint = load_checkpoint(folder.last) if continues else None
    data = load_data(config.data, config.seed, config.required_labels)
    if checkpoint is not None and data.splits is not None:
        folder.require_same_data(data.splits.sha256)
    config, decided = _fitted(config, data)
    if config.training.budget is not None:
        config, length = _with_length(config, data, group, checkpoint)
        decided += length
    trainer = Trainer(config, data, group, continued=checkpoint is not None)
    trainer.messages += decided
    if resume and checkpoint is None:
        trainer.messages.append(f"{folder.path} holds no checkpoint yet: starting from the beginning")
    if checkpoint is None and group.is_first:
        trainer.messages += [f"training data: {finding}" for finding in findings_of(data.train)]
    planned = PlannedTraining(config, trainer.schedule, data.train)
    trainer.messages += [*warnings_before(planned), *hints_before(planned)]
    return trainer, trainer.resume(checkpoint) if checkpoint is not None else {}


def _run(trainer: Trainer, changes: dict[str, tuple[Any, Any]], *, progress: bool) -> None:
    """Begin the folder, and train."""
    folder, first, splits = trainer.folder, trainer.group.is_first, trainer.data.splits
    with full_disk_named(folder.path):
        if first:
            folder.write_start(trainer.config)
            if splits is not None:
                splits.save(folder.splits)
        total = trainer.schedule.total_steps
        with (
            threads_for(trainer.loader.edges, trainer.group.device) as threads,
            RunLog(folder, total_steps=total, first_step=trainer.step, silent=not first, progress=progress) as log,
        ):
            for line in [*announcement(trainer, changes), threads]:
                log.say(line)
            trainer.run(log)


@dataclass(frozen=True)
class Forecast:
    """A training that has not begun."""

    planned: PlannedTraining  # its config has the settings that the data decide
    cost: Cost


def forecasts_of(config: RunConfig, times: Sequence[int] = (1,)) -> list[Forecast]:
    """What a run would be, from a trial of some steps; nothing is written.

    times: ascending; a forecast for so many times the data, which may decide on another model.
    Raises as :func:`train` before its first step.
    """
    group, cpu = join_processes(config.device), torch.device("cpu")
    before = peak_memory(cpu)
    data = load_data(config.data, config.seed, config.required_labels)
    held = peak_memory(cpu) - before if group.device == cpu else 0.0  # MiB, small where data are read as they are used
    found = []
    for number in times:
        copies = np.tile(np.arange(len(data.train)), number)
        larger = replace(data, train=Subset(data.train, copies, data.train.name))
        fitted, _ = _fitted(config, larger)
        cost = _trial(fitted, larger, group)
        memory = peak_memory(group.device) + (number - 1) * held
        cost = replace(cost, valid=number * cost.valid, test=number * cost.test, memory=memory)
        found.append(Forecast(_planned(fitted, cost, larger.train), cost))
    return found


def _planned(config: RunConfig, cost: Cost, source: Source) -> PlannedTraining:
    """The training with its length, which a budget gives by the cost."""
    training = config.training
    if training.budget is not None:
        training = _lasting(config, {"max_steps": cost.steps_of(training)}).training
    per_epoch = steps_per_epoch(len(source), training.batch_size, training.drop_last)
    return PlannedTraining(config, Schedule(training, per_epoch), source)


def _fitted(config: RunConfig, data: LoadedData) -> tuple[RunConfig, list[str]]:
    """The run with the settings that its data decide; and messages for the log."""
    config, sized = fit_model_to_data(config, data)
    config, measured = fit_sigma_to_data(config, data.train)
    return config, sized + measured


def _with_length(
    config: RunConfig, data: LoadedData, group: Processes, checkpoint: Checkpoint | None
) -> tuple[RunConfig, list[str]]:
    """The run with steps in place of its budget: those of the checkpoint, or as many as fit."""
    if checkpoint is not None:
        before = checkpoint.config["training"]
        known = {name: before[name] for name in ("epochs", "max_steps")}
        asked = f"training.budget={config.training.budget} is not used when a training continues"
        kept = ", ".join(f"training.{name}={value}" for name, value in known.items() if value is not None)
        return _lasting(config, known), [f"{asked}: it keeps {kept}, and training.max_steps=N lengthens it"]
    cost = _trial(config, data, group)
    steps = cost.steps_of(config.training)
    epochs = steps * config.training.batch_size / len(data.train)
    length = f"{steps} steps ({epochs:.0f} epochs), at {1000 * cost.step:.0f} ms a step"
    message = f"training.budget={config.training.budget}: {length}"
    return _lasting(config, {"max_steps": steps}), [message]


def _lasting(config: RunConfig, length: dict[str, Any]) -> RunConfig:
    """The run with another length of its training."""
    training = config.training.model_dump() | dict.fromkeys(_LENGTHS) | length
    return config.model_copy(update={"training": type(config.training).model_validate(training)})


def _trial(config: RunConfig, data: LoadedData, group: Processes) -> Cost:
    """Time a few steps and the evaluation of a few structures, by a model that is thrown away."""
    trainer = Trainer(_lasting(config, {"max_steps": 1000, "warmup": 0, "warmup_lr": None}), data, group)
    works = trainer.loader.prefetch(0, TRIAL_STEPS, config.training.prefetch)
    with threads_for(trainer.loader.edges, group.device):
        # all processes must take the same number of steps
        step = time_steps(trainer.train_step, works, limit=TRIAL_SECONDS if group.count == 1 else float("inf"))
        sample = evenly(data.valid or data.train, _JUDGED)
        measure(trainer.force_field, sample, batch_size=_JUDGED, processes=group)  # compiles kernels
        start = time.perf_counter()
        measure(trainer.force_field, sample, batch_size=config.training.evaluate_batch_size, processes=group)
        structure = (time.perf_counter() - start) / len(sample)
    times = torch.tensor([step, structure], dtype=torch.float64, device=group.device)
    step, structure = (group.add(times) / group.count).tolist()
    valid, test = (0 if source is None else len(source) for source in (data.valid, data.test))
    return Cost(step=step, structure=structure, train=len(data.train), valid=valid, test=test)


def announcement(trainer: Trainer, changes: dict[str, tuple[Any, Any]]) -> list[str]:
    """Messages before the first step; ``changes`` of settings since the checkpoint, as (before, now)."""
    config, data, schedule = trainer.config, trainer.data, trainer.schedule
    force_field = trainer.force_field
    numbers = sum(parameter.numel() for parameter in force_field.parameters())
    amp = config.training.amp
    precision = config.training.dtype if amp == "none" else f"{config.training.dtype} with {amp} where it does no harm"
    if config.training.tf32:
        precision += " and products in TF32" if trainer.precision.tf32 else " (TF32 is for NVIDIA GPUs)"
    kernels = force_field.backbone.choose_kernels(force_field.execution, trainer.group.device)
    by = f"best: the smallest {BEST_BY[config.training.best_by]} on the validation split"
    return [
        *trainer.messages,
        *(f"changed on resume: {key}: {before} -> {now}" for key, (before, now) in changes.items()),
        f"{config.model.name}, {numbers:,} parameters; task {config.task.name}; {len(data.train)} training structures, "
        f"{len(data.valid) if data.valid else 0} for validation",
        f"{schedule.total_steps} steps of {config.training.batch_size} structures ({schedule.steps_per_epoch} an epoch)"
        f" on {trainer.group.count} x {trainer.group.device}, {precision}, seed {config.seed}",
        f"kernels of edge operations: {kernels}",
        by if data.valid is not None else "no validation split: the last weights are kept",
        *([] if force_field.backbone.symmetric_sites else [f"warning: {SYMMETRIC_SITES}; set {_SAFE_NORM}"]),
    ]
