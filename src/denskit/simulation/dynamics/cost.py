"""Time, memory and files of a simulation, from a trial of a few steps."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import ase
import torch

from denskit.runtime.memory import peak_memory
from denskit.simulation.dynamics.folder import DynamicsPlan, molecular_dynamics
from denskit.simulation.dynamics.integrators import State
from denskit.simulation.dynamics.recorders import TrajectoryWriter
from denskit.simulation.potential import Potential

TRIAL_STEPS, TRIAL_SECONDS = 60, 20.0  # of a trial: the first of the two ends it, after at least 6 steps
TRIAL_FRAMES = 5
_FEWEST = 6


@dataclass(frozen=True)
class DynamicsCost:
    """The cost of one step of all systems together."""

    step: float  # s, without frames
    memory: float  # MiB, the peak of the process (CUDA: of the device)
    frame_bytes: float  # of one frame of all trajectories
    frame_seconds: float  # s of writing it
    failures: tuple[str, ...] = ()  # of simulations that ended in the trial

    def seconds(self, steps: int, plan: DynamicsPlan) -> float:
        """Time of so many steps with their frames."""
        return steps * self.step + steps // plan.frame_every * self.frame_seconds

    def disk(self, plan: DynamicsPlan) -> float:
        """MiB of its trajectories."""
        return (math.ceil(plan.steps / plan.frame_every) + 1) * self.frame_bytes / 2**20


def cost_of(potential: Potential, structures: Sequence[ase.Atoms], plan: DynamicsPlan) -> DynamicsCost:
    """Run the first steps of a simulation in a temporary folder; the median of a step, without the first third.

    Frames, which may be rare, are timed after these steps.

    Raises as :func:`molecular_dynamics`; ValueError where every simulation ends before its first step.
    """
    marks: list[float] = []

    def enough() -> bool:
        if potential.device.type == "cuda":
            torch.cuda.synchronize(potential.device)
        marks.append(time.perf_counter())
        return len(marks) > TRIAL_STEPS or (len(marks) > _FEWEST and marks[-1] - marks[0] > TRIAL_SECONDS)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "trial"
        # never at its end, where the last frame would be written, too
        trial = replace(plan, folder=folder, steps=TRIAL_STEPS + 1, frame_every=TRIAL_STEPS + 1)
        outcome = molecular_dynamics(potential, structures, trial, say=lambda text: None, stop=enough)
        marks.append(time.perf_counter())
        frame_bytes = float(sum(path.stat().st_size for path in folder.glob("trajectory_*")))
        frame_seconds = _frame_seconds(TrajectoryWriter(folder, plan.settings.timestep), outcome.state)
    if len(marks) == 1:
        raise ValueError(f"no step can be timed: {'; '.join(map(str, outcome.failures))}")
    spent = _spent(marks)
    step = statistics.median(spent[len(spent) // 3 :])
    failures = tuple(str(failure) for failure in outcome.failures)
    return DynamicsCost(step, peak_memory(potential.device), frame_bytes, frame_seconds, failures)


def _frame_seconds(write: TrajectoryWriter, state: State) -> float:
    """Seconds of writing one frame of the systems that are left."""
    marks = [time.perf_counter()]
    for _ in range(TRIAL_FRAMES):
        write(state)
        marks.append(time.perf_counter())
    return statistics.median(_spent(marks))


def _spent(marks: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(marks)]
