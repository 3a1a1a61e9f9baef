"""The training loop."""

from __future__ import annotations

import contextlib
import math
import shlex
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from denskit.batch import Prepared, System
from denskit.data import LoadedData
from denskit.data.base import Source, evenly
from denskit.models.base import ForceField
from denskit.models.execution import Execution
from denskit.models.model_file import read_header, save_model
from denskit.random import fold
from denskit.runtime.compilation import told_of_compilation
from denskit.runtime.interrupt import Interrupt
from denskit.runtime.memory import memory_named, peak_memory
from denskit.runtime.processes import Processes
from denskit.runtime.progress import counted, duration
from denskit.tasks import build_task
from denskit.tasks.metrics import Metrics, measure
from denskit.training.batch_loss import batch_loss
from denskit.training.budget import TimeBudget, lasting
from denskit.training.checkpoint import MAY_CHANGE, Checkpoint, cannot_write, save_checkpoint
from denskit.training.checks import PlannedTraining, hint_after, learns_nothing, verdict_on
from denskit.training.loader import Loader, StepWork, steps_per_epoch
from denskit.training.optimizer import (
    Gradients,
    Precision,
    WeightAverage,
    build_optimizer,
    optimizer_state,
    set_learning_rate,
)
from denskit.training.recorded import RecordedBackward, may_record
from denskit.training.replay import with_replay
from denskit.training.run_folder import RunFolder, environment
from denskit.training.run_log import RunLog, errors_line, metrics_line
from denskit.training.running_totals import RunningTotals
from denskit.training.schedule import Schedule
from denskit.training.settings import RunConfig, parse_interval
from denskit.training.starting_model import (
    Saved,
    check_known_elements,
    check_measured,
    initial_force_field,
    warn_of_unknown_elements,
)

_DROPOUT = 0xD20  # tells the seeds of dropout from those of the order and the corruption
_SMALLER = (
    "lower training.batch_size, divide it with training.accumulate, or set training.activation_checkpointing=true or "
    "training.edge_chunk=4096; on one process of several, use more of them"
)
_MUCH = 0.2  # of the time: waiting for batches that is worth a note
_FEWER = "lower training.evaluate_batch_size"
COMPILES = "compiling the kernels in the first step, once on this machine: up to a minute"
BEST_BY = {"forces": "forces_mae_meV_per_A", "energy": "energy_mae_meV"}
# may differ when a run without a step left is resumed
_AT_THE_END = {"training.epochs", "training.max_steps", "training.final", "output", "device"}


class Asked(NamedTuple):
    """Requests of any process after a step; all processes follow them."""

    stop: bool  # a signal came
    save: bool


@dataclass
class Trainer:
    """A training: its parts and its state."""

    config: RunConfig
    data: LoadedData
    group: Processes
    step: int = 0  # steps done
    best: float | None = None  # smallest validation MAE (training.best_by)
    seconds: float = 0.0  # of training
    messages: list[str] = field(default_factory=list)
    continued: Mapping[str, Any] | None = None  # scaling in the checkpoint (may be empty): :meth:`resume` follows
    inputs: dict[str, str] = field(default_factory=dict)  # content of the training's files, by setting
    budget: TimeBudget | None = None  # which the number of steps is to fit

    def __post_init__(self) -> None:
        training, device = self.config.training, self.group.device
        if self.continued is None and training.best_by == "energy" and self.config.task.energy_weight == 0:
            raise ValueError(
                "task.energy_weight=0, but training.best_by=energy chooses the best weights by energies; set "
                "training.best_by=forces"
            )
        if self.data.valid is not None:
            require_label(training.best_by, evenly(self.data.valid, training.evaluate_structures))
        self.folder = RunFolder(Path(self.config.output))
        self.task = build_task(self.config.task)
        saved = None if self.continued is None else Saved(self.folder.last_model, self.continued)
        force_field, said = initial_force_field(self.config, self.data, self.task, device, saved)
        self.mixture, replayed = with_replay(self.config, self.data.train, force_field)
        self.messages += self.data.messages + said + replayed
        self.schedule = Schedule(
            training, steps_per_epoch(self.mixture.epoch_size, training.batch_size, training.drop_last)
        )
        if self.continued is None:  # else it was looked at when the run began
            check_known_elements(force_field, self.data, self.config.data.split)
            self.messages += warn_of_unknown_elements(force_field, self.data, self.config.data.split)
        self.force_field: ForceField = force_field.to(device)
        self.force_field.execution = Execution(
            kernels=training.kernels, edge_chunk=training.edge_chunk, recompute=training.activation_checkpointing
        )
        force_field.backbone.choose_kernels(force_field.execution, device)  # raises before anything is written
        problem = force_field.backbone.kernels_problem("cpu")
        if device.type == "cpu" and training.kernels == "auto" and problem is not None:
            self.messages.append(f"edge operations in plain PyTorch, about half as fast: {problem}")
        self.group.copy_from(0, [*force_field.parameters(), *force_field.buffers()])
        parameters = [parameter for parameter in force_field.parameters() if parameter.requires_grad]
        shared = training.shard and self.group.count > 1
        self.optimizer = build_optimizer(force_field, training, sharded=shared)
        self.gradients = Gradients(parameters, self.group)
        self.precision = Precision(training.amp, device, tf32=training.tf32)
        recorded = may_record(training, force_field, self.group)
        self.backward = RecordedBackward(self._backward, self.gradients, device) if recorded else self._backward
        decay = training.ema_decay
        shares = self.group if shared else None
        self.average = (
            None if decay is None else WeightAverage(parameters, decay, warmup=training.ema_warmup, shares=shares)
        )
        self.loader = Loader(
            mixture=self.mixture,
            task=self.task,
            schedule=self.schedule,
            seed=self.config.seed,
            batch_size=training.batch_size,
            accumulate=training.accumulate,
            dtype=getattr(torch, training.dtype),
            model=force_field.config,
            rank=self.group.rank,
            num_processes=self.group.count,
            threads=training.loader_threads,
        )
        self.interrupt = Interrupt(patient=self.group.count > 1)
        self.totals = self._new_totals()
        self.first = 0  # steps that an earlier process did
        self.failure = ""  # verdict on the last row, where the training failed
        self.slow_data = False  # it was said that steps wait for their batches
        self.stuck = False  # it was said that no forces are learned
        self.judged: tuple[int, dict[str, float]] = (0, {})  # step and errors of the last validation
        self.validation = 0.0  # s, of the last validation
        self.saved_at = time.monotonic()

    def resume(self, checkpoint: Checkpoint, changes: Mapping[str, tuple[Any, Any]]) -> None:
        """Take over the state of a checkpoint; ``changes`` of settings since, as (before, now)."""
        self.force_field.load_state_dict(checkpoint.weights)
        self.optimizer.load_state_dict(checkpoint.optimizer)
        if self.average is not None:
            assert checkpoint.average is not None
            self.average.load_state(checkpoint.average)
        self.precision.load_state(checkpoint.loss_scale)
        self.step, self.best, self.seconds = checkpoint.step, checkpoint.best, checkpoint.seconds
        self.totals.load_state(checkpoint.window)
        self.failure = checkpoint.failure
        self.judged = self.folder.last_judged(self.step)
        if later := self.folder.best_after(self.step):  # by the steps that are done again
            self.best = later[judged_by(self.config.training.best_by, later)]
        if "training.evaluate_structures" in changes:
            self.best = None  # it was an error of other structures
        if self.step > self.schedule.total_steps:
            raise ValueError(
                f"{self.folder.last} is at step {self.step}, but the training is to end at step "
                f"{self.schedule.total_steps}; ask for more (training.max_steps or training.epochs), or remove "
                f"{self.folder.path} to begin again. Nothing changed"
            )
        if self.step == self.schedule.total_steps:  # then the record would tell of another training
            idle = [key for key in changes if key in MAY_CHANGE - _AT_THE_END or key.startswith("data.references.")]
            if idle:
                listed = ", ".join(f"{key}={changes[key][1]} (it trained with {changes[key][0]})" for key in idle)
                raise ValueError(
                    f"{self.folder.path} has no step left after {self.step}, so this would have no effect: {listed}. "
                    "Train on with more steps (training.max_steps or training.epochs), or begin a new run with "
                    "another output. Nothing changed"
                )
        self.messages.append(f"resumed after step {self.step}")
        if self.best is not None and not (self.folder.model.is_file() or self.folder.best_model.is_file()):
            self.best = None
            self.messages.append(f"note: {self.folder.model} is gone; kept is the best model of the steps from here on")
        if checkpoint.num_processes != self.group.count:
            self.messages.append(
                f"processes: {checkpoint.num_processes} before, {self.group.count} now; dropout and rounding differ"
            )

    def run(self, log: RunLog) -> None:
        """All steps that are left, then the final evaluation and files."""
        self.first = self.step
        if self.budget is not None:
            self.budget.begin()
        if self.step == 0:
            self._save_state()  # a kill at any moment leaves a checkpoint
            if self.config.training.init_from is not None:
                self._begin_trained(log)
        elif self.config.training.final == "best" and self.best is not None and self.group.is_first:
            self.folder.take_best()  # before this session the run may have kept its last
        with self.interrupt, told_of_compilation(lambda: log.say(COMPILES)):
            while self.step < self.schedule.total_steps:
                self._run_as_planned(log)
        self._save()
        if self.failure:
            by = BEST_BY[self.config.training.best_by]
            best = "" if self.best is None else f"; the best validation had {by} {self.best:.4g}"
            raise ValueError(
                f"the training failed: after {counted(self.step, 'step')} {self.failure}. Models and checkpoints "
                f"are kept in {self.folder.path}{best}. Lower training.lr or training.clip_norm, and look at the data: "
                "denskit info FILE"
            )
        self._warn_of_no_gain(log)
        done = f"{counted(self.step, 'step')} in {duration(self.seconds)}"
        log.say(f"finished: {done} of training; model in {self.folder.model}")

    def _begin_trained(self, log: RunLog) -> None:
        """Keep the trained model, which may be gone when the run is resumed, and judge it: it may stay the best."""
        self._save_model(self.folder.last_model, {})
        if self.data.valid is not None and self.best is None:
            errors = {f"valid_{name}": value for name, value in self._validate().items()}
            log.row({"step": 0, "epoch": 0, "lr": self.schedule.learning_rate(0), **errors})
            log.say(f"before the first step: {errors_line(errors, 'valid')}")
            self._save_state()

    def _warn_of_no_gain(self, log: RunLog) -> None:
        """Say where no validation was better than that of the trained model before the first step."""
        errors, best_model = self.judged[1], self.folder.best_model
        if not (errors and best_model.is_file()) or read_header(best_model)["metadata"]["step"] != 0:
            return
        by = judged_by(self.config.training.best_by, errors)
        kept = "it is the model of this run" if self.config.training.final == "best" else f"it is in {best_model}"
        log.say(
            f"warning: no validation was better than that of training.init_from before the first step: {by} "
            f"{self.best:.4g}, after {counted(self.step, 'step')} {errors[by]:.4g}; {kept}. Lower training.lr="
            f"{self.config.training.lr:g}, or train longer"
        )

    def _run_as_planned(self, log: RunLog) -> None:
        """All steps that are left, or those before the training gets another length."""
        total, mark = self.schedule.total_steps, time.perf_counter()
        for work in self.loader.prefetch(self.step, total, self.config.training.prefetch):
            waited = time.perf_counter() - mark
            asked = self.train_step(work)
            spent = time.perf_counter() - mark
            self.totals.time(spent, waited, first=self.step == self.first + 1)
            self.seconds += spent
            self._after_step(log, asked)
            if self.schedule.total_steps != total:
                return
            mark = time.perf_counter()

    def train_step(self, work: StepWork) -> Asked:
        """One update of the weights; returns the requests of all processes.

        Loss terms are divided by their counts in the whole step before any backward pass, so that gradients merely add.
        """
        assert work.step == self.step, (work.step, self.step)
        device = self.group.device
        self._seed_dropout()
        set_learning_rate(self.optimizer, self.schedule.learning_rate(self.step))
        if not self.force_field.training:  # walking through all modules takes a millisecond
            self.force_field.train()
        self.gradients.zero()
        counts, weights = self.group.add(work.counts.to(device)), work.weights.to(device)
        errors = torch.cat([torch.zeros_like(counts), Metrics(device).state])
        for part in work.parts:
            check_measured(self.force_field, part.batch, self.data.train.name)
            self.gradients.complete = part is work.parts[-1]
            with memory_named(part.batch, _SMALLER), self.precision.products():
                errors += self.backward(part, counts, weights)
        self.gradients.add()
        self.precision.unscale(self.optimizer)
        asked = torch.tensor([self.interrupt.signal != 0, self._is_late()], dtype=torch.float64, device=device)
        totals = self.group.add(torch.cat([errors, asked]))
        sums, metrics = totals[: len(counts)], Metrics(state=totals[len(counts) : -2])
        clip_norm = self.config.training.clip_norm
        norm = self.gradients.clip(clip_norm)
        if self.precision.skips(norm):
            self.totals.skip()
        else:
            self._require_finite(sums, norm)
            self.optimizer.step()
            self.totals.add(torch.stack([sums, counts]), metrics, norm.double(), clip_norm)
        self.step += 1
        if self.average is not None:
            self.average.update(self.step)
        return Asked(*(totals[-2:] > 0).tolist())

    def _seed_dropout(self) -> None:
        """Make dropout a function of seed and step, so that a resumed run repeats it."""
        seed = fold(self.config.seed, _DROPOUT, self.step, self.group.rank)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes milliseconds for devices that are absent
        if self.group.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _backward(self, part: Prepared, counts: Tensor, weights: Tensor) -> Tensor:
        """Add the gradients of a micro-batch; its sums of the loss terms, then the state of its metrics."""
        found = batch_loss(
            self.force_field,
            self.task,
            part.to(self.group.device),
            counts=counts,
            progress=self.schedule.progress(self.step),
            autocast=self.precision.autocast(),
            weights=weights,
        )
        self.precision.backward(found.loss)
        return torch.cat([found.sums, found.metrics.state])

    def _require_finite(self, sums: Tensor, norm: Tensor) -> None:
        if bool(torch.isfinite(torch.cat([sums, norm[None].double()])).all()):
            return
        named = zip(self.loader.term_names, sums.tolist(), strict=True)
        last = self.folder.last
        raise ValueError(
            f"step {self.step}: the loss or its gradient is not finite (sums of the terms: "
            f"{', '.join(f'{name} {value:.4g}' for name, value in named)}; gradient norm {float(norm):.4g}).\n"
            f"The batch: {self.loader.describe(self.step)}.\n"
            f"The weights were not updated{f'; the last checkpoint is kept: {last}' if last.exists() else ''}. "
            "Look at these structures, lower training.lr or set training.clip_norm"
        )

    def _after_step(self, log: RunLog, asked: Asked) -> None:
        """Evaluate, log and save at their intervals; raise SystemExit after a signal."""
        training, step, total = self.config.training, self.step, self.schedule.total_steps
        log.advance(step)
        evaluate = step == total or self.schedule.is_due(parse_interval(training.evaluate_every), step)
        if evaluate or step % training.log_every == 0:
            self._log_row(log, evaluate)
        elif (passed := step - self.first) < training.log_every and passed.bit_count() == 1:
            # steps 1, 2, 4, 8, ...: it runs, and how fast
            log.say(metrics_line(self._row(self.totals), total, self._seconds_of_validations()))
        if asked.stop:
            self._save()
            self.group.wait()  # torchrun ends the others when one has left
            log.say(
                f"stopped after step {step} of {self.schedule.total_steps}; saved to {self.folder.last}. Continue with "
                f"the same command and --resume, or: denskit train {shlex.quote(str(self.folder.path))} --resume"
            )
            raise SystemExit(128 + (self.interrupt.signal or signal.SIGTERM))
        interval = parse_interval(training.checkpoint_every)
        due = asked.save if interval.unit == "minute" else self.schedule.is_due(interval, step)
        if step < total and due:
            self._save()

    def _is_late(self) -> bool:
        """Whether the first process finds that a checkpoint is due by the clock."""
        interval = parse_interval(self.config.training.checkpoint_every)
        late = interval.unit == "minute" and time.monotonic() - self.saved_at >= 60 * interval.number
        return self.group.is_first and late

    def _log_row(self, log: RunLog, evaluate: bool) -> None:
        """Write a row of metrics.csv, with validation errors where they are due."""
        totals, self.totals = self.totals, self._new_totals()
        row, begin = self._row(totals), time.monotonic()
        if evaluate and self.data.valid is not None:
            first, best_by = self.best is None, self.config.training.best_by
            errors = self._validate()
            row |= {f"valid_{name}": value for name, value in errors.items()}
            by = judged_by(best_by, errors)
            if first and by != BEST_BY[best_by]:
                log.say(f"note: all forces of the validation split are zero; best: the smallest {by}")
        if evaluate and self.mixture.held_out is not None:
            with self._averaged():
                row |= {f"replay_{name}": value for name, value in self._measure(self.mixture.held_out).items()}
        if evaluate:
            self.validation = time.monotonic() - begin
        log.row(row)
        log.say(metrics_line(row, self.schedule.total_steps, self._seconds_of_validations()))
        verdict = verdict_on(row, self.config) if self.schedule.is_warm(self.step - 1) else None
        if verdict is not None and (evaluate or self.data.valid is None):
            log.say(f"warning: {verdict.message}")
        self.failure = verdict.message if verdict is not None and verdict.failed else ""
        if not self.stuck and (nothing := learns_nothing(row, self.config)) is not None:
            self.stuck = True
            log.say(f"warning: {nothing}")
        planned = PlannedTraining(self.config, self.schedule, self.data.train)
        if self.step == self.schedule.total_steps and (found := hint_after(row, planned)) is not None:
            log.say(f"hint: {found}")
        if row.get("waiting_share", 0.0) > _MUCH and not self.slow_data:
            self.slow_data = True
            log.say(
                f"note: {row['waiting_share']:.0%} of the time is spent waiting for batches; training.loader_threads="
                f"{self.config.training.loader_threads + 1} makes them side by side where cores are free"
            )
        self._keep_to_budget(log)

    def _seconds_of_validations(self) -> float:
        """Time of the validations to come, as long as the last one; 0 before the first."""
        return self.schedule.validations(self.step) * self.validation

    def _keep_to_budget(self, log: RunLog) -> None:
        """Give the training another length where its time budget would not hold; all processes take the first's."""
        total, step = self.schedule.total_steps, self.step
        if self.budget is None or step == total or not self.schedule.is_warm(step):
            return
        fits = self.budget.steps_that_fit(step, total) if self.group.is_first else 0
        fits = int(self.group.add(torch.tensor(fits, dtype=torch.float64, device=self.group.device)))
        if fits == total:
            return
        log.say(f"training.budget={self.budget.text}: {fits:,} instead of {total:,} steps, at the present speed")
        log.lasts(fits)
        self.config = lasting(self.config, {"max_steps": fits})
        self.schedule = replace(self.schedule, config=self.config.training)
        self.loader = replace(self.loader, schedule=self.schedule)
        self._save_state()  # before the settings in the folder: a run that continues has the length of its checkpoint
        if self.group.is_first:
            self.folder.write_start(self.config)

    def _row(self, totals: RunningTotals) -> dict[str, float | int]:
        """Numbers of a row of metrics.csv, without validation errors."""
        last = self.step - 1
        weights = self.loader.term_weights(self.schedule.progress(last))
        row: dict[str, float | int] = {
            "step": self.step,
            "epoch": self.schedule.epoch(last),
            "lr": self.schedule.learning_rate(last),
            **totals.summary(weights, self.config.training.batch_size),
            "seconds": self.seconds,
            "memory_MiB": peak_memory(self.group.device),
        }
        if self.config.training.amp == "fp16":
            row["skipped_steps"] = totals.skipped
        return row

    def _validate(self) -> dict[str, float]:
        """Errors on the validation split; the best weights so far become a model file."""
        assert self.data.valid is not None
        training = self.config.training
        valid = evenly(self.data.valid, training.evaluate_structures)
        with self._averaged():
            metrics = self._measure(valid)
            self.judged = self.step, metrics
            by = judged_by(training.best_by, metrics)
            if math.isfinite(metrics[by]) and (self.best is None or metrics[by] < self.best):
                self.best = metrics[by]
                self._save_model(self.folder.best_model, metrics)
                if training.final == "best":
                    self._save_model(self.folder.model, metrics)
        return metrics

    def _measure(self, source: Source) -> dict[str, float]:
        """Errors of the weights on the structures of a source."""
        batch_size = self.config.training.evaluate_batch_size
        return measure(self.force_field, source, batch_size=batch_size, processes=self.group, advice=_FEWER).summary()

    def _save(self) -> None:
        """The state to resume from, and the last weights as a model file; all processes take part."""
        self._save_state()
        step, errors = self.judged
        errors = errors if step == self.step else {}
        with self._averaged():
            self._save_model(self.folder.last_model, errors)
            if self.config.training.final == "last" or self.data.valid is None:
                self._save_model(self.folder.model, errors)

    def _save_state(self) -> None:
        optimizer = optimizer_state(self.optimizer)
        average = self.average.state() if self.average is not None else None
        self.saved_at = time.monotonic()
        if not self.group.is_first:
            return
        checkpoint = Checkpoint(
            step=self.step,
            weights=self.force_field.state_dict(),
            optimizer=optimizer,
            average=average,
            loss_scale=self.precision.state(),
            window=self.totals.state(),
            failure=self.failure,
            best=self.best,
            seconds=self.seconds,
            num_train=len(self.data.train),
            num_processes=self.group.count,
            config=self.config.document(),
            inputs=self.inputs,
            scaling=self.force_field.scaling.to_dict(),
        )
        save_checkpoint(self.folder.last, checkpoint)

    def _save_model(self, path: Path, metrics: dict[str, float]) -> None:
        """Write the weights as a model file, on the first process."""
        if not self.group.is_first:
            return
        if path == self.folder.model:
            self.folder.forget_results(self.step)
        splits = self.data.splits
        metadata = {
            "step": self.step,
            "validation": metrics,
            "data": self.data.train.name,
            "data_sha256": splits.sha256 if splits is not None else None,
            "contents": self.inputs,
            "run": self.config.document(),
            "new_elements": list(self.force_field.new_elements),
            "averaged_weights": self.average is not None,
            "packages": environment()["packages"],
            "commit": environment()["commit"],
        }
        try:
            save_model(path, self.force_field, metadata)
        except OSError as error:
            raise cannot_write(path, self.step, error) from error

    def _averaged(self) -> contextlib.AbstractContextManager[None]:
        return self.average.applied() if self.average is not None else contextlib.nullcontext()

    def _new_totals(self) -> RunningTotals:
        return RunningTotals.empty(len(self.loader.term_names), self.group.device)


def require_label(best_by: str, valid: Source) -> None:
    """Raise ValueError where no validation structure has the label, on free atoms, that decides on the best model."""

    def judges(system: System) -> bool:
        return getattr(system, best_by) is not None and (best_by != "forces" or not system.fixed.all())

    if not any(judges(system) for system in valid):
        label = "forces on free atoms" if best_by == "forces" else "label for it"
        raise ValueError(
            f"training.best_by={best_by}, but {valid.name} has no {label}; choose the other of forces and energy"
        )


def judged_by(best_by: str, errors: Mapping[str, object]) -> str:
    """The error (of ``errors``) by which a model is the best: that of ``training.best_by``.

    That of the energy where all forces are zero and tell nothing.  Raises ValueError where there is none.
    """
    if BEST_BY[best_by] not in errors:  # the label is there, on fixed atoms alone
        raise ValueError(f"training.best_by={best_by}, but no free atom is judged by it; choose the other")
    tells_nothing = best_by == "forces" and "forces_mae_relative_to_zero" not in errors
    return BEST_BY["energy" if tells_nothing and BEST_BY["energy"] in errors else best_by]
