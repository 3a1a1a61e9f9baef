"""The one batch loop over a source."""

from __future__ import annotations

import copy
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from contract.variants import build
from denskit.batch import System
from denskit.data.base import Subset
from denskit.data.structure_arrays import StructureArrays
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


def test_unknown_elements_are_named_before_the_work(systems: dict[str, System]) -> None:
    """Not when the loop comes to them, after hours; by their numbers in the file."""
    force_field = build("envelope", torch.float64)
    strange = replace(systems["water"], atomic_numbers=np.array([54, 1, 1]))
    frames = [replace(one, index=place) for place, one in enumerate([systems["ethanol"]] * 3 + [strange] * 2)]
    words = r"Xe in 2 of 4 structures, frames 3, 4 \(counted from 0\), which this model .*H C N O.*\. Leave these out"
    reported: list[int] = []
    source = Subset(StructureArrays.from_systems(frames, name="file"), np.arange(1, 5), "part")
    with pytest.raises(ValueError, match=words):
        list(prediction.predict_each(force_field, source, 1, lambda done, text, total: reported.append(done)))
    assert not reported


def test_predictions_far_from_the_origin_are_as_good(systems: dict[str, System]) -> None:
    """In float32, where positions of 100,000 Å are a hundredth of an Å apart."""
    force_field = build("envelope", torch.float32)
    for near in (systems["ethanol"], systems["copper"]):
        far = replace(near, positions=near.positions + 1e5)
        source = StructureArrays.from_systems([near, far], name="file")
        (_, here), (_, there) = prediction.predict_each(force_field, source, 2)
        assert there["energy"] == pytest.approx(here["energy"], abs=1e-4)
        np.testing.assert_allclose(there["forces"], here["forces"], atol=1e-4 * np.abs(here["forces"]).max())


def test_threads_that_predict_leave_a_model_in_training(systems: dict[str, System]) -> None:
    """The second begins while the first computes, and ends after it.  Copies have locks of their own."""
    model = build("envelope", torch.float64).train()
    batch = batch_of([systems["ethanol"]], model)
    forward, begun = model.forward, threading.Semaphore(0)

    def slow(*given: Any, **more: Any) -> dict[str, torch.Tensor]:
        begun.release()
        time.sleep(0.2)
        return forward(*given, **more)

    model.forward = slow  # type: ignore[method-assign]
    first, second = (threading.Thread(target=model.predict, args=(batch,)) for _ in range(2))
    first.start()
    begun.acquire()
    second.start()
    first.join()
    second.join()
    assert all(module.training for module in model.modules())
    del model.forward
    copied = copy.deepcopy(model)
    assert torch.equal(copied.predict(batch)["energy"], model.predict(batch)["energy"])
