"""The script of measurements on a GPU, on the CPU with the smallest sizes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tolerances import PATIENCE_S

pytestmark = pytest.mark.one_thread
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.sh"
OVER = 75  # the exit code of a slice that left something


@pytest.mark.skipif(shutil.which("timeout") is None, reason="needs GNU timeout")
def test_slices_go_on_until_all_is_measured(tmp_path: Path) -> None:
    surroundings = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def call(seconds: int) -> int:
        command = [SCRIPT, "--device", "cpu", "--tiny", "--slice", str(seconds), tmp_path]
        return subprocess.run(command, env=surroundings, timeout=PATIENCE_S, check=False).returncode

    assert call(0) == OVER
    assert json.loads((tmp_path / "gpu.json").read_text())["tests"] is None
    assert call(PATIENCE_S) == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert "passed" in found["tests"] and not found["failed"]
    assert set(found["records"]) == {"train", "dens"}
    assert found["md17"]["errors"]["test"]["forces_mae_meV_per_A"] > 0
    written = (tmp_path / "records" / "train.json").stat().st_mtime_ns
    assert call(PATIENCE_S) == 0
    assert (tmp_path / "records" / "train.json").stat().st_mtime_ns == written
