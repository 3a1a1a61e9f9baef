"""Started by torchrun from ``test_distributed.py``: some steps by hand, what came out into a file, then a whole run."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from denskit.data import load_data
from denskit.runtime.processes import Processes, join_processes
from denskit.training.load_config import RunConfig, load_config
from denskit.training.run import train
from denskit.training.trainer import Trainer


def steps(config: RunConfig, group: Processes, count: int) -> dict[str, torch.Tensor]:
    """Gradients [P] of the first step and the sums and counts of the loss terms [count, 2, terms] of each step."""
    trainer = Trainer(config, load_data(config.data, config.seed), group)
    terms, gradients = [], torch.empty(0)
    for step in range(count):
        work = trainer.loader.work(step)
        trainer.totals = trainer._new_totals()
        trainer.train_step(work)
        terms.append(trainer.totals.terms)
        if step == 0:
            gradients = trainer.gradients.flat.clone()
    return {"gradients": gradients, "terms": torch.stack(terms)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    file, output, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    config = load_config(file, [*sys.argv[4:], f"output={output / 'run'}", "device=cpu"])
    group = join_processes("cpu")
    torch.save(steps(config, group, count), output / f"rank{group.rank}.pt")
    train(config)
