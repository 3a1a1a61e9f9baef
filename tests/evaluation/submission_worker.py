"""Started by torchrun from ``test_submission.py``: judges and predicts five slabs on two processes."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conftest import _slab, _system
from denskit.evaluation.evaluate import evaluate_splits
from denskit.evaluation.submission import write_submission
from denskit.runtime.processes import join_processes
from training.slabs import slabs

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    group = join_processes("cpu")
    five = slabs(_system(_slab(), 4, tags=True), 5)
    results = evaluate_splits(folder / "model.safetensors", {"id": five}, processes=group, batch_size=2)
    write_submission(folder / "model.safetensors", five, folder / "two.npz", processes=group, batch_size=2)
    if group.is_first:
        torch.save(results, folder / "errors.pt")
