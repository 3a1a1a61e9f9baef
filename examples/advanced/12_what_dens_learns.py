"""
12 What DeNS learns: forces tell where atoms were
=================================================

DeNS adds noise to some atoms, gives the network the true forces of these atoms, and asks for the noise. This example
shows the three.
"""

# %%
# One corrupted structure
# -----------------------

import matplotlib.pyplot as plt
import numpy as np
import torch

from denskit import load_config, load_model
from denskit.data import load_data
from denskit.data.base import collate
from denskit.evaluation.denoising import denoise
from denskit.random import keys_for
from denskit.tasks import build_task

run = "../data/ethanol"
config = load_config(run)
test = load_data(config.data, config.seed).test
model = load_model(run)
task = build_task(config.task.model_copy(update={"probability": 1.0, "corruption_ratio": 0.5, "sigma": 0.1}))

batch, targets = collate([test[120]])
prepared = task.prepare(batch, targets, keys_for(0, 0, [3]), progress=0.0)
corrupted = model.config.with_neighbors(prepared.batch)
with torch.no_grad():
    noise = model(corrupted, prepared.force_input, outputs=("noise",))["noise"]
sigma = config.task.sigma  # Å: the model predicts noise in units of the sigma of its training
denoised = corrupted.positions - sigma * noise * prepared.noise_mask[:, None]

# %%
# Black: the original; red: after the noise, with the true forces as arrows; blue: after the noise that the model
# predicts is taken away.

before, after, back = batch.positions.numpy(), corrupted.positions.numpy(), denoised.numpy()
moved = prepared.noise_mask.numpy()
size = np.where(batch.atomic_numbers.numpy() == 1, 60, 180)
figure, axes = plt.subplots(figsize=(6, 4.6), layout="constrained")
near = np.argwhere(np.triu(np.linalg.norm(before[:, None] - before, axis=-1) < 1.6, 1))
for one, other in near:
    axes.plot(before[[one, other], 0], before[[one, other], 1], color="0.8", linewidth=3, zorder=0)
axes.scatter(*before[:, :2].T, s=size, color="black", label="original")
axes.scatter(*after[moved][:, :2].T, s=size[moved], color="tab:red", alpha=0.7, label="corrupted")
axes.scatter(*back[moved][:, :2].T, s=size[moved] / 2, color="tab:blue", alpha=0.8, label="denoised")
arrows = 0.15 * targets.forces.numpy()[moved]
axes.quiver(
    *after[moved][:, :2].T, *arrows[:, :2].T, angles="xy", scale_units="xy", scale=1, width=0.004, color="tab:red"
)
axes.set(xlabel="x (Å)", ylabel="y (Å)", aspect="equal")
axes.legend(frameon=False)
plt.show()

added = np.linalg.norm(after - before, axis=1)[moved].mean()
left_over = np.linalg.norm(back - before, axis=1)[moved].mean()
print(f"mean distance from the original: {added:.3f} Å corrupted, {left_over:.3f} Å denoised")

# %%
# Only two atoms were drawn here, and such a structure is easy: their neighbours are where they were.
#
# Over the whole test split, with and without forces
# --------------------------------------------------
# ``denskit evaluate RUN --denoise`` in a terminal. 1 is the error of predicting no noise.

cells = denoise(run, sigmas=[0.025, 0.05, 0.1], ratios=[0.25, 1.0])
figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
for ratio, marker in ((0.25, "o"), (1.0, "s")):
    own = [cell for cell in cells if cell.corruption_ratio == ratio]
    sigmas = [cell.sigma for cell in own]
    axes.plot(
        sigmas,
        [cell.with_forces for cell in own],
        f"{marker}-",
        color="tab:blue",
        label=f"with forces, {ratio:.0%} of atoms",
    )
    axes.plot(
        sigmas,
        [cell.without_forces for cell in own],
        f"{marker}:",
        color="tab:red",
        label=f"without forces, {ratio:.0%}",
    )
axes.set(xlabel="sigma of the noise (Å)", ylabel="error relative to predicting no noise", ylim=(0, None))
axes.legend(frameon=False, fontsize=8)
plt.show()

for cell in cells:
    noise = f"sigma {cell.sigma} Å, {cell.corruption_ratio:.0%} of atoms"
    print(f"{noise}: {cell.with_forces:.2f} with, {cell.without_forces:.2f} without forces")

# %%
# Away from equilibrium many structures could have become the noisy one. The forces say which. This is a diagnostic:
# force labels are inputs here, so the numbers say nothing about the accuracy of the force field.
