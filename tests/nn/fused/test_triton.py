"""The Triton kernels in processes of their own: under Triton's interpreter anywhere, compiled where there is a GPU.

The cases are in triton_cases.py.  Triton reads TRITON_INTERPRET when it is first imported, and any other test may have
imported it in this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

CASES = Path(__file__).with_name("triton_cases.py")

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed (extra: test, on Linux)")


def run(operation: str, **variables: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TRITON_"))}
    command = [sys.executable, "-m", "pytest", str(CASES), "-q", "-k", f"test_{operation}", "-p", "no:cacheprovider"]
    finished = subprocess.run(
        command, env=environment | variables, cwd=CASES.parents[3], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert " passed" in finished.stdout and "skipped" not in finished.stdout, finished.stdout


@pytest.mark.parametrize("operation", ["couple", "gate", "aggregate"])
def test_interpreted(operation: str) -> None:
    run(operation, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("operation", ["couple", "gate", "aggregate"])
def test_on_a_gpu(operation: str) -> None:
    run(operation)
