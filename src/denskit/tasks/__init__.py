"""Training tasks: what is corrupted, what is scored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from denskit.tasks.base import Task, Term, total_loss
from denskit.tasks.dens import DeNS, DeNSConfig
from denskit.tasks.energy_forces import EnergyForces, EnergyForcesConfig

TaskConfig = Annotated[EnergyForcesConfig | DeNSConfig, Field(discriminator="name")]
TASKS: dict[str, Callable[[Any], Task]] = {"energy_forces": EnergyForces, "dens": DeNS}


def build_task(config: EnergyForcesConfig | DeNSConfig) -> Task:
    """The task that the settings describe.  Its draws depend on the keys it is given, never on state of its own."""
    return TASKS[config.name](config)


__all__ = [
    "TASKS",
    "DeNS",
    "DeNSConfig",
    "EnergyForces",
    "EnergyForcesConfig",
    "Task",
    "TaskConfig",
    "Term",
    "build_task",
    "total_loss",
]
