"""Trainings on structures that stay on disk, of which only a sample is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from data.published import new_object, pickled, s2ef, write_lmdb
from denskit.training import starting_model
from denskit.training.load_config import RunConfig
from denskit.training.run import train

RARE = 17  # record with xenon, outside the sample


def _large(tiny: Callable[..., RunConfig], path: Path, *overrides: str) -> RunConfig:
    """A run on records, of which a few are measured; its first epoch has 9 steps."""
    return tiny(
        f"data.path={path}", "data.split={mode: blocks, train: 36, valid: 2, test: 2}", "data.references=fit",
        "task=energy_forces", "model.forces=direct", "training.max_steps=9", "training.checkpoint_every=1", *overrides,
    )  # fmt: skip


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An LMDB file of 40 structures."""
    monkeypatch.setattr(starting_model, "SAMPLE", 14)
    monkeypatch.setattr("denskit.training.forecast.MEASURED", 14)
    monkeypatch.setattr("denskit.training.forecast.FEW", 10)
    return write_lmdb(tmp_path / "s2ef.lmdb", [_record(index) for index in range(40)], length=40)


def _record(index: int, **changes: Any) -> bytes:
    return pickled(new_object(s2ef(index, **changes)))


def test_what_is_measured_is_said_once_and_measured_once(
    tiny: Callable[..., RunConfig], records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resumed run has it in its checkpoint; settings with which it does not continue are told before a model."""
    told = "measuring scale and references on 14 of 36 training structures"
    run = train(_large(tiny, records, "training.max_steps=1"), progress=True)
    assert capsys.readouterr().out.count(told) == (run / "train.log").read_text().count(told) == 1
    before = torch.load(run / "checkpoints/last.pt", weights_only=True)["scaling"]
    assert before["elements"] == [1, 6, 8, 29]

    def measured(*args: object, **settings: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(starting_model, "fit_scaling", measured)
    train(_large(tiny, records, "training.max_steps=2"), resume=True)
    assert torch.load(run / "checkpoints/last.pt", weights_only=True)["scaling"] == before
    monkeypatch.setattr("denskit.training.trainer.initial_force_field", measured)
    with pytest.raises(ValueError, match=r"another run:\n +seed: 0 then, 1 now"):
        train(_large(tiny, records, "seed=1"), resume=True)
