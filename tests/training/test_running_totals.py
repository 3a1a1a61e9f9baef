"""Sums between rows of metrics.csv, as checkpoints keep them."""

from __future__ import annotations

import torch

from denskit.training.running_totals import RunningTotals


def test_checkpoints_with_fewer_sums_of_errors_are_read() -> None:
    totals = RunningTotals.empty(2, torch.device("cpu"))
    saved = {**totals.state(), "metrics": torch.arange(1.0, 23.0)}
    totals.load_state(saved)
    assert totals.metrics.state.tolist() == [*range(1, 23), 0, 0, 0]
