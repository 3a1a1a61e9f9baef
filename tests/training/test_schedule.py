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


OC20 = {"lr": 2e-4, "min_lr": "0.01 lr", "warmup": "0.1 epochs", "warmup_lr": "0.2 lr"}


def _published_cosine(step: int, *, warmup: int, total: int) -> float:
    """The published factor: step by step, the cosine not shifted by the warm-up (facebookresearch/fairchem)."""
    if step <= warmup:
        return 0.2 + 0.8 * step / warmup
    return 0.01 + 0.99 * (1 + math.cos(math.pi * step / total)) / 2


@pytest.mark.parametrize(("steps_per_epoch", "warmup"), [(31_250, 3125), (137, 13)])
def test_published_oc20_cosine(steps_per_epoch: int, warmup: int) -> None:
    """OC20-2M in batches of 64, 12 epochs; and an epoch whose tenth is no whole number, which is rounded down."""
    schedule = _schedule(steps_per_epoch, epochs=12, **OC20)
    total = 12 * steps_per_epoch
    assert schedule.warmup == warmup
    for step in [0, 1, warmup // 2, warmup - 1, warmup + 1, total // 3, total - 1]:
        expected = 2e-4 * _published_cosine(step, warmup=warmup, total=total)
        assert schedule.learning_rate(step) == pytest.approx(expected, rel=1e-12), step
    # at this one step the published code is still at the top, ours already on the cosine
    assert schedule.learning_rate(warmup) == pytest.approx(2e-4, rel=1e-3)
    assert schedule.learning_rate(0) == pytest.approx(4e-5)
    assert schedule.learning_rate(total - 1) == pytest.approx(2e-6, rel=1e-2)


def test_published_multistep() -> None:
    """Of eSCN with DeNS: 20 epochs, a factor of 0.3 after 11.7, 15 and 18.3 of them."""
    schedule = _schedule(
        1000, epochs=20, lr=8e-4, warmup="0.01 epochs", warmup_lr="0.2 lr", schedule="multistep",
        milestones=("11.7 epochs", "15 epochs", "18300 steps"), gamma=0.3,
    )  # fmt: skip
    assert schedule.learning_rate(0) == pytest.approx(1.6e-4)
    assert schedule.learning_rate(5) == pytest.approx(8e-4 * 0.6)
    for first, factor in ((10, 1), (11_700, 0.3), (15_000, 0.09), (18_300, 0.027)):
        assert schedule.learning_rate(first) == pytest.approx(8e-4 * factor)
        if first > 10:
            assert schedule.learning_rate(first - 1) == pytest.approx(8e-4 * factor / 0.3)


def test_a_bare_number_of_a_milestone_counts_steps() -> None:
    config = TrainingConfig(max_steps=10, schedule="multistep", milestones=(4,))  # type: ignore[arg-type]
    assert config.milestones == ("4 steps",)
    assert TrainingConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "multistep"}, "needs milestones"),
        ({"milestones": ("3 epochs",)}, "only that, needs"),
        ({"warmup": "5 minutes"}, "give steps or epochs"),
        ({"warmup": -1}, "not below 0"),
        ({"warmup": 1, "warmup_lr": "20 %"}, "write a number, or a share"),
        ({"min_lr": "2 lr"}, "above lr"),
        ({"min_lr": -1e-3}, "not below 0"),
    ],
)
def test_wrong_rates_and_lengths_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingConfig(max_steps=10, **settings)


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


def test_intervals_of_whole_steps_are_not_late_by_rounding() -> None:
    schedule = _schedule(50, max_steps=200)  # 1.1 * 50 is a little more than 55
    assert [step for step in range(1, 200) if schedule.is_due(parse_interval("1.1 epochs"), step)] == [55, 110, 165]
