"""Training tasks: corruption of batches and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeGuard

from pydantic import Field

from denskit.tasks.anids import AniDS, AniDSConfig
from denskit.tasks.base import LearnedTask, Task, Term, total_loss
from denskit.tasks.cell_dens import CellDeNS, CellDeNSConfig
from denskit.tasks.corruption import DenoisingConfig
from denskit.tasks.dens import FOR_CRYSTALS, FOR_SOME_MOLECULES, DeNS, DeNSConfig
from denskit.tasks.energy_forces import FOR_MANY_MATERIALS, EnergyForces, EnergyForcesConfig
from denskit.tasks.ndem import NDeM, NDeMConfig
from denskit.tasks.noisy_nodes import NoisyNodes, NoisyNodesConfig

TaskConfig = Annotated[
    EnergyForcesConfig | DeNSConfig | CellDeNSConfig | NoisyNodesConfig | NDeMConfig | AniDSConfig,
    Field(discriminator="name"),
]
Denoises = DeNSConfig | NoisyNodesConfig
TASKS: dict[str, Callable[[Any], Task]] = {
    "energy_forces": EnergyForces, "dens": DeNS, "cell_dens": CellDeNS, "noisy_nodes": NoisyNodes,
    "ndem": NDeM, "anids": AniDS,
}  # fmt: skip


def build_task(config: TaskConfig) -> Task:
    """The task that the settings describe.  Its draws depend on the keys it is given, never on state of its own."""
    return TASKS[config.name](config)


def denoises(config: TaskConfig) -> TypeGuard[Denoises]:
    """Whether the head of a task predicts noise of a known sigma, so that its error can be measured."""
    return isinstance(config, Denoises) and not isinstance(config, AniDSConfig)


__all__ = [
    "FOR_CRYSTALS", "FOR_MANY_MATERIALS", "FOR_SOME_MOLECULES", "TASKS", "AniDS", "AniDSConfig", "CellDeNS",
    "CellDeNSConfig", "DeNS", "DeNSConfig", "Denoises", "DenoisingConfig", "EnergyForces", "EnergyForcesConfig",
    "LearnedTask", "NDeM", "NDeMConfig", "NoisyNodes", "NoisyNodesConfig", "Task", "TaskConfig", "Term", "build_task",
    "denoises", "total_loss",
]  # fmt: skip
