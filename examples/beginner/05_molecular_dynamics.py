"""
05 Molecular dynamics, and is it stable?
========================================

Four replicas of ethanol at 500 K in one batch; then energy conservation without a thermostat.
"""

# %%
# Dynamics into a folder
# ----------------------
# ``denskit md`` does the same in a terminal. A replica with a broken bond leaves the batch, with a message.

import tempfile
from pathlib import Path

import ase.io
import matplotlib.pyplot as plt
import numpy as np
from ase.build import molecule

from denskit import Potential, dynamics
from denskit.simulation.dynamics.folder import DynamicsPlan
from denskit.simulation.dynamics.settings import DynamicsSettings

folder = Path(tempfile.mkdtemp())
potential = Potential("../data/ethanol")
plan = DynamicsPlan(
    settings=DynamicsSettings(ensemble="nvt", temperature=500, timestep=0.5),
    steps=600,
    folder=folder / "nvt",
    frame_every=10,
)
outcome = dynamics(potential, [molecule("CH3CH2OH")] * 4, plan)
print(f"{600 * 0.5 / 1000} ps; unstable replicas: {len(outcome.failures)}")

# %%
# What the folder holds
# ---------------------

rows = np.genfromtxt(folder / "nvt" / "statistics.csv", delimiter=",", names=True)
print(rows.dtype.names)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for replica in range(4):
    own = rows[rows["replica"] == replica]
    left.plot(own["time_ps"], own["temperature_K"])
left.axhline(500, color="black", linewidth=0.8)
left.set(xlabel="time (ps)", ylabel="temperature (K)")
for replica in range(4):
    frames = ase.io.read(folder / "nvt" / f"trajectory_{replica:02}.extxyz", index=":")
    right.plot(np.arange(len(frames)) * 10 * 0.5 / 1000, [frame.get_distance(2, 3) for frame in frames])
right.set(xlabel="time (ps)", ylabel="O-H bond (Å)")
plt.show()

# %%
# The molecules start from a structure without potential energy and need some tenths of a ps to warm up. Nine atoms
# have few degrees of freedom, so the temperature of one replica swings by a hundred K and more: it should, in the
# canonical ensemble.
#
# Energy conservation
# -------------------
# Without a thermostat the total energy must stay. Half the time step, a quarter of the error: a sign that the
# forces are a gradient and that the energy is smooth.

for timestep in (1.0, 0.5):
    plan = DynamicsPlan(
        settings=DynamicsSettings(ensemble="nve", temperature=300, timestep=timestep),
        steps=round(100 / timestep),
        folder=folder / f"nve_{timestep}",
        statistics_every=1,
    )
    dynamics(Potential("../data/ethanol"), [molecule("CH3CH2OH")] * 4, plan)
    rows = np.genfromtxt(plan.folder / "statistics.csv", delimiter=",", names=True)
    spread = np.mean([rows["total_eV"][rows["replica"] == replica].std() for replica in range(4)])
    print(f"time step {timestep} fs: standard deviation of the total energy {1000 * spread:.2f} meV")

# %%
# How long a simulation stays sound is a test of its own: ``denskit stability``.
