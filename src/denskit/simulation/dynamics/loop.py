"""The loop of a simulation: steps, what is written down, and what happens when a run becomes unstable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from denskit.batch import Batch
from denskit.simulation.dynamics.committee import UNCERTAIN, uncertain
from denskit.simulation.dynamics.conservation import energy_drift
from denskit.simulation.dynamics.integrators import BrokenSystems, Dynamics, DynamicsSettings, EnergyModel, State
from denskit.simulation.dynamics.observers import Instability, Observer, look

Recorder = Callable[[State], None]  # looks at a state and keeps or writes what it wants
BROKEN = "positions are not finite, or atoms have flown apart or lie on each other"


@dataclass(frozen=True)
class Failure:
    """A run that became unstable."""

    replica: int
    step: int
    time: float  # ps
    check: str  # name of the observer; "potential" where the potential could not follow
    reason: str

    def __str__(self) -> str:
        became = "uncertain" if self.check == UNCERTAIN else "unstable"
        return f"replica {self.replica} became {became} at {self.time:.4f} ps (step {self.step}): {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a simulation ended."""

    state: State  # of the systems that are still stable, perhaps none
    failures: tuple[Failure, ...]
    interrupted: bool  # stopped before the last step, though systems were left


@dataclass(kw_only=True)
class Simulation:
    """Steps systems on; one that becomes unstable is taken out of the batch, the others go on.

    A system is unstable when the potential cannot follow it, or when an observer says so.  Where ``certain`` is given,
    a system on which the models of a committee disagree by more ends as well, after it was recorded.
    """

    dynamics: Dynamics
    state: State
    observers: Sequence[Observer] = ()  # for the systems of the state
    look_every: int = 10  # steps between looks of the observers
    certain: float | None = None  # eV/Å
    recorders: Sequence[tuple[int, Recorder]] = ()  # each with its interval in steps; not shown what observers ended
    failures: tuple[Failure, ...] = ()  # so far
    seen: bool = False  # whether the state was looked at and recorded before

    def run(self, steps: int, stop: Callable[[], bool] = lambda: False) -> Outcome:
        """Run until step number ``steps``, or until ``stop``, asked before each step, says so."""
        if self.seen:
            self._end_uncertain()  # which comes after the recorders, also those that saved the state
        else:
            self._look()
        while self.state.step < steps and self.state.batch.num_systems:
            if stop():
                return self._outcome(interrupted=True)
            try:
                self.state = self.dynamics.step(self.state)
            except BrokenSystems as broken:
                found = [Instability(system=s, check="potential", reason=BROKEN) for s in broken.systems]
                self._drop(found, self.state.step + 1)
            else:
                self._look()
        return self._outcome(interrupted=False)

    def _outcome(self, interrupted: bool) -> Outcome:
        return Outcome(state=self.state, failures=self.failures, interrupted=interrupted)

    def _look(self) -> None:
        """Observe, then record what is stable."""
        self.seen = True
        step = self.state.step
        if self.observers and step % self.look_every == 0:
            self._drop(look(self.observers, self.state.batch, self.state.temperature), step)
        if self.state.batch.num_systems:
            for every, recorder in self.recorders:
                if step % every == 0:
                    recorder(self.state)
        self._end_uncertain()

    def _end_uncertain(self) -> None:
        if self.certain is not None and self.state.step % self.look_every == 0:
            self._drop(uncertain(self.state, self.certain), self.state.step)

    def _drop(self, found: Sequence[Instability], step: int) -> None:
        """Take systems out of the batch; of several reasons the first observer's counts."""
        if not found:
            return
        first = {instability.system: instability for instability in reversed(found)}
        time = step * self.dynamics.settings.timestep / 1000
        self.failures += tuple(
            Failure(int(self.state.replicas[system]), step, time, first[system].check, first[system].reason)
            for system in sorted(first)
        )
        keep = torch.ones(self.state.batch.num_systems, dtype=torch.bool)
        keep[list(first)] = False
        keep = keep.to(self.state.replicas.device)
        self.state = self.state.select(keep)
        self.observers = [observer.select(keep) for observer in self.observers]


def nve_drift(potential: EnergyModel, batch: Batch, settings: DynamicsSettings, steps: int) -> np.ndarray:
    """Energy drift [B] (eV/atom/ps) in a short run without a bath, with the other settings as they are.

    Raises BrokenSystems where the run breaks.
    """
    free = Dynamics(potential, settings.model_copy(update={"ensemble": "nve"}))
    state = free.start(batch)
    energies = [free.conserved(state)]
    for _ in range(steps):
        state = free.step(state)
        energies.append(free.conserved(state))
    time = np.arange(steps + 1) * settings.timestep / 1000
    histories = torch.stack(energies, 1).cpu().numpy()  # [B, steps + 1]
    return np.array([energy_drift(time, e, n) for e, n in zip(histories, batch.n_atoms.tolist(), strict=True)])
