"""
10 A new task: DeNS with a noise for each element
=================================================

A task decides how a batch changes before the model sees it, and what is scored. This one moves hydrogen further than
carbon and oxygen: its bonds are stiff, but it moves most in the simulation. It is an experiment, and the training
loop below is one to experiment with.
"""

# %%
# The task
# --------
# A task has no weights and no state. Noise stays in units of its own sigma, so the losses of DeNS need no change.

from dataclasses import replace

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from denskit import load_config
from denskit.batch import Batch, Prepared, Targets
from denskit.data import load_data
from denskit.data.base import collate
from denskit.models import build_force_field
from denskit.models.scaling import fit_scaling
from denskit.random import keys_for
from denskit.tasks import DeNS, DeNSConfig, total_loss
from denskit.tasks.corruption import displaced


class ElementDeNS(DeNS):
    """DeNS with standard deviations of the noise in Å by atomic number; other elements get ``config.sigma``."""

    def __init__(self, config: DeNSConfig, sigmas: dict[int, float]) -> None:
        super().__init__(config)
        self.sigma = torch.full((119,), config.sigma)
        self.sigma[list(sigmas)] = torch.tensor(list(sigmas.values()))

    def prepare(self, batch: Batch, targets: Targets, keys: Tensor, progress: float) -> Prepared:
        """Corrupt some structures; the noise of an atom is in units of the sigma of its element."""
        prepared = super().prepare(batch, targets, keys, progress)
        displacement = self.sigma[batch.atomic_numbers, None] * prepared.noise
        return replace(prepared, batch=displaced(batch, displacement))


# %%
# In a file of its own, with one line in ``TASKS``, it becomes ``task=...`` of ``denskit train``:
# :doc:`/adding_a_task`.
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
tasks = {"one sigma": DeNS(settings), "more for H": ElementDeNS(settings, {1: 0.1})}

figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
for name, task in tasks.items():
    model, losses = trained(task)
    axes.semilogy(losses, label=name, linewidth=1)
    batch, targets = collate([data.test[number] for number in range(0, 360, 4)])
    found = model.predict(config.model.with_neighbors(batch), ("energy", "forces"))
    error = 1000 * (found["forces"] - targets.forces).abs().mean(dim=1).detach()
    by_element = {symbol: error[batch.atomic_numbers == z].mean() for symbol, z in (("H", 1), ("C", 6), ("O", 8))}
    print(f"{name:10}", "  ".join(f"{symbol} {value:6.1f} meV/Å" for symbol, value in by_element.items()))
axes.set(xlabel="step", ylabel="loss")
axes.legend(frameon=False)
plt.show()

# %%
# 80 steps decide nothing. A fair answer needs a finished training and several seeds: :doc:`/studies`.
