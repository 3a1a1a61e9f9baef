"""The one batch loop over a source."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from contract.variants import build
from denskit.batch import System
from denskit.models import prediction
from denskit.testing import batch_of


def test_large_structures_come_in_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "MOST_ATOMS", 10)
    systems = [list(range(size)) for size in (3, 3, 3, 3, 12, 2, 8, 1)]
    found = prediction.groups(systems, 3, len)
    assert [[len(system) for system in group] for group in found] == [[3, 3, 3], [3], [12], [2, 8], [1]]


def test_predictions_free_the_graph_as_they_go(monkeypatch: pytest.MonkeyPatch, systems: dict[str, System]) -> None:
    """Kept until the end, the graph takes 15 % more memory; only training and heads of a task need it."""
    force_field, kept = build("envelope", torch.float64), []
    derivative = torch.autograd.grad

    def spied(*given: Any, **options: Any) -> Any:
        kept.append(options.get("retain_graph"))
        return derivative(*given, **options)

    monkeypatch.setattr(torch.autograd, "grad", spied)
    batch = batch_of([systems["ethanol"]], force_field)
    force_field.predict(batch, ("energy", "forces"))
    assert kept == [None]
    force_field(batch, None, ("energy", "forces", "noise"))
    assert kept == [None, True]
