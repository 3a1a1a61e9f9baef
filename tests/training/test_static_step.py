"""Steps in fixed shapes: the same training as the eager loop, whatever the sizes of the structures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from denskit.data import load_data
from denskit.training.config import RunConfig
from denskit.training.distributed import join_processes
from denskit.training.trainer import Trainer, train
from training.test_trainer import _assert_same_state, _rows, _stop_after

Tiny = Callable[..., RunConfig]
STEPS = 6
DOUBLE = ("training.dtype=float64", "training.step=traced")
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero"}

RUNS = {
    "plain": (),
    "everything": ("training.clip_norm=0.5", "training.ema_decay=0.9", "task.sigma_end=0.1", "training.warmup=2"),
    "accumulation": ("training.accumulate=2", "training.clip_norm=0.5"),
    "last batch": ("training.drop_last=false", "data.split.train=18", "training.amsgrad=true"),
    "direct forces": ("model.forces=direct", "task.loss=paper", "task.energy_loss=mae_per_atom"),
    "no denoising": ("task=energy_forces", "model.envelope=true"),
}


def _trainer(config: RunConfig) -> Trainer:
    return Trainer(config, load_data(config.data, config.seed), join_processes("cpu"))


def _trained(config: RunConfig, steps: int = STEPS) -> Trainer:
    trainer = _trainer(config)
    for step in range(steps):
        trainer.train_step(trainer.loader.work(step))
    trainer._catch_up()
    return trainer


def _assert_same_training(one: Trainer, other: Trainer, tolerance: float) -> None:
    """Weights, moments, averages and what was summed up for the log."""
    pairs = list(zip(one.force_field.parameters(), other.force_field.parameters(), strict=True))
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    for key, state in one.optimizer.state_dict()["state"].items():
        for name, value in state.items():
            torch.testing.assert_close(value, other.optimizer.state_dict()["state"][key][name], rtol=tolerance, atol=tolerance)
    if one.average is not None:
        torch.testing.assert_close(one.average.average, other.average.average, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(one.window.terms, other.window.terms, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(one.window.metrics.state, other.window.metrics.state, rtol=tolerance, atol=tolerance)
    assert one.window.steps == other.window.steps


@pytest.mark.parametrize("case", RUNS)
def test_static_steps_are_the_eager_ones(tiny: Tiny, case: str) -> None:
    settings = (*DOUBLE, "training.max_steps=8", *RUNS[case])
    eager, static = (_trained(tiny(*settings, f"training.step={mode}")) for mode in ("eager", "traced"))
    assert static.static is not None and eager.static is None
    start = torch.cat([p.detach().flatten() for p in _trainer(tiny(*settings)).force_field.parameters()])
    end = torch.cat([p.detach().flatten() for p in static.force_field.parameters()])
    assert float((start - end).abs().max()) > 1e-4
    _assert_same_training(eager, static, 1e-9)
