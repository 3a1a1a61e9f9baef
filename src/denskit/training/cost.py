"""Time and memory of a training, from a trial of a few steps; its length by a time budget, corrected while it runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from denskit.runtime.progress import counted
from denskit.training.loader import StepWork, steps_per_epoch
from denskit.training.schedule import Schedule, steps_between
from denskit.training.settings import LENGTHS, RunConfig, TrainingConfig, parse_budget, parse_interval

TRIAL_STEPS, _TRIAL_SECONDS = 30, 30.0  # of a trial: the first of the two ends it
_FEWEST, _FEWEST_SLOW = 4, 2  # steps of a trial; of one that takes twice its time
LONG_VALIDATIONS = 0.1  # of the time of a training: worth a word
_FEWEST_TRAINED = 10  # steps worth a training
_EVERY, _OFF = 0.1, 0.05  # of a time budget: between looks at the length, what it may be wrong by


@dataclass(frozen=True)
class Cost:
    """Times and memory measured in a trial, and the number of structures in each split."""

    step: float  # s of one training step
    structure: float  # s of the evaluation of one structure
    train: int  # of an epoch, replayed ones included
    valid: int
    test: int
    replayed: int = 0  # old structures judged at each validation
    trial: float = 0.0  # s that trials took, part of a time budget
    memory: float = 0.0  # MiB, the peak of one process (CUDA: of its device)
    start: float = 0.0  # s of processor time of the process of the trial before its first step

    def training_seconds(self, training: TrainingConfig, train: int | None = None) -> float:
        """Time of a training with its validations; ``train``: of another number of training structures."""
        return self.schedule(training, train).total_steps * self.step + self.validation_seconds(training, train)

    def validation_seconds(self, training: TrainingConfig, train: int | None = None) -> float:
        """Time of its validations."""
        return self.schedule(training, train).validations() * self._validation(training)

    def schedule(self, training: TrainingConfig, train: int | None = None) -> Schedule:
        """The steps of a training; ``train``: of another number of training structures."""
        structures = self.train if train is None else train
        return Schedule(training, steps_per_epoch(structures, training.batch_size, training.drop_last))

    def steps_of(self, training: TrainingConfig) -> int:
        """Steps that fit into ``training.budget`` beside trial and validations.  Raises ValueError below 10 steps."""
        steps = self.steps_within(training)
        if steps < _FEWEST_TRAINED:
            after = "the trial" if self.trial < 1 else f"a trial of {self.trial:.0f} s"
            raise ValueError(
                f"training.budget={training.budget} is enough for {counted(steps, 'step')} of {self.step:.2g} s "
                f"after {after}, and a validation of {self._validation(training):.2g} s; give more time, a smaller "
                "model or fewer validation structures"
            )
        return steps

    def steps_within(self, training: TrainingConfig) -> int:
        """As :meth:`steps_of`, however few."""
        assert training.budget is not None
        validation = self._validation(training)
        per_epoch = steps_per_epoch(self.train, training.batch_size, training.drop_last)
        step = self.step + validation / steps_between(parse_interval(training.evaluate_every), per_epoch)
        return max(0, int((_seconds_left(training.budget, self.trial) - validation) / step))

    def _validation(self, training: TrainingConfig) -> float:
        """Seconds of a validation."""
        judged = min(self.valid, training.evaluate_structures or self.valid) + self.replayed
        return judged * self.structure


def trial_seconds(training: TrainingConfig) -> float:
    """Seconds that the steps of a trial may take: a quarter of a short time budget."""
    return _TRIAL_SECONDS if training.budget is None else min(_TRIAL_SECONDS, parse_budget(training.budget) / 4)


def time_steps(
    step: Callable[[StepWork], object],
    works: Iterable[StepWork],
    *,
    limit: float,
    agreed: Callable[[float], float] = lambda seconds: seconds,
) -> float:
    """Seconds of a training step: the median without the first third, which compiles kernels.

    limit: s; the trial ends then, after at least 4 steps, or 2 that take twice as long.  ``agreed``: of the seconds so
    far on this process those that count on all, so that they take the same number of steps.
    """
    spent: list[float] = []
    start = mark = time.perf_counter()
    for work in works:
        step(work)
        now = time.perf_counter()
        spent.append(now - mark)
        passed = agreed(now - start)
        fewest = _FEWEST if passed < 2 * limit else _FEWEST_SLOW
        if len(spent) >= fewest and passed > limit:
            break
        mark = time.perf_counter()
    return statistics.median(spent[max(1, len(spent) // 3) :])


def lasting(config: RunConfig, length: dict[str, Any]) -> RunConfig:
    """The run with another length of its training, and perhaps of its warm-up."""
    training = config.training.model_dump() | dict.fromkeys(LENGTHS) | length
    return config.model_copy(update={"training": type(config.training).model_validate(training)})


class TimeBudget:
    """A time budget (``training.budget``) of which ``spent`` seconds were over before the first step."""

    def __init__(self, text: str, spent: float = 0.0) -> None:
        self.text = text
        self._left = _seconds_left(text, spent)
        self._looked = self._end = 0.0  # by time.monotonic
        self._step = 0  # where it was looked at last

    def begin(self) -> None:
        """The first step comes now."""
        self._looked = time.monotonic()
        self._end = self._looked + self._left

    def steps_that_fit(self, step: int, total: int) -> int:
        """Steps of the whole training that fit at the speed since the last look, after each tenth of the time.

        ``step``: steps done.  ``total``: steps planned, which stay where they are right within 5 %.
        """
        now = time.monotonic()
        if now - self._looked < _EVERY * self._left:
            return total
        seconds = (now - self._looked) / (step - self._step)  # a step
        self._looked, self._step = now, step
        if abs(now + seconds * (total - step) - self._end) < _OFF * self._left:
            return total
        return max(step + 1, step + int((self._end - now) / seconds))


def _seconds_left(budget: str, spent: float) -> float:
    """Seconds that ``spent`` ones leave of a time budget: at least half, however long a trial compiled kernels."""
    seconds = parse_budget(budget)
    return seconds - min(spent, seconds / 2)
