"""Learning rate and progress against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from denskit.training.schedule import Schedule
from denskit.training.settings import TrainingConfig, parse_interval


def _schedule(steps_per_epoch: int, **settings: Any) -> Schedule:
    return Schedule(TrainingConfig(**settings), steps_per_epoch)


def test_published_schedule_moves_once_an_epoch() -> None:
    """950 structures, batches of 8, 1500 epochs: 118 steps an epoch, warm-up of 10 epochs from 1e-6, floor 1e-6."""
    schedule = _schedule(118, epochs=1500, lr=5e-4, min_lr=1e-6, warmup=10, warmup_lr=1e-6, schedule_unit="epoch")
    assert schedule.total_steps == 177_000
    assert {schedule.learning_rate(step) for step in range(118)} == {1e-6}
    assert schedule.learning_rate(118) == pytest.approx(1e-6 + (5e-4 - 1e-6) / 10)
    # the cosine counts from epoch 0, so the warm-up ends a little below the peak
    ten = 1e-6 + (5e-4 - 1e-6) * (1 + math.cos(math.pi * 10 / 1500)) / 2
    assert schedule.learning_rate(10 * 118) == pytest.approx(ten)
    assert schedule.learning_rate(750 * 118) == pytest.approx((5e-4 + 1e-6) / 2)
    assert 1e-6 < schedule.learning_rate(177_000 - 1) < 1e-6 + 1e-9
    assert schedule.progress(117) == 0.0
    assert schedule.progress(118) == pytest.approx(1 / 1500)


def test_step_schedule_is_smooth_and_warmup_may_be_a_share() -> None:
    schedule = _schedule(7, max_steps=100, lr=1.0, min_lr=0.0, warmup=0.1)
    assert [schedule.learning_rate(step) for step in (0, 1, 9)] == pytest.approx([0.0, 0.1, 0.9])
    assert schedule.learning_rate(50) == pytest.approx(0.5)
    assert schedule.progress(25) == 0.25


def test_constant_learning_rate() -> None:
    schedule = _schedule(7, max_steps=100, lr=0.5, schedule="constant")
    assert {schedule.learning_rate(step) for step in range(100)} == {0.5}


def test_a_warmup_longer_than_the_training_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        _schedule(118, max_steps=500, warmup=10, schedule_unit="epoch")


@pytest.mark.parametrize(
    ("interval", "due"),
    [("3 steps", [3, 6, 9, 12]), ("1 epoch", [5, 10]), ("0.5 epochs", [3, 5, 8, 10])],
)
def test_what_is_due_when(interval: str, due: list[int]) -> None:
    schedule = _schedule(5, max_steps=12)
    assert [step for step in range(1, 13) if schedule.is_due(parse_interval(interval), step)] == due
