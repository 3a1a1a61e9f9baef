"""One training, from its settings to its folder."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from denskit.data import load_data
from denskit.data.loading import warnings_of_test
from denskit.files import locked
from denskit.models.base import SYMMETRIC_SITES
from denskit.runtime.device import use_deterministic_algorithms
from denskit.runtime.processes import Processes, join_processes
from denskit.runtime.progress import counted
from denskit.runtime.threads import threads_for
from denskit.training.best_by import BEST_BY
from denskit.training.checkpoint import full_disk_named, load_checkpoint
from denskit.training.checks import warnings_before
from denskit.training.cost import TimeBudget
from denskit.training.forecast import Say, examined, say_what_is_read, settled
from denskit.training.further_elements import with_further_elements
from denskit.training.given_frames import Frames, kept, with_frames
from denskit.training.hints import hints_before
from denskit.training.inputs import contents, require_same_contents, require_same_settings
from denskit.training.optimizer import learning_rates_in_words
from denskit.training.planned import PlannedTraining
from denskit.training.recorded import RecordedBackward
from denskit.training.run_folder import RunFolder
from denskit.training.run_log import OnRow, RunLog, print_line
from denskit.training.seen import seen_before
from denskit.training.settings import RunConfig
from denskit.training.trainer import Trainer

_TRAINING = threading.Lock()
_SAFE_NORM = "model.norm=merged (equiformer) or model.norm=rms_norm (equiformer_v2) for crystals and small molecules"


def train(
    config: RunConfig,
    *,
    resume: bool = False,
    frames: Frames | None = None,
    progress: bool = False,
    on_row: OnRow | None = None,
) -> Path:
    """Train, and return the run folder ``config.output`` (its files: docs/cli.md).

    ``frames``: structures in memory, the data of the run instead of files; they are written into the folder.
    ``progress`` shows the log and a progress bar.  ``on_row`` is called with each row of metrics.csv.  ``resume``
    continues the run in that folder from ``checkpoints/last.pt`` bit for bit; without a checkpoint the run begins.
    Under torchrun every process calls this.  On Ctrl-C and other signals that stop the step is finished, a checkpoint
    saved, and SystemExit raised with 128 and the signal's number.

    Raises ValueError for settings and data that do not go together, a folder in use, a checkpoint of another run, a
    loss that is not finite, errors far above those of predicting zero at the end, a full disk, and where another
    thread of this process trains; FileNotFoundError for missing files.
    """
    with _alone():
        return _trained(config, resume=resume, frames=frames, progress=progress, on_row=on_row)


def _after_fork() -> None:
    """A child has none of the threads that may have trained when it was made."""
    global _TRAINING
    _TRAINING = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One training at a time, since random state and default dtype are the process's; both are as before afterwards.

    (Random state and current device of GPUs only where they were in use before.)  Gradients are on, whatever the caller
    chose.  Raises ValueError where another thread trains.
    """
    lock = _TRAINING
    if not lock.acquire(blocking=False):
        raise ValueError(
            "another training runs in this process; both would draw the same random numbers. Train one after the "
            "other, or each in a process of its own (denskit study, multiprocessing)"
        )
    dtype = torch.get_default_dtype()
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    try:
        gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        with torch.random.fork_rng(devices=gpus), torch.inference_mode(False), torch.enable_grad():
            torch.set_default_dtype(torch.float32)  # of weights when they are drawn; training.dtype casts them
            yield
    finally:
        torch.set_default_dtype(dtype)
        if gpu is not None:
            torch.cuda.set_device(gpu)
        lock.release()


def _trained(config: RunConfig, *, resume: bool, frames: Frames | None, progress: bool, on_row: OnRow | None) -> Path:
    folder = RunFolder(Path(config.output))
    if config.deterministic:
        use_deterministic_algorithms()
    group = join_processes(config.device)
    said: set[str] = set()  # before the log began

    def say(line: str) -> None:
        said.add(line)
        if progress and group.is_first:
            print_line(Console(highlight=False), line)

    if frames is not None:
        config = with_frames(config, frames)
    with locked(folder.path) if group.is_first else contextlib.nullcontext():
        continues = folder.continues(resume=resume)
        group.wait()  # all have looked at the folder before it changes
        with kept(frames or {}, folder, continues=continues) if group.is_first else contextlib.nullcontext():
            group.wait()  # the frames are there
            trainer, changes = _prepared(config, folder, group, say, resume=resume, continues=continues)
        _run(trainer, changes, said, progress=progress, on_row=on_row)
    return folder.path


def _prepared(
    config: RunConfig, folder: RunFolder, group: Processes, say: Say, *, resume: bool, continues: bool
) -> tuple[Trainer, dict[str, tuple[Any, Any]]]:
    """The training at its beginning or at its checkpoint, and the settings that changed since; nothing is written."""
    begin = time.monotonic()
    checkpoint = load_checkpoint(folder.last) if continues else None
    same: set[str] = set()
    if checkpoint is None:
        data, findings = examined(config, say, first=group.is_first)
    else:
        same = require_same_contents(checkpoint.inputs, config, folder.path)
        say_what_is_read(config, say)
        data, findings = load_data(folder.as_divided(config.data), config.seed, config.required_labels), []
    about_test = [] if continues else warnings_of_test(config.data, data)
    budget = config.training.budget
    config, decided = settled(config, data, group, checkpoint, say)
    changes: dict[str, tuple[Any, Any]] = {}
    if checkpoint is not None:
        checkpoint, config, further = with_further_elements(checkpoint, config, len(data.train))
        changes = require_same_settings(checkpoint, config, len(data.train), same)
        changes |= {f"data.references.{symbol}": (None, energy) for symbol, energy in further.items()}
    trainer = Trainer(config, data, group, continued=None if checkpoint is None else checkpoint.scaling)
    if budget is not None and checkpoint is None:
        trainer.budget = TimeBudget(budget, spent=time.monotonic() - begin)
    earlier = {} if checkpoint is None else checkpoint.inputs  # the test file need not be there now
    trainer.inputs = {**earlier, **contents(config)} if group.is_first else {}
    seen = seen_before(config, data.splits, data.judged) if group.is_first else []
    trainer.messages += [*about_test, *decided, *seen]
    if resume and checkpoint is None:
        trainer.messages.append(f"{folder.path} holds no checkpoint yet: starting from the beginning")
    planned = PlannedTraining(config, trainer.schedule, data.train, len(data.valid or ()))
    trainer.messages += [*findings, *warnings_before(planned), *hints_before(planned)]
    if checkpoint is not None:
        trainer.resume(checkpoint, changes)
    return trainer, changes


def _run(
    trainer: Trainer,
    changes: dict[str, tuple[Any, Any]],
    said: Collection[str],
    *,
    progress: bool,
    on_row: OnRow | None,
) -> None:
    """Begin the folder, and train; the terminal has seen what was ``said``."""
    folder, first, splits = trainer.folder, trainer.group.is_first, trainer.data.splits
    with full_disk_named(folder.path):
        if first:
            folder.write_start(trainer.config)
            if splits is not None:
                splits.save(folder.splits)
        total, rows = trainer.schedule.total_steps, trainer.step - trainer.unjudged  # the last row that is kept
        with (
            threads_for(trainer.loader.edges, trainer.group.device) as threads,
            RunLog(
                folder, total_steps=total, first_step=rows, silent=not first, progress=progress, on_row=on_row
            ) as log,
        ):
            for line in [*announcement(trainer, changes), threads]:
                log.say(line, shown=line in said)
            trainer.run(log)


def _changed(key: str, before: Any, now: Any) -> str:
    """A changed setting; of a higher learning rate a warning, since a command without it has the preset's."""
    said = f"changed on resume: {key}: {before} -> {now}"
    return f"warning: {said}; to keep it, give {key}={before}" if key == "training.lr" and now > before else said


def announcement(trainer: Trainer, changes: dict[str, tuple[Any, Any]]) -> list[str]:
    """Messages before the first step; ``changes`` of settings since the checkpoint, as (before, now)."""
    config, data, schedule = trainer.config, trainer.data, trainer.schedule
    force_field = trainer.force_field
    numbers = sum(parameter.numel() for parameter in force_field.parameters())
    amp = config.training.amp
    precision = config.training.dtype if amp == "none" else f"{config.training.dtype} with {amp} where it does no harm"
    if config.training.tf32:
        precision += " and products in TF32" if trainer.update.precision.tf32 else " (TF32 is for NVIDIA GPUs)"
    kernels = force_field.backbone.choose_kernels(force_field.execution, trainer.group.device)
    recorded = isinstance(trainer.update.backward, RecordedBackward)
    epochs = schedule.total_steps / schedule.steps_per_epoch
    by = f"best: the smallest {BEST_BY[config.training.best_by]} on the validation split"
    return [
        *trainer.messages,
        *(_changed(key, before, now) for key, (before, now) in changes.items()),
        f"{config.model.name}, {numbers:,} parameters; task {config.task.name}; "
        f"{counted(len(data.train), 'training structure')}, {len(data.valid) if data.valid else 0} for validation",
        f"{counted(schedule.total_steps, 'step')} of {counted(config.training.batch_size, 'structure')} "
        f"({epochs:,.4g} epoch{'' if epochs == 1 else 's'}) on {trainer.group.count} x "
        f"{trainer.group.device}, {precision}, seed {config.seed}",
        *learning_rates_in_words(trainer.update.optimizer, config.training),
        f"kernels of edge operations: {kernels}",
        *(["steps are recorded as CUDA graphs, one for each shape of the batches"] if recorded else []),
        by if data.valid is not None else "no validation split: the last weights are kept",
        *([] if force_field.backbone.symmetric_sites else [f"warning: {SYMMETRIC_SITES}; set {_SAFE_NORM}"]),
    ]
