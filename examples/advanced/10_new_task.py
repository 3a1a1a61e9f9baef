"""
10 A new task: DeNS with noise across the bonds
===============================================

A task decides how a batch changes before the model sees it, and what is scored. This one moves atoms less along their
shortest bond than across it: bonds are stiff, and a molecule at 500 K bends and turns more than it stretches. It is an
experiment, and the training loop below is one to experiment with. (A noise for each element is ready-made:
``task.sigma={H: 0.06, C: 0.03, O: 0.04}``, or ``task.sigma=auto_by_element``.)
"""

# %%
# The task
# --------
# A task has no weights and no state. The numbers to predict stay standard normal, so the losses of DeNS need no change.

from dataclasses import replace

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from denskit import load_config
from denskit.batch import Batch, Prepared, Targets
from denskit.data import load_data
from denskit.data.base import collate
from denskit.models import build_force_field
from denskit.models.fitted_scaling import fit_scaling
from denskit.random import keys_for
from denskit.tasks import DeNS, DeNSConfig, total_loss
from denskit.tasks.corruption import displaced


def bond_directions(batch: Batch) -> Tensor:
    """Unit vectors [N, 3] from each atom of a molecule to its nearest one."""
    distances = torch.cdist(batch.positions, batch.positions)
    other = batch.system_index[:, None] != batch.system_index
    nearest = (distances + torch.where(other, torch.inf, 0.0)).fill_diagonal_(torch.inf).argmin(1)
    return torch.nn.functional.normalize(batch.positions[nearest] - batch.positions, dim=1)


class AcrossBondsDeNS(DeNS):
    """DeNS with noise that is ``along`` times as large in the direction of the shortest bond."""

    def __init__(self, config: DeNSConfig, along: float) -> None:
        super().__init__(config)
        self.along = along

    def prepare(self, batch: Batch, targets: Targets, keys: Tensor, progress: float) -> Prepared:
        """Corrupt some structures; the noise to predict is a displacement in units of sigma and of its direction."""
        prepared = super().prepare(batch, targets, keys, progress)
        bond, noise = bond_directions(batch), prepared.noise
        less = (1 - self.along) * (noise * bond).sum(1, keepdim=True) * bond
        displacement = self.config.sigma_of(batch, progress) * (noise - less)
        return replace(prepared, batch=displaced(batch, displacement))


# %%
# In a file of its own, with one line in ``TASKS`` or in a package of yours, it becomes ``task=...`` of
# ``denskit train``: :doc:`/adding_a_task`.
#
# Train with it
# -------------
# A training of twenty lines: prepare, build neighbours, predict, score. ``denskit train`` does the same with
# checkpoints, validation, averages of the weights and several processes.

config = load_config("demo", ["task=dens"])
data = load_data(config.data, seed=0)
scaling, _ = fit_scaling(data.train, references="mean", scale="energy_std", gradient_forces=True)
order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0)).split(8)


def trained(task: DeNS, steps: int = 80) -> tuple[torch.nn.Module, list[float]]:
    """A model after some steps, and the losses on the way."""
    torch.manual_seed(0)
    model = build_force_field(config.model, heads=task.heads, scaling=scaling)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for step in range(steps):
        numbers = order[step % len(order)]
        batch, targets = collate([data.train[int(number)] for number in numbers])
        prepared = task.prepare(batch, targets, keys_for(0, step, numbers), progress=step / steps)
        prepared = replace(prepared, batch=config.model.with_neighbors(prepared.batch))
        scaled = replace(prepared, targets=scaling.scale_targets(prepared.batch, prepared.targets))
        loss = total_loss(task.losses(model(prepared.batch, prepared.force_input), scaled, progress=step / steps))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


settings = DeNSConfig(loss="published", energy_weight=1, forces_weight=80, sigma=0.05)
tasks = {"all directions": DeNS(settings), "across bonds": AcrossBondsDeNS(settings, along=0.3)}

figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
for name, task in tasks.items():
    model, losses = trained(task)
    axes.semilogy(losses, label=name, linewidth=1)
    batch, targets = collate([data.test[number] for number in range(0, 360, 4)])
    found = model.predict(config.model.with_neighbors(batch), ("energy", "forces"))
    error = 1000 * (found["forces"] - targets.forces).abs().mean(dim=1).detach()
    by_element = {symbol: error[batch.atomic_numbers == z].mean() for symbol, z in (("H", 1), ("C", 6), ("O", 8))}
    print(f"{name:14}", "  ".join(f"{symbol} {value:6.1f} meV/Å" for symbol, value in by_element.items()))
axes.set(xlabel="step", ylabel="loss")
axes.legend(frameon=False)
plt.show()

# %%
# 80 steps decide nothing. A fair answer needs a finished training and several seeds: :doc:`/studies`.
