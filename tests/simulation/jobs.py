"""Simulations and relaxations small enough to be killed and repeated many times; importable by other processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from ase.build import molecule

from contract.variants import build
from denskit.simulation.dynamics import DynamicsSettings
from denskit.simulation.dynamics.folder import DynamicsPlan, molecular_dynamics
from denskit.simulation.potential import Potential
from denskit.simulation.relaxation import RelaxationSettings
from denskit.simulation.relaxation.folder import RelaxationFolder, relax_into
from denskit.simulation.stability import study
from denskit.simulation.stability.protocol import Reference, StudySettings
from simulation.morse import Morse, cluster, system_of

SIZES = (4, 6, 2, 5)


def relax_clusters(folder: Path, *, resume: bool = False) -> None:
    """Relax clusters of Morse atoms, saving at every step."""
    structures = [system_of(cluster(size, size)) for size in SIZES]
    settings = RelaxationSettings(fmax=0.02, steps=4)
    relax_into(
        RelaxationFolder(folder), Morse(), structures, settings, resume=resume, batch_atoms=9, save_every=0.0,
        trajectories=True,
    )  # fmt: skip


def simulate(folder: Path, *, resume: bool = False) -> None:
    """Eight steps of two molecules."""
    settings = DynamicsSettings.model_validate({"temperature": 300.0, "timestep": 0.25})
    plan = DynamicsPlan(
        settings=settings, steps=8, folder=folder, bonds=False, frame_every=4, statistics_every=2, restart_every=3
    )
    potential = Potential(build("envelope", torch.float64))
    molecular_dynamics(potential, [molecule("H2O"), molecule("CH3CH2OH")], plan, resume=resume)


def study_water(folder: Path, *, resume: bool = False) -> None:
    """A stability study of 20 steps, saved after every 5."""
    study.CHUNK = 5
    settings = StudySettings(length=0.01, seeds=2, temperature=300.0, timestep=0.5, every=5, nve=0.005)
    water = system_of(molecule("H2O"))
    reference = Reference(first=water, positions=np.stack([water.positions, 1.01 * water.positions]))
    study.run_study(Potential(build("envelope", torch.float64)), reference, settings, folder=folder, resume=resume)
