"""
07 Fine-tune to another level of theory
=======================================

A model of a cheap method (GFN2-xTB) learns an expensive one (PBE) from 50 structures, and starts ahead of a model
with random weights.
"""

# %%
# Two trainings on the same 50 structures
# ---------------------------------------
# ``training.init_from`` takes weights, elements and scale of the old model. A pre-trained model wants a smaller
# learning rate.

import tempfile
from pathlib import Path

import ase.io
import matplotlib.pyplot as plt

from denskit import train

folder = Path(tempfile.mkdtemp())
frames = ase.io.read("../data/ethanol_dft.extxyz", index=":")
settings = {
    "data.references": "fit",
    "data.split": {"mode": "random", "train": 50, "valid": 30, "test": 70},
    "training.max_steps": 100,
    "training.evaluate_every": "10 steps",
}
tuned = {**settings, "training.init_from": "../data/ethanol", "training.lr": 5e-4}
runs = {
    "from scratch": train("demo", frames, settings=settings, output=f"{folder}/scratch"),
    "fine-tuned": train("demo", frames, settings=tuned, output=f"{folder}/tuned"),
    "fine-tuned with DeNS": train("demo", frames, settings=tuned, task="dens", output=f"{folder}/dens"),
}
for message in runs["fine-tuned"].messages:
    print(message)

# %%
# Energies of the two methods differ by thousands of eV. ``data.references=fit`` corrects the energies of the
# elements on the new structures; the messages above say by how much. What remains is the difference of the two
# potential energy surfaces.

figure, axes = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
for name, run in runs.items():
    axes.semilogy(run.curves["step"], run.curves["valid_forces_mae_meV_per_A"], ".-", label=name)
axes.set(xlabel="step", ylabel="validation error of forces (meV/Å)")
axes.legend(frameon=False)
plt.show()

for name, run in runs.items():
    forces, energy = run.errors["forces_mae_meV_per_A"], run.errors["energy_mae_meV"]
    print(f"{name:21} forces {forces:6.1f} meV/Å   energy {energy:6.1f} meV")
