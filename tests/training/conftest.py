"""A run small enough for tests: one layer, few channels, frames that ship with Denskit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from denskit.training.load_config import RunConfig, load_config

TINY = Path(__file__).with_name("tiny.yaml")

DEGREE_2 = (  # features of the tiny model, for a task with a strain
    "model.channels=[8,8,8]", "model.feature_channels=[16,8,8]", "model.head_channels=[4,4,4]",
    "model.ffn_channels=[12,12,12]",
)  # fmt: skip


@pytest.fixture
def tiny_file(tmp_path: Path) -> Path:
    """The YAML file of a tiny run with DeNS: 20 structures, so 5 steps an epoch."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY.read_text())
    return path


@pytest.fixture
def tiny(tiny_file: Path, tmp_path: Path) -> Callable[..., RunConfig]:
    """A tiny configuration with overrides; its output is ``tmp_path / name``."""

    def make(*overrides: str, name: str = "run") -> RunConfig:
        return load_config(tiny_file, [f"output={tmp_path / name}", "device=cpu", *overrides])

    return make
