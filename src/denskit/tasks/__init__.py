"""Training tasks: corruption of batches and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

from denskit.runtime.registry import Registry, settings_problem
from denskit.tasks.anids import AniDS, AniDSConfig
from denskit.tasks.base import LearnedTask, Task, Term, total_loss
from denskit.tasks.cell_dens import CellDeNS, CellDeNSConfig
from denskit.tasks.corruption import DenoisingConfig
from denskit.tasks.dens import FOR_CRYSTALS, DeNS, DeNSConfig
from denskit.tasks.energy_forces import FOR_MANY_MATERIALS, EnergyForces, EnergyForcesConfig, LossConfig
from denskit.tasks.ndem import NDeM, NDeMConfig
from denskit.tasks.noisy_nodes import NoisyNodes, NoisyNodesConfig

Denoises = DeNSConfig | NoisyNodesConfig


class TaskEntry(NamedTuple):
    """A task: its settings, and the task(settings)."""

    config: type[LossConfig]
    task: Callable[[Any], Task]


def _problem(name: str, entry: object) -> str | None:
    wanted = "TaskEntry(Config, Task)"
    problem = settings_problem(name, entry, wanted, TaskEntry, LossConfig)
    if problem is None and not callable(task := getattr(entry, "task", None)):
        problem = f"wanted {wanted}, found {task!r:.199}"
    return problem


TASKS = Registry(
    "task",
    {
        "energy_forces": TaskEntry(EnergyForcesConfig, EnergyForces),
        "dens": TaskEntry(DeNSConfig, DeNS),
        "cell_dens": TaskEntry(CellDeNSConfig, CellDeNS),
        "noisy_nodes": TaskEntry(NoisyNodesConfig, NoisyNodes),
        "ndem": TaskEntry(NDeMConfig, NDeM),
        "anids": TaskEntry(AniDSConfig, AniDS),
    },
    _problem,
)


def build_task(config: LossConfig) -> Task:
    """The task that the settings describe.  Its draws depend on the keys it is given, never on state of its own.

    Raises ValueError for settings of a task that is not in ``TASKS``: a run with them could not be opened.
    """
    if config.name not in TASKS:
        raise ValueError(
            f"task={config.name} is not in denskit.tasks.TASKS; in a script TASKS[{config.name!r}] = TaskEntry(Config, "
            "Task) adds it, and a package names it as an entry point (docs/adding_a_task.md)"
        )
    return TASKS[config.name].task(config)


def denoises(config: LossConfig) -> TypeGuard[Denoises]:
    """Whether the head of a task predicts noise of a known sigma, so that its error can be measured."""
    return isinstance(config, Denoises) and not isinstance(config, AniDSConfig)


__all__ = [
    "FOR_CRYSTALS", "FOR_MANY_MATERIALS", "TASKS", "AniDS", "AniDSConfig", "CellDeNS",
    "CellDeNSConfig", "DeNS", "DeNSConfig", "Denoises", "DenoisingConfig", "EnergyForces", "EnergyForcesConfig",
    "LearnedTask", "LossConfig", "NDeM", "NDeMConfig", "NoisyNodes", "NoisyNodesConfig", "Task", "TaskEntry", "Term",
    "build_task", "denoises", "total_loss",
]  # fmt: skip
