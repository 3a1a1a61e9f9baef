"""The loop of a simulation: steps, recorders, observers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from denskit.simulation.dynamics.committee import UNCERTAIN, uncertain
from denskit.simulation.dynamics.integrators import BrokenSystems, Dynamics, State
from denskit.simulation.dynamics.observers import Instability, Observer, look

Recorder = Callable[[State], None]
BROKEN = "positions are not finite, or atoms have flown apart or lie on each other"


@dataclass(frozen=True)
class Failure:
    """The end of a system that became unstable."""

    replica: int
    step: int
    time: float  # ps
    check: str  # name of the observer; "potential" where the potential could not evaluate the system
    reason: str

    @property
    def uncertain(self) -> bool:
        """Whether the system was ended because a committee disagreed on it."""
        return self.check == UNCERTAIN

    def __str__(self) -> str:
        became = "uncertain" if self.uncertain else "unstable"
        return f"replica {self.replica} became {became} at {self.time:.4f} ps (step {self.step}): {self.reason}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """The end of a simulation."""

    state: State  # of the stable systems, perhaps none
    failures: tuple[Failure, ...]
    interrupted: bool  # stopped before the last step, with systems left


def ends_in_words(stable: int, checks: Sequence[str]) -> str:
    """How many runs are stable, and of those that ended (``checks`` of their failures) how many as uncertain."""
    total, uncertain = stable + len(checks), checks.count(UNCERTAIN)
    if not uncertain:
        return f"{stable} of {total} runs are stable"
    return (
        f"of {total} runs {stable} are stable, {total - stable - uncertain} became unstable, and {uncertain} ended "
        "where the models disagree, stable until then"
    )


@dataclass(kw_only=True)
class Simulation:
    """Steps systems; an unstable system leaves the batch, the others continue.

    A system is unstable when the potential cannot evaluate it, or when an observer says so.  With ``certain``, a system
    on which the models of a committee disagree by more ends as well, after it was recorded.
    """

    dynamics: Dynamics
    state: State
    observers: Sequence[Observer] = ()  # of the systems of the state
    look_every: int = 10  # steps between looks of the observers
    certain: float | None = None  # eV/Å
    recorders: Sequence[tuple[int, Recorder]] = ()  # with intervals in steps; they see stable systems alone
    failures: tuple[Failure, ...] = ()
    seen: bool = False  # whether the state was observed and recorded already

    def run(self, steps: int, stop: Callable[[], bool] = lambda: False) -> Outcome:
        """Run until step number ``steps``, or until ``stop``, asked before each step, returns True."""
        if self.seen:
            self._end_uncertain()  # comes after the recorders, which saved the state
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
        """Observe, then record the stable systems."""
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
        """Take systems out of the batch; the failure has the first reason of each."""
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
