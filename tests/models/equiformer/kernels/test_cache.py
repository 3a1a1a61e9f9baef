"""Compiled kernels are kept, compiled again when any source changes, and never needed: on a copy of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import denskit

pytestmark = pytest.mark.one_thread
SOURCE = Path(denskit.__file__).parent
PROGRAM = """
import torch
from denskit.models.equiformer.kernels import functions, numba_gate
from denskit.models.equiformer.kernels.plan import gate_plan

logits = functions.gate(gate_plan(4, (), 2, 0), [torch.ones(1, 1, 6)])[1]
print(float(logits[0, 0]), "kept" if numba_gate._forward.stats.cache_hits else "compiled")
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, as a user installs it."""
    shutil.copytree(SOURCE, tmp_path / "denskit", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run(package: Path, program: str = PROGRAM, **variables: str) -> str:
    """What a program prints that uses this copy."""
    environment = {**os.environ, "PYTHONPATH": str(package), **variables}
    if "NUMBA_CACHE_DIR" not in variables:
        environment.pop("NUMBA_CACHE_DIR", None)
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=package)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_kept_until_a_source_changes(package: Path) -> None:
    assert run(package) == "1.0 compiled"
    assert run(package) == "1.0 kept"
    kept = list(package.rglob("*.nbc"))
    for path in kept:
        path.write_bytes(path.read_bytes()[:50])
    assert run(package) == "1.0 compiled"
    imported = package / "denskit/models/equiformer/kernels/numba_rows.py"
    text, old = imported.read_text(), "lanes.store(lanes.load(x, i), out, o)"
    assert text.count(old) == 1
    imported.write_text(text.replace(old, "lanes.store(lanes.all(7.0), out, o)"))
    assert run(package) == "7.0 compiled"
    assert kept and not any(path.exists() for path in kept)


def test_nothing_can_be_written(package: Path) -> None:
    """Read-only site-packages and no home.  Files in the place of folders stop root, too."""
    (package / "denskit/models/equiformer/kernels/__pycache__").write_text("")
    (package / "file").write_text("")
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA", "USERPROFILE"), str(package / "file" / "home"))
    assert run(package, **nowhere) == "1.0 compiled"
    home = nowhere | {"HOME": str(package / "home"), "XDG_CACHE_HOME": str(package / "home")}
    assert run(package, **home) == "1.0 compiled"
    assert list((package / "home").rglob("*.nbc"))


WITHOUT_NUMBA = """
import torch
from denskit.models.equiformer.kernels import choose_kernels
from denskit.training.load_config import load_config
from denskit.training.run import train

settings = ["training.max_steps=1", "training.batch_size=2", "data.split={train: 8, valid: 2}", "output=run"]
train(load_config("demo", settings))
try:
    choose_kernels("fused", torch.device("cpu"))
except ValueError as error:
    print(error)
"""


def test_without_numba_models_are_plain(package: Path) -> None:
    (package / "numba.py").write_text('raise ImportError("Numba needs NumPy 2.4 or less. Got NumPy 9.9.")')
    said = "numba cannot be imported (ImportError: Numba needs NumPy 2.4 or less. Got NumPy 9.9.)"
    refused = run(package, WITHOUT_NUMBA).splitlines()[-1]
    assert refused == f"kernels=fused: {said}; take kernels=auto, which then means plain PyTorch"
    log = (package / "run/train.log").read_text()
    assert log.count(f"edge operations in plain PyTorch, about half as fast: {said}") == 1


TWO_SIGNATURES = """
import sys
import torch
from denskit.models.equiformer.kernels import functions, reference
from denskit.models.equiformer.kernels.plan import gate_plan

x = torch.randn(5, 1, 6, dtype=getattr(torch, sys.argv[1]))
found, wanted = (module.gate(gate_plan(4, (), 2, 0), [x])[0][0] for module in (functions, reference))
torch.testing.assert_close(found, wanted)
"""


def test_processes_that_compile_at_once(package: Path) -> None:
    """Different signatures do not get into each other's files."""
    environment = {**os.environ, "PYTHONPATH": str(package), "NUMBA_CACHE_DIR": str(package / "cache")}
    for _ in range(2):
        running = [
            subprocess.Popen([sys.executable, "-c", TWO_SIGNATURES, dtype], env=environment, cwd=package)
            for dtype in ("float32", "float64")
        ]
        assert [process.wait() for process in running] == [0, 0]
    assert len(list(package.rglob("numba_gate._forward.*.nbc"))) == 2
