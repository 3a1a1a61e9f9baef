"""The example of active learning runs: one short round."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ase.io
import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "active_learning.py"


def test_one_round(tmp_path: Path) -> None:
    """Untrained models; each arm has labels of its own afterwards."""
    pytest.importorskip("tblite", reason="the xtb extra is not installed")
    command = [sys.executable, str(EXAMPLE), "--output", "run", "--rounds", "1", "--steps", "2", "--md-steps", "40"]
    done = subprocess.run([*command, "--processes", "1"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    history = json.loads((tmp_path / "run" / "errors.json").read_text())
    before, after = history["random"]
    assert before == history["chosen"][0] and before["labels"] == 20 < after["labels"]
    assert (tmp_path / "run" / "errors.png").stat().st_size > 1000
    frames = ase.io.read(tmp_path / "run" / "round_1" / "train_chosen.extxyz", index=":")
    assert len(frames) == history["chosen"][1]["labels"]
