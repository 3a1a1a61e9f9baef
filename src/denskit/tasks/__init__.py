"""Training tasks: corruption of batches and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from denskit.tasks.base import Task, Term, total_loss
from denskit.tasks.cell_dens import CellDeNS, CellDeNSConfig
from denskit.tasks.corruption import DenoisingConfig
from denskit.tasks.dens import DeNS, DeNSConfig
from denskit.tasks.energy_forces import EnergyForces, EnergyForcesConfig
from denskit.tasks.ndem import NDeM, NDeMConfig
from denskit.tasks.noisy_nodes import NoisyNodes, NoisyNodesConfig

TaskConfig = Annotated[
    EnergyForcesConfig | DeNSConfig | CellDeNSConfig | NoisyNodesConfig | NDeMConfig, Field(discriminator="name")
]
Denoises = DeNSConfig | NoisyNodesConfig  # tasks whose head predicts the noise
TASKS: dict[str, Callable[[Any], Task]] = {
    "energy_forces": EnergyForces, "dens": DeNS, "cell_dens": CellDeNS, "noisy_nodes": NoisyNodes,
    "ndem": NDeM,
}  # fmt: skip


def build_task(config: TaskConfig) -> Task:
    """The task that the settings describe.  Its draws depend on the keys it is given, never on state of its own."""
    return TASKS[config.name](config)


__all__ = [
    "TASKS",
    "CellDeNS",
    "CellDeNSConfig",
    "DeNS",
    "DeNSConfig",
    "Denoises",
    "DenoisingConfig",
    "EnergyForces",
    "EnergyForcesConfig",
    "NDeM",
    "NDeMConfig",
    "NoisyNodes",
    "NoisyNodesConfig",
    "Task",
    "TaskConfig",
    "Term",
    "build_task",
    "total_loss",
]
