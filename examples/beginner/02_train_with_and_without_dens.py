"""
02 Train with and without DeNS
==============================

DeNS is one word in the settings: ``task=dens``. This example trains the small demo model on 50 structures of ethanol,
without and with it.
"""

# %%
# Two short trainings
# -------------------
# The data ship with Denskit. Both trainings have the same split, the same order of the data and, where possible,
# the same initial weights.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from denskit import train

folder = Path(tempfile.mkdtemp())
settings = {
    "data.split": {"train": 50, "valid": 50, "test": 200},
    "training.max_steps": 100,
    "training.evaluate_every": "25 steps",
}
runs = {
    "without DeNS": train("demo", settings=settings, task="energy_forces", output=f"{folder}/plain"),
    "with DeNS": train("demo", settings=settings, task="dens", output=f"{folder}/dens"),
}
print(runs["with DeNS"])

# %%
# Errors on 200 structures that neither training has seen:

for name, run in runs.items():
    forces, energy = run.errors["forces_mae_meV_per_A"], run.errors["energy_mae_meV"]
    print(f"{name:13} forces {forces:6.1f} meV/Å   energy {energy:6.1f} meV")

# %%
# The curves, which are in ``metrics.csv`` of the run folder, too:

figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
for name, run in runs.items():
    axes.semilogy(run.curves["step"], run.curves["valid_forces_mae_meV_per_A"], ".-", label=name)
axes.set(xlabel="step", ylabel="validation error of forces (meV/Å)")
axes.legend(frameon=False)
plt.show()

# %%
# What this says: nothing
# -----------------------
# 100 steps are 16 passes over 50 structures, and one seed is one sample. DeNS pays late, when the learning rate is
# low. The study below trained a small model on 25 structures (GFN2-xTB) for 4,000 steps (1,333 passes) with five seeds
# (``denskit study demo``, half an hour). Lines are means, bands the range of the seeds:
#
# .. image:: /images/demo_study.png
#
# The curves cross between 167 and 333 passes, and the mean gain of the forces on test structures at the end is 17 %,
# with a 95 % interval of 9 to 25 %. ``denskit study mine.extxyz --question dens --hours 2`` asks the question for your
# data.
