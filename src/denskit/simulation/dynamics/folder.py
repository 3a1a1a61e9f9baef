"""A simulation from structures to a folder: trajectories, statistics, a restart file, a summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import ase
import torch

from denskit.batch import Batch, select
from denskit.files import locked, write_json
from denskit.simulation.dynamics.integrators import BrokenSystems, Dynamics, DynamicsSettings, State
from denskit.simulation.dynamics.loop import Outcome, Recorder, Simulation, nve_drift
from denskit.simulation.dynamics.observers import BondStability, Finite, NotTooHot, Observer, find_bonds
from denskit.simulation.dynamics.recorders import StatisticsWriter, TrajectoryWriter, UncertainWriter
from denskit.simulation.dynamics.restart import Restart, origin_of, sizes_of
from denskit.simulation.potential import Potential
from denskit.simulation.structures import batch_of

SHORT_RUN = 100.0  # fs without a bath, to see the drift of a model that may not conserve energy
SECOND = 1.0  # between reports of progress
RESTART, STATISTICS, UNCERTAIN_FRAMES = "restart.safetensors", "statistics.csv", "uncertain.extxyz"
SUMMARY = "summary.json"
# what a simulation began with, in words; the first that differs is said
ORIGINS = {
    "n_atoms": "numbers of structures and atoms are",
    "atomic_numbers": "elements are",
    "positions": "positions are",
    "cell": "cells are",
    "pbc": "periodic directions are",
    "fixed": "fixed atoms are",
    "models": "models (or their dtype) are",
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to simulate, and what to write."""

    settings: DynamicsSettings
    steps: int  # number of the last step
    folder: Path
    frame_every: int = 100  # steps between frames of the trajectories
    statistics_every: int = 10  # and between lines of the statistics
    restart_every: int = 1000  # and between restart files
    bonds: bool = True  # a molecule with a bond changed by more than 0.5 Å ends its run
    uncertain: float | None = None  # eV/Å: frames on which a committee disagrees by more are written to a file
    stop_uncertain: bool = False  # and end their run


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a simulation is, and how fast."""

    step: int
    systems: int  # still stable
    time: float  # ps
    temperature: float  # K, mean over systems
    ns_per_day: float  # of each system


def molecular_dynamics(
    potential: Potential,
    structures: Sequence[ase.Atoms],
    plan: Plan,
    *,
    resume: bool = False,
    say: Callable[[str], None] = print,
    progress: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Simulate structures, each a run of its own, all in one batch; write everything into ``plan.folder``.

    Files: ``trajectory_<replica>.extxyz``, ``statistics.csv``, ``restart.safetensors``, ``summary.json``; where wanted
    ``uncertain.extxyz``.

    Args:
        potential: gives the forces.
        structures: the runs; replica numbers count them from 0.
        plan: what to do.
        resume: go on from the restart file in the folder, bit for bit; where there is none, begin.
        say: gets messages.
        progress: called about once a second.
        stop: asked before each step whether to end; a restart file is written then, too.

    Raises:
        ValueError: The folder has a simulation already (and not ``resume``), another process simulates into it, or its
            restart file is of another one, or gone; an unknown element; a constraint other than fixed atoms; a
            threshold of spread for one model.
    """
    folder, settings, watch = plan.folder, plan.settings, _watch(plan, potential)
    batch = batch_of(structures, potential.device)
    dynamics, origin = Dynamics(potential, settings), origin_of(batch, potential.models)
    with locked(folder):
        restart = _resumed(plan, origin, batch.positions.device) if resume else None
        if restart is not None:
            say(f"going on from step {restart.state.step} of {folder}")
        else:
            if resume:
                say(f"{folder} holds no simulation yet: starting from the beginning")
            _require_empty(folder)
            for message in warnings_of(potential, batch, settings):
                say(message)
            restart = Restart(state=dynamics.start(batch), settings=settings, origin=origin)
            restart.save(folder / RESTART)  # before all other files, so that whatever there is can be resumed
        simulation = Simulation(
            dynamics=dynamics,
            state=restart.state,
            observers=_observers(plan, batch, restart.state),
            failures=restart.failures,
            certain=plan.uncertain if plan.stop_uncertain else None,
            seen=bool(restart.files),  # that of the very start has none yet
        )

        def save(state: State) -> None:
            potential.forget()  # so that what follows is the same after a restart
            files = sizes_of(_written(folder))
            now = replace(restart, state=state, failures=simulation.failures, files=files)
            now.save(folder / RESTART)

        simulation.recorders = [
            (plan.statistics_every, StatisticsWriter(folder / STATISTICS, dynamics)),
            (plan.frame_every, TrajectoryWriter(folder, settings.timestep)),
            *watch,
            (plan.restart_every, save),
            (1, _Clock(progress, settings.timestep, restart.state.step)),
        ]
        outcome = simulation.run(plan.steps, stop)
        if outcome.state.batch.num_systems:
            save(outcome.state)
        _write_summary(folder / SUMMARY, outcome, settings)
        return outcome


def warnings_of(potential: Potential, batch: Batch, settings: DynamicsSettings) -> list[str]:
    """What to know before dynamics with a model that may not conserve energy; empty for others.

    The last line is the drift of the first system, measured over 100 fs without a bath.
    """
    reasons = []
    if potential.direct_forces:
        reasons.append("its forces come from a head of their own and are no gradient of its energy")
    if not potential.smooth:
        reasons.append("its energy is not smooth where an atom crosses the cutoff")
    if not reasons:
        return []
    first = torch.arange(batch.num_systems, device=batch.positions.device) == 0
    steps = max(2, round(SHORT_RUN / settings.timestep))
    try:
        drift = 1000 * float(nve_drift(potential, select(batch, first), settings, steps)[0])
        measured = f"{drift:+.3g} meV/atom/ps"
    except BrokenSystems as broken:
        measured = str(broken)
    return [
        f"warning: this model may not conserve energy: {'; '.join(reasons)}",
        f"energy drift without a bath, over {steps * settings.timestep:g} fs: {measured}",
    ]


class _Clock:
    """Reports progress about once a second."""

    def __init__(self, report: Callable[[Progress], None], timestep: float, step: int) -> None:
        self.report, self.timestep, self.first = report, timestep, step
        self.begin = self.last = time.perf_counter()

    def __call__(self, state: State) -> None:
        now = time.perf_counter()
        if now - self.last < SECOND:
            return
        self.last = now
        speed = (state.step - self.first) * self.timestep * 1e-6 * 86_400 / (now - self.begin)
        found = Progress(
            step=state.step,
            systems=state.batch.num_systems,
            time=state.step * self.timestep / 1000,
            temperature=float(state.temperature.mean()),
            ns_per_day=speed,
        )
        self.report(found)


def _observers(plan: Plan, batch: Batch, state: State) -> list[Observer]:
    """Of the systems that are left; bonds are those of the structures as they were given."""
    observers: list[Observer] = [Finite(), NotTooHot(plan.settings.temperature)]
    if plan.bonds and not bool(batch.pbc.any()):
        everyone = torch.arange(batch.num_systems, device=state.replicas.device)
        observers.append(BondStability(find_bonds(batch)).select(torch.isin(everyone, state.replicas)))
    return observers


def _watch(plan: Plan, potential: Potential) -> list[tuple[int, Recorder]]:
    """The recorder of frames that a committee is not certain of, if it is wanted."""
    if plan.uncertain is None:
        if plan.stop_uncertain:
            raise ValueError("to end uncertain runs say what is uncertain: give the threshold (eV/Å) as well")
        return []
    if len(potential.models) < 2:
        raise ValueError("one model does not know how certain it is: give a committee of two models or more")
    writer = UncertainWriter(plan.folder / UNCERTAIN_FRAMES, plan.settings.timestep, plan.uncertain)
    return [(Simulation.look_every, writer)]


def _require_empty(folder: Path) -> None:
    if (folder / RESTART).exists():
        raise ValueError(f"{folder} has a simulation already: go on with it by --resume, or name another folder")
    left = sorted(path.name for path in (*_written(folder), *folder.glob(SUMMARY)))
    if left:
        raise ValueError(
            f"{folder} has {', '.join(left)} but no {RESTART} to go on from; remove them, or name another folder"
        )


def _written(folder: Path) -> list[Path]:
    """The files in a folder to which a simulation appends."""
    return [path for name in (STATISTICS, "trajectory_*.extxyz", UNCERTAIN_FRAMES) for path in folder.glob(name)]


def _resumed(plan: Plan, origin: dict[str, str], device: torch.device) -> Restart | None:
    """What the restart file says, the other files cut to its time; None where there is none."""
    path = plan.folder / RESTART
    if not path.exists():
        return None
    restart = Restart.load(path, device)
    changed = [
        f"{name} was {value!r}, now {new!r}"
        for (name, value), new in zip(restart.settings, dict(plan.settings).values(), strict=True)
        if value != new
    ]
    if changed:
        raise ValueError(f"{path} is of a simulation with other settings: {'; '.join(changed)}")
    others = [ORIGINS[name] for name, value in origin.items() if restart.origin.get(name) != value]
    if others:
        raise ValueError(
            f"{path} is of another simulation: {others[0]} not those it began with. Give the same structures (file, "
            "--index, --replicas), models and dtype, or name another folder"
        )
    restart.cut_files(plan.folder, _written(plan.folder))
    return restart


def _write_summary(path: Path, outcome: Outcome, settings: DynamicsSettings) -> None:
    summary = {
        "settings": settings.model_dump(mode="json"),
        "step": outcome.state.step,
        "time_ps": outcome.state.step * settings.timestep / 1000,
        "interrupted": outcome.interrupted,
        "stable_replicas": outcome.state.replicas.tolist(),
        "failures": [asdict(failure) for failure in outcome.failures],
    }
    write_json(path, summary)
