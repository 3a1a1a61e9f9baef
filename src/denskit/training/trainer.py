"""The training loop."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from denskit.data import LoadedData
from denskit.data.base import evenly
from denskit.models.base import ForceField
from denskit.models.execution import Execution
from denskit.runtime.children import is_child
from denskit.runtime.compilation import told_of_compilation
from denskit.runtime.interrupt import Interrupt
from denskit.runtime.memory import peak_memory
from denskit.runtime.processes import Processes
from denskit.runtime.progress import counted, duration
from denskit.tasks import build_task
from denskit.training.best_by import BEST_BY, require_label
from denskit.training.checkpoint import Checkpoint, may_change, save_checkpoint
from denskit.training.cost import TimeBudget, lasting
from denskit.training.hints import hint_after
from denskit.training.judged_models import JudgedModels
from denskit.training.loader import Loader, StepWork, steps_per_epoch
from denskit.training.optimizer import optimizer_state
from denskit.training.planned import PlannedTraining
from denskit.training.replay import with_replay
from denskit.training.run_folder import RunFolder, environment
from denskit.training.run_log import RunLog, errors_line, metrics_line
from denskit.training.running_totals import RunningTotals
from denskit.training.schedule import Schedule
from denskit.training.settings import RunConfig, parse_interval
from denskit.training.starting_model import (
    Saved,
    check_known_elements,
    initial_force_field,
    warn_of_unknown_elements,
)
from denskit.training.verdicts import learns_nothing, verdict_on
from denskit.training.weight_update import WeightUpdate

_MUCH = 0.2  # of the time: waiting for batches that is worth a note
COMPILES = "compiling the kernels in the first step, once on this machine: up to a minute"
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
    seconds: float = 0.0  # of training
    unjudged: bool = False  # the validation after this step is still to come
    messages: list[str] = field(default_factory=list)
    continued: Mapping[str, Any] | None = None  # scaling in the checkpoint: :meth:`resume` follows
    inputs: dict[str, str] = field(default_factory=dict)  # content of the training's files, by setting
    budget: TimeBudget | None = None  # which the number of steps is to fit

    def __post_init__(self) -> None:
        training, device = self.config.training, self.group.device
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
        self.update = WeightUpdate(self.config, self.force_field, self.task, self.group, self.data.train.name)
        self.models = JudgedModels(training, self.folder, self.update, self.data.valid, self._about_model)
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
        self.interrupt = Interrupt(patient=self.group.count > 1 or is_child())
        self.totals = self._new_totals()
        self.first = 0  # steps that an earlier process did
        self.failure = ""  # verdict on the last row, where the training failed
        self.slow_data = False  # it was said that steps wait for their batches
        self.stuck = False  # it was said that no forces are learned
        self.saved_at = time.monotonic()

    def resume(self, checkpoint: Checkpoint, changes: Mapping[str, tuple[Any, Any]]) -> None:
        """Take over the state of a checkpoint; ``changes`` of settings since, as (before, now)."""
        self.update.load(checkpoint)
        self.step, self.seconds, self.unjudged = checkpoint.step, checkpoint.seconds, checkpoint.unjudged
        self.totals.load_state(checkpoint.window)
        self.failure = checkpoint.failure
        about_best = self.models.resume(checkpoint, same_structures="training.evaluate_structures" not in changes)
        if self.step > self.schedule.total_steps:
            raise ValueError(
                f"{self.folder.last} is at step {self.step}, but the training is to end at step "
                f"{self.schedule.total_steps}; ask for more (training.max_steps or training.epochs), or remove "
                f"{self.folder.path} to begin again. Nothing changed"
            )
        if self.step == self.schedule.total_steps:  # then the record would tell of another training
            later = may_change(self.config) - _AT_THE_END
            idle = [key for key in changes if key in later or key.startswith("data.references.")]
            if idle:
                listed = ", ".join(f"{key}={changes[key][1]} (it trained with {changes[key][0]})" for key in idle)
                raise ValueError(
                    f"{self.folder.path} has no step left after {self.step}, so this would have no effect: {listed}. "
                    "Train on with more steps (training.max_steps or training.epochs), or begin a new run with "
                    "another output. Nothing changed"
                )
        self.messages += [f"resumed after step {self.step}", *about_best]
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
        else:
            self.models.restore_best()
        with self.interrupt, told_of_compilation(lambda: log.say(COMPILES)):
            if self.unjudged:
                self._log_due(log)
            while self.step < self.schedule.total_steps:
                self._run_as_planned(log)
            self._save()
        if self.failure:
            by = BEST_BY[self.config.training.best_by]
            best = "" if self.models.best is None else f"; the best validation had {by} {self.models.best:.4g}"
            raise ValueError(
                f"the training failed: after {counted(self.step, 'step')} {self.failure}. Models and checkpoints "
                f"are kept in {self.folder.path}{best}. Lower training.lr or training.clip_norm, and look at the data: "
                "denskit info FILE"
            )
        if (warning := self.models.warning_of_no_gain(self.step)) is not None:
            log.say(warning)
        done = f"{counted(self.step, 'step')} in {duration(self.seconds)}"
        log.say(f"finished: {done} of training; model in {self.folder.model}")
        if self.interrupt.signal:  # during the last validation: what comes after the training is not to run
            raise SystemExit(128 + self.interrupt.signal)

    def _begin_trained(self, log: RunLog) -> None:
        """Keep the trained model, and judge it: it may stay the best, unless heads are random."""
        self.models.begin_trained()
        if self.data.valid is not None and self.models.best is None:
            fresh = self.update.force_field.fresh_outputs
            errors = self.models.validate(self.step, may_be_best=not fresh)
            row = {f"valid_{name}": value for name, value in errors.items()}
            log.row({"step": 0, "epoch": 0, "lr": self.schedule.learning_rate(0), **row})
            log.say(f"before the first step: {errors_line(row, 'valid')}")
            if fresh:
                log.say(f"note: heads of {', '.join(fresh)} begin at random, so this model is not kept as the best")
            if (note := self.models.note_of_measure()) is not None:
                log.say(note)
            self._save_state()

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
        """One update of the weights; returns the requests of all processes."""
        assert work.step == self.step, (work.step, self.step)
        progress, update = self.schedule.progress(self.step), self.update
        found = update.find_gradients(work, progress=progress, ask=self._requests)
        if update.precision.skips(found.norm):
            self.totals.skip()
        else:
            self._require_finite(found.sums, found.norm)
            update.apply(self.schedule.learning_rate(self.step))
            terms = torch.stack([found.sums, found.counts])
            self.totals.add(terms, found.metrics, found.norm.double(), self.config.training.clip_norm)
        self.step += 1
        if update.average is not None:
            update.average.update(self.step)
        return Asked(*found.asked)

    def _requests(self) -> list[bool]:
        """What this process asks for in the present step, as :class:`Asked`."""
        return [self.interrupt.signal != 0, self._is_late()]

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
        # a batch system may give seconds, less than a validation takes, which is then the first work after a resume
        judges = self.data.valid is not None or self.mixture.held_out is not None
        self.unjudged = asked.stop and judges and self._evaluates()
        if not self.unjudged:
            self._log_due(log)
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

    def _evaluates(self) -> bool:
        """Whether a validation is due after the steps done."""
        due = self.schedule.is_due(parse_interval(self.config.training.evaluate_every), self.step)
        return due or self.step == self.schedule.total_steps

    def _log_due(self, log: RunLog) -> None:
        """The row that is due after the steps done, if one is."""
        training, step = self.config.training, self.step
        self.unjudged = False
        if (evaluate := self._evaluates()) or step % training.log_every == 0:
            self._log_row(log, evaluate)
        elif (passed := step - self.first) < training.log_every and passed.bit_count() == 1:
            # steps 1, 2, 4, 8, ...: it runs, and how fast
            log.say(metrics_line(self._row(self.totals), self.schedule.total_steps, self._seconds_of_validations()))

    def _is_late(self) -> bool:
        """Whether the first process finds that a checkpoint is due by the clock."""
        interval = parse_interval(self.config.training.checkpoint_every)
        late = interval.unit == "minute" and time.monotonic() - self.saved_at >= 60 * interval.number
        return self.group.is_first and late

    def _log_row(self, log: RunLog, evaluate: bool) -> None:
        """Write a row of metrics.csv, with validation errors where they are due."""
        totals, self.totals = self.totals, self._new_totals()
        row = self._row(totals)
        if evaluate:
            first = self.models.best is None
            row |= self.models.columns(self.step, self.mixture.held_out)
            if first and (note := self.models.note_of_measure()) is not None:
                log.say(note)
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
        return self.schedule.validations(self.step) * self.models.seconds

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
        length: dict[str, Any] = {"max_steps": fits}
        if self.schedule.warms_for_a_share:  # the warm-up is over, and is not to begin again
            length["warmup"] = max(1.0, self.schedule.warmup)  # one step or epoch, where it was a part of it
        self.config = lasting(self.config, length)
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

    def _save(self) -> None:
        """The state to resume from, and the last weights as a model file; all processes take part."""
        self._save_state()
        self.models.save_last(self.step)

    def _save_state(self) -> None:
        optimizer = optimizer_state(self.update.optimizer)
        average = self.update.average.state() if self.update.average is not None else None
        self.saved_at = time.monotonic()
        if not self.group.is_first:
            return
        checkpoint = Checkpoint(
            step=self.step,
            weights=self.force_field.state_dict(),
            optimizer=optimizer,
            average=average,
            loss_scale=self.update.precision.state(),
            window=self.totals.state(),
            failure=self.failure,
            unjudged=self.unjudged,
            best=self.models.best,
            seconds=self.seconds,
            num_train=len(self.data.train),
            num_processes=self.group.count,
            config=self.config.document(),
            inputs=self.inputs,
            scaling=self.force_field.scaling.to_dict(),
        )
        save_checkpoint(self.folder.last, checkpoint)

    def _about_model(self) -> dict[str, Any]:
        """Metadata of a model file that is written now."""
        splits, here = self.data.splits, environment()
        return {
            "step": self.step,
            "data": self.data.train.name,
            "data_sha256": splits.sha256 if splits is not None else None,
            "contents": self.inputs,
            "run": self.config.document(),
            "new_elements": list(self.force_field.new_elements),
            "averaged_weights": self.update.average is not None,
            "packages": here["packages"],
            "commit": here["commit"],
        }

    def _new_totals(self) -> RunningTotals:
        return RunningTotals.empty(len(self.loader.term_names), self.group.device)
