"""Settings that the data and the time at hand decide, and what a training will cost; from trials of a few steps."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from denskit.data import LoadedData, load_data
from denskit.data.base import evenly
from denskit.data.inspection import findings_of
from denskit.data.loading import FEW
from denskit.data.records import joined, once
from denskit.runtime.compilation import told_of_compilation
from denskit.runtime.memory import peak_memory
from denskit.runtime.processes import Processes, join_processes
from denskit.runtime.progress import counted
from denskit.runtime.threads import threads_for
from denskit.tasks import FOR_CRYSTALS, FOR_MANY_MATERIALS, DenoisingConfig, DeNSConfig
from denskit.tasks.metrics import measure
from denskit.training.checkpoint import Checkpoint
from denskit.training.cost import TRIAL_STEPS, Cost, lasting, time_steps, trial_seconds
from denskit.training.fitted_denoising import fit_dens_to_crystals, fit_sigma_to_data
from denskit.training.fitted_loss import fit_loss_to_energies
from denskit.training.fitted_settings import fit_model_to_data, rows_for
from denskit.training.loader import steps_per_epoch
from denskit.training.planned import PlannedTraining
from denskit.training.replay import old_structures
from denskit.training.seen import seen_before
from denskit.training.settings import RunConfig
from denskit.training.starting_model import SAMPLE as MEASURED
from denskit.training.trainer import COMPILES, Trainer

_LARGE = 2e7  # bytes of a file that takes seconds to read
_JUDGED = 32  # structures evaluated in a trial, fewer where they take long
Say = Callable[[str], None]


@dataclass(frozen=True)
class Forecast:
    """A training that has not begun."""

    planned: PlannedTraining  # its config has the settings that the data decide
    cost: Cost
    processes: int  # that share each batch
    messages: list[str]  # about what data and budget decided


def forecast_of(config: RunConfig, say: Say | None = None) -> Forecast:
    """A forecast of a run from a trial of some steps; nothing is written.  Of several processes all call this.

    ``say`` is told what is found in the data, and what takes its time, before it begins; without it the data are not
    looked at.  Raises as :func:`denskit.training.run.train` before its first step.
    """
    group = join_processes(config.device)
    if say is None:
        data = load_data(config.data, config.seed, config.required_labels)
    else:
        data, _ = examined(config, say, first=group.is_first)
    fitted, cost, said = _sized(config, data, group, say or (lambda line: None))
    cost = replace(cost, memory=peak_memory(group.device))
    said += seen_before(fitted, data.splits, data.judged)
    if (training := fitted.training).budget is not None:
        training = lasting(fitted, {"max_steps": cost.steps_of(training)}).training
    planned = PlannedTraining(fitted, cost.schedule(training), data.train, cost.valid)
    return Forecast(planned, cost, group.count, said)


def examined(config: RunConfig, say: Say, *, first: bool = True) -> tuple[LoadedData, list[str]]:
    """The data of a run, and findings about those to train on; only the first process looks for these.

    ``say`` is told all before a step is tried: with cells that are far too small it would take hours, or all memory.
    """
    say_what_is_read(config, say)
    data = load_data(config.data, config.seed, config.required_labels)
    findings = findings_of(once(data.train), config.data.missing, config.required_labels) if first else []
    found = [f"training data: {finding}" for finding in findings]
    measured = min(len(data.train), MEASURED)
    if not data.train.in_memory and measured > FEW:
        line = f"reading {measured:,} of {len(data.train):,} training structures for scale and references"
        data = replace(data, messages=[*data.messages, line])
    for line in [*data.messages, *found]:
        say(line)
    return data, found


def say_what_is_read(config: RunConfig, say: Say) -> None:
    """One line before large files of the run are read."""
    names = [*(part.path for part in config.data.parts), config.data.valid]
    files = [path for name in names if name is not None and (path := Path(name).expanduser()).is_file()]
    large = [f"{path} ({size / 1e6:.0f} MB)" for path in files if (size := path.stat().st_size) > _LARGE]
    if large:
        say(f"reading {', '.join(large)}")


def settled(
    config: RunConfig, data: LoadedData, group: Processes, checkpoint: Checkpoint | None, say: Say
) -> tuple[RunConfig, list[str]]:
    """The run with the settings that its data and its time budget decide; and messages for the log.

    ``say`` is told of trials.  A run that continues keeps the row of ``sizes`` and the length that it began with.
    """
    budget = config.training.budget
    if checkpoint is not None:
        config, said = _as_begun(config, data, checkpoint)
        config = _warming_as_begun(config, checkpoint)
        return (config, said) if budget is None else _of_the_same_length(config, said, checkpoint)
    if budget is None:
        return _fitted(config, data)
    config, cost, said = _sized(config, data, group, say)
    steps = cost.steps_of(config.training)
    epochs = steps // steps_per_epoch(cost.train, config.training.batch_size, config.training.drop_last)
    length = f"{counted(steps, 'step')} ({counted(epochs, 'epoch')}), at {1000 * cost.step:.0f} ms a step"
    return lasting(config, {"max_steps": steps}), [*said, f"training.budget={budget}: {length}"]


def _as_begun(config: RunConfig, data: LoadedData, checkpoint: Checkpoint) -> tuple[RunConfig, list[str]]:
    """The run with that row of ``sizes`` whose model the checkpoint has; without one, as if it began.

    Settings of task and training that are chosen by the data, and not given, stay as they were.
    """
    task, before, trained = config.task, checkpoint.config["task"], checkpoint.config["training"]
    kept = {key: trained[key] for row in config.sizes for key in row.training if key in trained}
    rows = tuple(row.model_copy(update={"training": kept}) for row in config.sizes)
    config = config.model_copy(update={"sizes": rows})
    if before["name"] == task.name:
        chosen = (*FOR_MANY_MATERIALS, *(FOR_CRYSTALS if isinstance(task, DeNSConfig) else ()))
        kept = {name: before[name] for name in chosen if name in before and name not in task.model_fields_set}
        config = config.model_copy(update={"task": task.model_copy(update=kept)})
    candidates = [_fitted(candidate, data) for candidate in _by_row(config, data)]
    for fitted, said in candidates:
        if fitted.model.model_dump(mode="json") == fitted.completed(checkpoint.config)["model"]:
            return fitted, said
    return candidates[-1]


def _warming_as_begun(config: RunConfig, checkpoint: Checkpoint) -> RunConfig:
    """The run with the warm-up that it began with, where a share is given and a budget has lengthened it since."""
    given, begun = config.training.warmup, checkpoint.config["training"]["warmup"]
    if isinstance(given, str) or isinstance(begun, str) or not 0 < given < 1 <= begun:
        return config
    return config.model_copy(update={"training": config.training.model_copy(update={"warmup": begun})})


def _of_the_same_length(config: RunConfig, said: list[str], checkpoint: Checkpoint) -> tuple[RunConfig, list[str]]:
    before = checkpoint.config["training"]
    known = {name: before[name] for name in ("epochs", "max_steps")}
    asked = f"training.budget={config.training.budget} is not used when a training continues"
    kept = ", ".join(f"training.{name}={value}" for name, value in known.items() if value is not None)
    return lasting(config, known), [*said, f"{asked}: it keeps {kept}, and training.max_steps=N lengthens it"]


def _sized(config: RunConfig, data: LoadedData, group: Processes, say: Say) -> tuple[RunConfig, Cost, list[str]]:
    """The run with the settings that its data decide, and its cost; with a budget, the largest that has time for it.

    The smallest model is tried first, and a larger one only where even its own steps could be enough.
    """
    budget, candidates = config.training.budget, _by_row(config, data)
    if budget is None:
        candidates = candidates[-1:]
    fitted, said = _fitted(candidates[0], data)
    cost = _trial(fitted, data, group, say)
    for candidate in candidates[1:]:
        larger, larger_said = _fitted(candidate, data)
        wanted = candidate.sizes[0].min_steps or 0
        if (larger.model, larger.training) == (fitted.model, fitted.training):  # all that the row has was given
            continue
        steps, fewer = cost.steps_within(config.training), "fewer than "
        if steps >= wanted:
            larger_cost = _trial(larger, data, group, say)
            larger_cost = replace(larger_cost, trial=larger_cost.trial + cost.trial)
            cost = replace(cost, trial=larger_cost.trial)
            steps, fewer = larger_cost.steps_within(config.training), ""
        if steps < wanted:
            too_short = (
                f"training.budget={budget} has time for {fewer}{steps} steps of the model meant for {len(data.train)} "
                f"structures, which wants {wanted}; a smaller one is taken"
            )
            return fitted, cost, [too_short, *said]
        fitted, said, cost = larger, larger_said, larger_cost
    return fitted, cost, said


def _by_row(config: RunConfig, data: LoadedData) -> list[RunConfig]:
    """The run with one row of ``sizes`` each that may be taken, smallest model first; as it is without ``sizes``."""
    rows = reversed(rows_for(config.sizes, len(data.train)))
    return [config.model_copy(update={"sizes": (row,)}) for row in rows] or [config]


def _fitted(config: RunConfig, data: LoadedData) -> tuple[RunConfig, list[str]]:
    """The run with the settings that its data decide; and messages for the log."""
    config, sized = fit_model_to_data(config, data)
    config, weighed = fit_loss_to_energies(config, data.train)
    config, published = fit_dens_to_crystals(config, data.train)
    by_data = isinstance(config.task, DenoisingConfig) and not isinstance(config.task.sigma, float)
    replays = by_data and config.training.replay is not None  # noise is added to the old structures, too
    denoised = joined([data.train, old_structures(config)[0]]) if replays else data.train
    config, measured = fit_sigma_to_data(config, denoised)
    return config, sized + weighed + published + measured


def _trial(config: RunConfig, data: LoadedData, group: Processes, say: Say) -> Cost:
    """Time a few steps and the evaluation of a few structures, by a model that is thrown away."""
    begin = time.perf_counter()
    trainer = Trainer(lasting(config, {"max_steps": 1000, "warmup": 0, "warmup_lr": None}), data, group)
    limit = trial_seconds(config.training)
    works = trainer.loader.prefetch(0, TRIAL_STEPS, config.training.prefetch)
    start = time.process_time()  # of nothing else where the process is the trial's, as in studies
    numbers = sum(parameter.numel() for parameter in trainer.force_field.parameters())
    say(
        f"timing a few steps of {config.model.name} with {numbers:,} parameters on "
        f"{counted(len(data.train), 'structure')}: up to {limit:.0f} seconds, longer where a step takes seconds"
    )

    def mean(*seconds: float) -> list[float]:
        """Means over the processes, so that all do the same."""
        return (group.add(torch.tensor(seconds, dtype=torch.float64, device=group.device)) / group.count).tolist()

    with threads_for(trainer.loader.edges, group.device), told_of_compilation(lambda: say(COMPILES)):
        step = time_steps(trainer.train_step, works, limit=limit, agreed=lambda seconds: mean(seconds)[0])
        [step] = mean(step)
        judged = int(limit / 2 * config.training.batch_size / step)  # takes about a quarter of the limit each time
        sample = evenly(data.valid or data.train, max(1, min(judged, _JUDGED)))
        measure(trainer.force_field, sample, batch_size=_JUDGED, processes=group)  # compiles kernels
        mark = time.perf_counter()
        measure(trainer.force_field, sample, batch_size=config.training.evaluate_batch_size, processes=group)
        structure = (time.perf_counter() - mark) / len(sample)
    structure, spent = mean(structure, time.perf_counter() - begin)
    valid, test = (0 if source is None else len(source) for source in (data.valid, data.test))
    held = trainer.mixture.held_out
    cost = Cost(
        step=step, structure=structure, train=trainer.mixture.epoch_size, valid=valid, test=test,
        replayed=0 if held is None else len(held), trial=spent, start=start,
    )  # fmt: skip
    del trainer, works
    gc.collect()  # model and optimizer are in reference cycles, and would stay in memory beside those of the training
    return cost
