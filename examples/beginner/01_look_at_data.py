"""
01 Look at data
===============

Before a training, look at the data: units, signs and outliers decide more than any setting. The file holds 150
structures of ethanol with energies and forces of density functional theory (PBE), from the revised MD17 data set.
"""

# %%
# Read a file
# -----------
# ``read`` takes every format of ASE and gives structures in eV and Å.

import matplotlib.pyplot as plt
import numpy as np

from denskit import read

frames = read("../data/ethanol_dft.extxyz")
forces = np.concatenate([frame.forces for frame in frames])  # [atoms, 3] eV/Å
energies = np.array([frame.energy for frame in frames])  # eV
print(f"{len(frames)} structures of {len(frames[0])} atoms")
print(f"energies: mean {energies.mean():.1f} eV, standard deviation {energies.std():.3f} eV")
rms = np.sqrt(np.mean(forces**2))
print(f"forces: root mean square {rms:.2f} eV/Å, largest component {np.abs(forces).max():.2f} eV/Å")

# %%
# The mean energy is that of the atoms and has no meaning for a force field. The standard deviation and the root
# mean square of the forces are the scales against which errors are judged: a model that always predicts the mean
# and zero forces has errors of that size.

numbers = frames[0].atomic_numbers
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for symbol, number in (("H", 1), ("C", 6), ("O", 8)):
    lengths = np.concatenate([np.linalg.norm(frame.forces[numbers == number], axis=1) for frame in frames])
    left.hist(lengths, bins=40, histtype="step", density=True, label=symbol)
left.set(xlabel="force on an atom (eV/Å)", ylabel="density")
left.legend(frameon=False)
distances = np.concatenate(
    [np.linalg.norm(frame.positions[:, None] - frame.positions, axis=-1)[np.triu_indices(9, 1)] for frame in frames]
)
right.hist(distances, bins=120)
right.set(xlabel="distance between two atoms (Å)", ylabel="pairs")
plt.show()

# %%
# Let Denskit look
# ----------------
# ``denskit info FILE`` prints this in a terminal. It compares energies with forces between similar structures.

from denskit.data.inspection import inspect_file

for finding in inspect_file("../data/ethanol_dft.extxyz").findings:
    print(finding)

# %%
# What a mistake looks like
# -------------------------
# The same file with the gradients in place of the forces: the wrong sign, the most frequent mistake of all.

import tempfile
from pathlib import Path

import ase.io

wrong = ase.io.read("../data/ethanol_dft.extxyz", index=":")
for atoms in wrong:
    atoms.calc.results["forces"] *= -1
file = Path(tempfile.mkdtemp()) / "wrong_sign.extxyz"
ase.io.write(file, wrong)
for finding in inspect_file(file).problems:
    print(finding)

# %%
# And with energies in Hartree beside forces in eV/Å:

for atoms in wrong:
    atoms.calc.results["forces"] *= -1
    atoms.calc.results["energy"] /= 27.2114
ase.io.write(file, wrong)
for finding in inspect_file(file).problems:
    print(finding)
