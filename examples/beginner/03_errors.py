"""
03 Errors, and where they are
=============================

One number hides much. Which element, which structures, which forces are predicted badly?
"""

# %%
# The run in ``data/ethanol`` was trained with DeNS on 1,400 structures of ethanol (GFN2-xTB) for 6,000 steps. Its
# test split was never used in the training.

import matplotlib.pyplot as plt
import numpy as np
from ase.data import chemical_symbols

from denskit import evaluate, load_config, predict
from denskit.data import load_data

run = "../data/ethanol"
for name, value in evaluate(run).items():
    print(f"{name:36} {value:10.3f}")

# %%
# All predictions
# ---------------

config = load_config(run)
test = load_data(config.data, config.seed).test
reference = np.array([system.forces for system in test])  # [structures, 9, 3] eV/Å
predicted = np.array(predict(run, test).forces)
error = 1000 * np.linalg.norm(predicted - reference, axis=-1)  # [structures, 9] meV/Å

numbers = test[0].atomic_numbers
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
left.plot(reference.ravel(), predicted.ravel(), ".", markersize=2)
left.axline((0, 0), slope=1, color="0.6", linewidth=1)
left.set(xlabel="reference force (eV/Å)", ylabel="predicted force (eV/Å)")
for number in np.unique(numbers):
    middle.hist(
        error[:, numbers == number].ravel(), bins=40, histtype="step", density=True, label=chemical_symbols[number]
    )
middle.set(xlabel="error of a force (meV/Å)", ylabel="density")
middle.legend(frameon=False)
right.loglog(np.linalg.norm(reference, axis=-1).ravel(), error.ravel(), ".", markersize=2)
right.set(xlabel="size of the force (eV/Å)", ylabel="error (meV/Å)")
plt.show()

# %%
# The errors grow with the force, but slowly: large forces have a smaller *relative* error. By element:

for number in np.unique(numbers):
    print(f"{chemical_symbols[number]}: {error[:, numbers == number].mean():.1f} meV/Å")

# %%
# The worst structures
# --------------------
# Look at these first. Often they are wrong labels, or the only examples of something.

for place in np.argsort(error.max(axis=1))[:-4:-1]:
    atom = int(error[place].argmax())
    symbol = chemical_symbols[numbers[atom]]
    print(f"frame {test[int(place)].index}: atom {atom} ({symbol}), error {error[place, atom]:.0f} meV/Å")
