"""
04 Calculator: scan a bond
==========================

A trained model is an ASE calculator. Here it stretches the O-H bond of ethanol.
"""

# %%
# Attach the model
# ----------------

import matplotlib.pyplot as plt
import numpy as np
from ase.build import molecule

from denskit import DenskitCalculator, load_config
from denskit.data import load_data

run = "../data/ethanol"
atoms = molecule("CH3CH2OH")
atoms.calc = DenskitCalculator(run, dtype="float64")
print(f"energy {atoms.get_potential_energy():.3f} eV, largest force {np.abs(atoms.get_forces()).max():.3f} eV/Å")

# %%
# Stretch the bond
# ----------------
# Only the hydrogen moves.

oxygen, hydrogen = 2, 3
lengths = np.linspace(0.75, 1.6, 69)
energies, forces = [], []
for length in lengths:
    atoms.set_distance(oxygen, hydrogen, length, fix=0)
    direction = (atoms.positions[hydrogen] - atoms.positions[oxygen]) / length
    energies.append(atoms.get_potential_energy())
    forces.append(atoms.get_forces()[hydrogen] @ direction)

# %%
# The force must be minus the slope of the energy, here by finite differences. Forces of the default model are its
# exact gradient, so this holds everywhere, also where the model is wrong:

slope = np.gradient(energies, lengths)
difference = np.abs(np.array(forces) + slope)[1:-1].max()
print(f"largest difference between force and slope: {difference:.3f} eV/Å")

# %%
# Where does the model know anything?
# -----------------------------------
# The shaded range holds the O-H bonds of the training structures. Outside of it the curve is a guess.

config = load_config(run)
train = load_data(config.data, config.seed).train
bonds = [np.linalg.norm(system.positions - system.positions[system.atomic_numbers == 8], axis=1) for system in train]
known = np.array([np.sort(distances)[1] for distances in bonds])  # the nearest atom of O is its hydrogen

figure, (above, below) = plt.subplots(2, 1, figsize=(5.5, 5), layout="constrained", sharex=True)
above.plot(lengths, np.array(energies) - min(energies))
above.set(ylabel="energy (eV)")
below.plot(lengths, forces, label="force")
below.plot(lengths, -slope, ":", color="black", label="minus the slope")
below.set(xlabel="O-H bond (Å)", ylabel="force (eV/Å)")
below.legend(frameon=False)
for axes in (above, below):
    axes.axvspan(known.min(), known.max(), alpha=0.15)
plt.show()
