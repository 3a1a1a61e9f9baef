"""Learning rate and progress as pure functions of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from denskit.training.settings import Interval, TrainingConfig, parse_interval, rate_of


def steps_between(interval: Interval, steps_per_epoch: int) -> float:
    """Steps from one event with this interval to the next: at least one."""
    assert interval.unit in ("step", "epoch"), interval
    every = interval.number * (steps_per_epoch if interval.unit == "epoch" else 1)
    return max(1.0, round(every, 9))  # 1.1 epochs of 50 steps are 55 steps


@dataclass(frozen=True)
class Schedule:
    """Learning rate and progress of a training whose epochs have ``steps_per_epoch`` steps.

    ``schedule_unit="epoch"`` (published for MD17): both are constant over an epoch; the first runs at the rate where
    the warm-up starts, the last a little above the floor.  "step" (OC20, OC22): both change at every step.
    """

    config: TrainingConfig
    steps_per_epoch: int

    def __post_init__(self) -> None:
        if self.warmup >= self.length:
            raise ValueError(
                f"training.warmup={self.config.warmup} does not fit into a training of {self.length:g} "
                f"{self.config.schedule_unit}s; shorten the warm-up (below 1 it is a share of the training) or train "
                "longer"
            )

    @property
    def total_steps(self) -> int:
        """Steps of the whole training: the shorter of ``max_steps`` and ``epochs``."""
        lengths = [self.config.max_steps]
        if self.config.epochs is not None:
            lengths.append(self.config.epochs * self.steps_per_epoch)
        return min(steps for steps in lengths if steps is not None)

    @property
    def length(self) -> float:
        """Length of the training in schedule units."""
        per_unit = self.steps_per_epoch if self.config.schedule_unit == "epoch" else 1
        return self.total_steps / per_unit

    @property
    def warmup(self) -> float:
        """Length of the warm-up in schedule units."""
        warmup = self.config.warmup
        if isinstance(warmup, str):
            return self._units(parse_interval(warmup))
        return warmup if warmup >= 1 else warmup * self.length

    @property
    def warms_for_a_share(self) -> bool:
        """Whether the warm-up is a share of the training, and so of another length in a longer one."""
        return not isinstance(self.config.warmup, str) and 0 < self.config.warmup < 1

    def is_warm(self, step: int) -> bool:
        """Whether the warm-up is over before a step (from 0)."""
        return self._time(step) >= self.warmup

    def epoch(self, step: int) -> int:
        """The epoch (from 0) that a step (from 0) belongs to."""
        return step // self.steps_per_epoch

    def progress(self, step: int) -> float:
        """The share of the training that is over at the start of a step (of its epoch), in [0, 1]."""
        return self._time(step) / self.length

    def learning_rate(self, step: int) -> float:
        """Linear from warmup_lr to lr, then by ``schedule``:

        cosine: min_lr + (lr - min_lr) (1 + cos(pi t / T)) / 2, t the time since the start of the training (so there is
        a small drop at the end of the warm-up, as published) and T the whole length; multistep: lr gamma^n after n
        milestones; constant: lr.
        """
        config, time = self.config, self._time(step)
        floor = rate_of(config.min_lr, config.lr)
        if time < self.warmup:
            start = floor if config.warmup_lr is None else rate_of(config.warmup_lr, config.lr)
            return start + (config.lr - start) * time / self.warmup
        if config.schedule == "cosine":
            return floor + (config.lr - floor) * (1 + math.cos(math.pi * time / self.length)) / 2
        passed = sum(time >= self._units(parse_interval(milestone)) for milestone in config.milestones)
        return config.lr * config.gamma**passed

    @property
    def unreached(self) -> list[str]:
        """Milestones that come after the last step."""
        last = self._time(self.total_steps - 1)
        return [milestone for milestone in self.config.milestones if self._units(parse_interval(milestone)) > last]

    def _units(self, interval: Interval) -> float:
        """An interval in schedule units; whole steps where these are the unit, rounded down as published."""
        epochs = interval.number if interval.unit == "epoch" else interval.number / self.steps_per_epoch
        # 1e-9: 0.3 epochs of 10 steps are 3 steps
        return epochs if self.config.schedule_unit == "epoch" else math.floor(epochs * self.steps_per_epoch + 1e-9)

    def _time(self, step: int) -> float:
        return float(self.epoch(step) if self.config.schedule_unit == "epoch" else step)

    def is_due(self, interval: Interval, step: int) -> bool:
        """Whether an event with this interval is due after ``step`` steps."""
        every = steps_between(interval, self.steps_per_epoch)
        return math.floor(step / every) > math.floor((step - 1) / every)

    def validations(self, after: int = 0) -> int:
        """Validations that come after so many steps; there is one at the end."""
        every = steps_between(parse_interval(self.config.evaluate_every), self.steps_per_epoch)
        return math.ceil(self.total_steps / every) - math.floor(after / every)
