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

import matplotlib.pyplot as plt

from denskit import evaluate, load_config, train
from denskit.analysis.plots import read_metrics

folder = Path(tempfile.mkdtemp())
settings = [
    "data=file",
    "data={path: ../data/ethanol_dft.extxyz, references: fit, split: {mode: random, train: 50, valid: 30, test: 70}}",
    "training.max_steps=100",
    "training.evaluate_every=10 steps",
    "training.log_every=50",
]
tuned = [*settings, "data.references=fit", "training.init_from=../data/ethanol", "training.lr=5e-4"]
runs = {
    "from scratch": train(load_config("demo", [*settings, f"output={folder}/scratch"])),
    "fine-tuned": train(load_config("demo", [*tuned, f"output={folder}/tuned"])),
    "fine-tuned with DeNS": train(load_config("demo", [*tuned, "task=dens", f"output={folder}/dens"])),
}

# %%
# Energies of the two methods differ by thousands of eV. ``data.references=fit`` corrects the energies of the
# elements on the new structures; the log above says by how much. What remains is the difference of the two
# potential energy surfaces.

figure, axes = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
for name, run in runs.items():
    curves = read_metrics(Path(run) / "metrics.csv")
    axes.semilogy(curves["step"], curves["valid_forces_mae_meV_per_A"], ".-", label=name)
axes.set(xlabel="step", ylabel="validation error of forces (meV/Å)")
axes.legend(frameon=False)
plt.show()

for name, run in runs.items():
    errors = evaluate(run)
    print(f"{name:21} forces {errors['forces_mae_meV_per_A']:6.1f} meV/Å   energy {errors['energy_mae_meV']:6.1f} meV")
