"""
08 Committee: how certain is a prediction?
==========================================

Three models that differ in their seed disagree where none of them knows the answer.
"""

# %%
# Three small models
# ------------------
# The seed of a run chooses initial weights, the order of the data and, without ``data.split.seed``, the split.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from ase.build import molecule

from denskit import DenskitCalculator, Potential, train
from denskit.data import load_data
from denskit.data.base import collate

folder = Path(tempfile.mkdtemp())
settings = {"data.split": {"train": 200, "valid": 50, "test": 100, "seed": 0}, "training.max_steps": 100}
committee = [train("demo", settings=settings, seed=seed, output=f"{folder}/{seed}") for seed in range(3)]

# %%
# Spread against error
# --------------------
# ``Potential`` of several models gives the mean forces and their standard deviation.

config = committee[0].config
test = load_data(config.data, config.seed).test
batch, targets = collate([test[index] for index in range(len(test))])
found = Potential(committee)(batch)
spread = found.forces_std.norm(dim=1).numpy()
error = (found.forces - targets.forces).norm(dim=1).numpy()
print(f"correlation of spread and error over atoms: {np.corrcoef(spread, error)[0, 1]:.2f}")
print(f"error {error.mean():.3f} eV/Å, spread {spread.mean():.3f} eV/Å")

# %%
# The spread is smaller than the error: models of the same kind make the same mistakes. It orders structures; it is
# no error bar.
#
# Away from the data
# ------------------

atoms = molecule("CH3CH2OH")
atoms.calc = DenskitCalculator(committee)
lengths = np.linspace(0.8, 1.6, 33)
spreads = []
for length in lengths:
    atoms.set_distance(2, 3, length, fix=0)
    atoms.get_forces()
    spreads.append(np.linalg.norm(atoms.calc.results["forces_std"], axis=1).max())

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.loglog(spread, error, ".", markersize=3)
left.axline((0.1, 0.1), (1, 1), color="0.6", linewidth=1)
left.set(xlabel="spread of the committee (eV/Å)", ylabel="error of the mean (eV/Å)")
right.plot(lengths, spreads)
right.set(xlabel="O-H bond (Å)", ylabel="largest spread (eV/Å)")
plt.show()

# %%
# ``denskit md --committee ... --uncertain 0.3`` writes structures beyond a spread to a file: candidates for new
# labels.
