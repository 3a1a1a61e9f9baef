"""``--deterministic`` of every verb that evaluates a model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from typer.testing import CliRunner

from denskit.cli import app


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert not torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "no_such_run"],
        ["predict", "no_such_run", "no.extxyz", "-o", "out.extxyz"],
        ["relax", "no_such_run", "no.extxyz", "-o", "relaxed"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_it_acts_before_anything_is_computed(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 1
    assert not torch.are_deterministic_algorithms_enabled()
    assert CliRunner().invoke(app, [*arguments, "--deterministic"]).exit_code == 1
    assert torch.are_deterministic_algorithms_enabled()


def test_training_notes_it_in_the_configuration() -> None:
    arguments = ["train", "equiformer", "data.path=a.extxyz", "output=unused", "--dry-run"]
    assert "deterministic: false" in CliRunner().invoke(app, arguments).output
    assert "deterministic: true" in CliRunner().invoke(app, [*arguments, "deterministic=true"]).output
