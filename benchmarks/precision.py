"""How much forces and gradients of a trained model change in less precision.

    python benchmarks/precision.py [--steps 200] [--json FILE] [SETTING=VALUE ...]

Trains the demo's model on ethanol in float32, once with forces by gradient and once with a head, and takes both in
float64 as the reference.  TF32 is imitated where there is no such GPU: the numbers that enter matrix products are
rounded to 10 bits, and their sums stay in float32.  bfloat16 is PyTorch's autocast.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from denskit.batch import Prepared
from denskit.data import load_data
from denskit.data.base import collate
from denskit.models.base import ForceField
from denskit.random import keys_for
from denskit.runtime.processes import join_processes
from denskit.training.batch_loss import batch_loss, counts_of, terms_without
from denskit.training.load_config import load_config
from denskit.training.trainer import Trainer


class TF32(TorchDispatchMode):
    """Rounds what enters matrix products to 10 bits."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do the operation."""
        if func._schema.name in ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"):
            first = len(args) - 2
            args = (*args[:first], *(self.rounded(factor) for factor in args[first:]))
        return func(*args, **(kwargs or {}))

    @staticmethod
    def rounded(x: Tensor) -> Tensor:
        """float32, to the nearest number of 10 bits after the point."""
        return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


STRUCTURES = 32


def trained(forces: str, steps: int, settings: list[str]) -> Trainer:
    """A training after its last step."""
    given = [
        "data.molecule=ethanol",
        f"model.forces={forces}",
        "device=cpu",
        f"training.max_steps={steps}",
        "task=dens",
    ]
    config = load_config("demo", ["device=cpu", *given, f"output={tempfile.gettempdir()}/unused", *settings])
    trainer = Trainer(config, load_data(config.data, config.seed), join_processes("cpu"))
    for step in range(steps):
        trainer.train_step(trainer.loader.work(step))
    return trainer


def validation_part(trainer: Trainer) -> Prepared:
    """Structures of the validation split, corrupted as in training, in float64."""
    valid = trainer.data.valid
    assert valid is not None
    batch, targets = collate([valid[index] for index in range(STRUCTURES)], torch.float64)
    prepared = trainer.task.prepare(batch, targets, keys_for(0, 0, list(range(STRUCTURES))), 0.0)
    return replace(prepared, batch=trainer.force_field.config.with_neighbors(prepared.batch))


def results(trainer: Trainer, model: ForceField, part: Prepared, how: AbstractContextManager) -> dict[str, Tensor]:
    """Forces (eV/Å) as in evaluation, and the gradient of the loss as in training."""
    model.zero_grad()
    counts = counts_of(terms_without(trainer.task, part, 0.0))
    with how:
        forces = model.predict(part.batch)["forces"]
        found = batch_loss(model.train(), trainer.task, part, counts=counts, progress=0.0, autocast=nullcontext())
        found.loss.backward()
    gradient = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return {"forces": forces.double(), "gradient": torch.cat(gradient).double()}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    table: dict[str, dict[str, float]] = {}
    for kind in ("gradient", "direct"):
        trainer = trained(kind, arguments.steps, arguments.settings)
        part = validation_part(trainer)
        exact = results(trainer, copy.deepcopy(trainer.force_field).double(), part, nullcontext())
        error = (exact["forces"] - part.targets.forces).abs()[~part.noise_mask].mean()
        ways = {"float32": nullcontext(), "TF32": TF32(), "bf16": torch.autocast("cpu", torch.bfloat16)}
        for way, how in ways.items():
            found = results(trainer, trainer.force_field, part.to(dtype=torch.float32), how)
            table[f"{kind} {way}"] = {
                f"{name} relative": float((found[name] - exact[name]).norm() / exact[name].norm()) for name in exact
            } | {
                "forces rms meV/A": 1000 * float((found["forces"] - exact["forces"]).square().mean().sqrt()),
                "model's own MAE meV/A": 1000 * float(error),
            }
            print(kind, way, *(f"{name} {value:.3g}" for name, value in table[f"{kind} {way}"].items()), sep="  ")
    if arguments.json:
        arguments.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
