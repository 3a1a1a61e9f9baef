"""Two runs of one training, compared bit for bit."""

from __future__ import annotations

import csv
from pathlib import Path

import torch

from denskit.models.model_file import load_model
from denskit.training.checkpoint import load_checkpoint
from denskit.training.run_folder import RunFolder
from killing import leftovers

TIMINGS = {"step_ms", "samples_per_s", "waiting_share", "seconds", "memory_MiB"}


def rows_of(folder: Path) -> list[dict[str, str]]:
    """The rows of metrics.csv without what no two runs share."""
    with (folder / "metrics.csv").open(newline="") as stream:
        return [{key: value for key, value in row.items() if key not in TIMINGS} for row in csv.DictReader(stream)]


def assert_same_runs(one: Path, other: Path) -> None:
    """Rows, weights, optimizer, average and model files are the same, bit for bit."""
    assert rows_of(one) == rows_of(other)
    a, b = (load_checkpoint(RunFolder(folder).last) for folder in (one, other))
    assert (a.step, a.best) == (b.step, b.best)
    assert all(torch.equal(value, b.weights[name]) for name, value in a.weights.items())
    for key, state in a.optimizer["state"].items():
        assert all(torch.equal(value, b.optimizer["state"][key][name]) for name, value in state.items())
    assert all(torch.equal(x, y) for x, y in zip(a.average or [], b.average or [], strict=True))
    for name in ("best_model", "last_model", "model"):
        x, y = (load_model(getattr(RunFolder(folder), name)).state_dict() for folder in (one, other))
        assert all(torch.equal(value, y[key]) for key, value in x.items()), name
    assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in other.iterdir())
    assert not leftovers(other)
