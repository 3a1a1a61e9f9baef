"""Started by torchrun from ``test_distributed.py``: some steps by hand, what came out into a file, then a whole run.

With KILL=STEP in the environment the last process kills itself at that step of the run, in the first attempt of
torchrun; with KILL_NODE=STEP each process that has it does, after its torchrun.  The time is left in a file.
With FITS=STEPS so many fit into the time budget, by the clock of the first process alone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

from denskit.data import load_data
from denskit.runtime.processes import Processes, join_processes
from denskit.training import optimizer
from denskit.training.cost import TimeBudget
from denskit.training.load_config import RunConfig, load_config
from denskit.training.loader import StepWork
from denskit.training.run import train
from denskit.training.trainer import Asked, Trainer


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
            gradients = trainer.update.gradients.flat.clone()
    state = (
        trainer.update.optimizer
        if isinstance(trainer.update.optimizer, torch.optim.AdamW)
        else trainer.update.optimizer.optim
    )
    held = sum(value.numel() for moments in state.state.values() for value in moments.values() if value.ndim)
    average = sum(value.numel() for value in trainer.update.average.average)
    return {"gradients": gradients, "terms": torch.stack(terms), "held": torch.tensor([held, average])}


def killed_at(step: int, killed: Path, *, with_torchrun: bool) -> None:
    """Let the last process, or with its torchrun any, kill itself before a step."""
    original = Trainer.train_step

    def step_or_die(self: Trainer, work: StepWork) -> Asked:
        if work.step == step and (with_torchrun or self.group.rank == self.group.count - 1):
            killed.write_text(str(time.time()), encoding="utf-8")
            if with_torchrun:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, work)

    Trainer.train_step = step_or_die


if __name__ == "__main__":
    torch.set_num_threads(1)
    file, output, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    config = load_config(file, [*sys.argv[4:], f"output={output / 'run'}", "device=cpu"])
    optimizer._CHUNK = 2000  # so that there are several
    group = join_processes("cpu")
    if count:
        torch.save(steps(config, group, count), output / f"rank{group.rank}.pt")
    for name in {"KILL", "KILL_NODE"} & os.environ.keys():
        if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            killed_at(int(os.environ[name]), output / "killed", with_torchrun=name == "KILL_NODE")
    if "FITS" in os.environ:
        TimeBudget.steps_that_fit = lambda self, step, total: int(os.environ["FITS"]) if group.rank == 0 else 1 / 0
    train(config, resume=True)
