"""
09 Crystals: stress and equation of state
=========================================

Tungsten from 121 strained cells of two atoms and six snapshots of molecular dynamics with 54 atoms (PBE).
"""

# %%
# The training
# ------------
# ``model.stress=strain`` makes the stress the exact derivative of the energy; ``task.stress_weight`` puts the
# labels to use. Files that hold stress labels want both. ``training.final=last``: most validation cells have no
# forces by which to choose a best step. The run in ``data/tungsten`` is this training, some minutes on one core:
#
# .. code-block:: bash
#
#    denskit train demo data=file data.path=tungsten.extxyz data.references=fit data.split.mode=random \
#        data.split.train=97 data.split.valid=10 data.split.test=20 \
#        model.num_elements=80 model.num_basis=32 model.stress=strain task.stress_weight=50 \
#        training.scale=force_rms training.batch_size=4 training.max_steps=2500 training.lr=2e-3 \
#        training.final=last output=tungsten

import matplotlib.pyplot as plt
import numpy as np
from ase.build import bulk
from ase.eos import EquationOfState
from ase.io import read
from ase.units import GPa

from denskit import DenskitCalculator, evaluate

run = "../data/tungsten"
data = "../data/tungsten.extxyz"
errors = evaluate(run, data)
print(f"energy {errors['energy_mae_meV_per_atom']:.1f} meV/atom")
print(f"forces {errors['forces_mae_meV_per_A']:.1f} meV/Å")
print(f"stress {errors['stress_mae_meV_per_A3'] / 1000 / GPa:.2f} GPa")

# %%
# These are errors on the whole file, most of which the training has seen: they show that the model fits, and no
# more.
#
# Equation of state
# -----------------

crystal = bulk("W", "bcc", a=3.19)
crystal.calc = DenskitCalculator(run, dtype="float64")
volumes, energies = [], []
for strain in np.linspace(-0.03, 0.03, 9):
    scaled = crystal.copy()
    scaled.set_cell(crystal.cell * (1 + strain), scale_atoms=True)
    scaled.calc = crystal.calc
    volumes.append(scaled.get_volume())
    energies.append(scaled.get_potential_energy())
volume, energy, modulus = EquationOfState(volumes, energies).fit()
print(f"lattice constant {(2 * volume) ** (1 / 3):.3f} Å, bulk modulus {modulus / GPa:.0f} GPa")

# %%
# PBE gives about 3.19 Å and 300 GPa. The training cells hold no uniform compression, only strains along one axis
# and shears, so the curve is a prediction.

frames = [frame for frame in read(data, ":") if len(frame) == 2]
reference = np.array([frame.get_stress() for frame in frames]) / GPa
predicted = []
for frame in frames:
    frame.calc = crystal.calc
    predicted.append(frame.get_stress() / GPa)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.plot(volumes, 1000 * (np.array(energies) - energy), "o-")
left.set(xlabel="volume of an atom (Å³)", ylabel="energy of an atom (meV)")
right.plot(reference.ravel(), np.ravel(predicted), ".", markersize=3)
right.axline((0, 0), slope=1, color="0.6", linewidth=1)
right.set(xlabel="reference stress (GPa)", ylabel="predicted stress (GPa)")
plt.show()
