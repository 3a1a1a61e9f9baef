"""Molecular dynamics into a folder: trajectories, statistics, a restart file, a summary."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from signal import SIGINT
from typing import Any, cast

import ase
import ase.io
import numpy as np
import torch
from torch import Tensor

from denskit.batch import Batch, select
from denskit.data.frames import frames_of
from denskit.data.periodicity import MAY_CLOSE, has_vacuum, is_boxed
from denskit.data.readers.formats import TRAJECTORIES, UNCERTAIN
from denskit.files import write_json
from denskit.models.model_file import Model
from denskit.runtime.interrupt import Interrupt
from denskit.runtime.progress import Report, counted, unreported
from denskit.runtime.warning import warn
from denskit.runtime.work_folder import WorkFolder
from denskit.simulation.dynamics.barostat import SOFTEST
from denskit.simulation.dynamics.conservation import nve_drift
from denskit.simulation.dynamics.integrators import BrokenSystems, Dynamics, State
from denskit.simulation.dynamics.loop import Outcome, Recorder, Simulation
from denskit.simulation.dynamics.momenta import free_molecules
from denskit.simulation.dynamics.observers import BondStability, Finite, NotTooHot, Observer, VolumeWithin, find_bonds
from denskit.simulation.dynamics.recorders import StatisticsWriter, TrajectoryWriter, UncertainWriter
from denskit.simulation.dynamics.restart import OF_STRUCTURES, Restart, origin_of
from denskit.simulation.dynamics.settings import DynamicsSettings
from denskit.simulation.potential import Potential, crowding_for, potential_of, reach_of
from denskit.simulation.structures import batch_of, has_own_masses, masses_of, note_of_masses, system_of
from denskit.units import AMU, GPA

LONG_STEP, LIGHT = 1.5, 1.5  # fs for atoms of hydrogen below that mass (u)
SHORT_RUN = 100.0  # fs without a thermostat, to measure the drift of a model that may not conserve energy
SECOND = 1.0  # between progress reports
RESTART, STATISTICS, UNCERTAIN_FRAMES, SUMMARY = (
    "restart.safetensors", "statistics.csv", UNCERTAIN, "summary.json",
)  # fmt: skip

PLAN = (
    "from denskit.simulation.dynamics import DynamicsSettings; from denskit.simulation.dynamics.folder import "
    "DynamicsPlan; DynamicsPlan(settings=DynamicsSettings(temperature=300), steps=10_000, folder='md')"
)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DynamicsPlan:
    """Length and output of a simulation; intervals are in steps.

    Raises TypeError for other settings, ValueError for a number out of range, naming the field.
    """

    settings: DynamicsSettings
    steps: int  # number of the last step
    folder: str | Path
    frame_every: int = 100  # between frames of the trajectories, which get the last step, too
    statistics_every: int = 10  # between lines of the statistics
    restart_every: int = 1000  # between restart files
    bonds: bool = True  # a molecule with a bond changed by more than 0.5 Å ends its simulation
    uncertain: float | None = None  # eV/Å: systems on which a committee disagrees by more are written to a file
    uncertain_every: float = 100.0  # fs at least between such frames of a replica: nearer ones are alike
    uncertain_frames: int = 1000  # at most, of all replicas
    stop_uncertain: bool = False  # and end their simulation

    def __post_init__(self) -> None:
        if not isinstance(self.settings, DynamicsSettings):
            raise TypeError(f"settings: found {type(self.settings).__name__}; wanted DynamicsSettings: {PLAN}")
        least = {"steps": 0, "frame_every": 1, "statistics_every": 1, "restart_every": 1, "uncertain_frames": 1}
        for name, lowest in least.items():
            value = getattr(self, name)
            if not isinstance(value, int | float | np.integer) or not value >= lowest or value % 1:
                raise ValueError(f"{name} is {value!r}; give a whole number of {lowest} or more")
            object.__setattr__(self, name, int(value))
        for name, unit in (("uncertain_every", "fs"), ("uncertain", "eV/Å")):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float | np.number) and value >= 0):
                raise ValueError(f"{name} is {value!r} {unit}; give 0 or more")


def warn_or_log(text: str) -> None:
    """Warnings as warnings of Python, all else to the logger ``denskit``."""
    if text.startswith("warning: "):
        warn(text.removeprefix("warning: "))
    else:
        _LOG.info(text)


def molecular_dynamics(
    potential: Potential | Model | Sequence[Model],
    structures: Iterable[ase.Atoms] | ase.Atoms,
    plan: DynamicsPlan,
    *,
    resume: bool = False,
    say: Callable[[str], None] = warn_or_log,
    progress: Report = unreported,
    stop: Callable[[], bool] | None = None,
) -> Outcome:
    """Simulate structures, each independently, in one batch; write everything into ``plan.folder``.

    Files: ``trajectory_<replica>.extxyz``, ``statistics.csv``, ``restart.safetensors``, ``summary.json``, perhaps
    ``uncertain.extxyz``.

    Replica numbers count the structures from 0; masses of their own (isotopes) are used.  ``resume`` continues bit for
    bit from the restart file in the folder; without one, the simulation begins.  ``stop`` is asked before each step
    whether to end; the restart file is then written, too.  Without it the first Ctrl-C (SIGTERM, SIGUSR1) does the
    same, and a second one ends at once.  ``progress`` is called about once a second.  ``say`` gets messages for the
    user; by default warnings are Python's, and all else goes to the logger ``denskit``.

    Raises KeyboardInterrupt after Ctrl-C, SystemExit after the other signals, when the restart file is written;
    TypeError for another plan; ValueError for a folder in use, with other work, with a simulation (without ``resume``)
    or one of other settings or structures; for an unknown element, a constraint other than fixed atoms, a mass that is
    not positive, and a threshold of spread for one model.
    """
    if not isinstance(plan, DynamicsPlan):
        raise TypeError(f"plan: found {type(plan).__name__}; wanted DynamicsPlan: {PLAN}")
    frames = frames_of([structures] if isinstance(structures, ase.Atoms) else structures)
    interrupt = Interrupt(patient=False)
    with nullcontext() if stop is not None else interrupt:
        ends = stop or (lambda: interrupt.signal != 0)
        outcome = _simulated(potential, frames, plan, resume, say, progress, ends)
    if outcome.interrupted and interrupt.signal not in (0, SIGINT):
        raise SystemExit(128 + interrupt.signal)
    if outcome.interrupted and interrupt.signal:
        raise KeyboardInterrupt(f"the state is saved in {plan.folder}; continue with the same call and resume=True")
    return outcome


def _simulated(
    potential: Potential | Model | Sequence[Model],
    structures: Sequence[ase.Atoms],
    plan: DynamicsPlan,
    resume: bool,
    say: Callable[[str], None],
    progress: Report,
    stop: Callable[[], bool],
) -> Outcome:
    folder, settings = Path(plan.folder), plan.settings
    potential = cast(Potential, potential_of(potential, stress=settings.ensemble == "npt"))
    _check_committee(plan, potential)
    batch = batch_of(structures, potential.device)
    masses = torch.from_numpy(np.concatenate(list(map(masses_of, structures, count())))) * AMU
    origin, boxed = origin_of(batch, masses, potential), _boxed(structures, potential)
    dynamics = Dynamics(potential, settings)
    work = WorkFolder(folder, "simulation", RESTART)
    with work.opened(resume=resume, say=say) as continues:
        if continues:
            restart = _resumed(work, plan, origin, batch)
            say(f"continuing from step {restart.state.step} of {folder}")
        else:
            for place, atoms in enumerate(structures if isinstance(potential, Potential) else ()):
                potential.check_structure(system_of(atoms, place))
            for message in [*_notes(structures, potential, settings, boxed), *warnings_of(potential, batch, settings)]:
                say(message)
            state = dynamics.start(batch, masses=masses)
            restart = Restart(state=state, settings=settings, origin=origin, uncertain=_choice(plan))
            for message in _about_pressure(potential, restart.state):
                say(message)
            restart.save(work.marker)
        simulation = Simulation(
            dynamics=dynamics,
            state=restart.state,
            observers=_observers(plan, batch, restart.state, ~batch.pbc.any(1) | boxed),
            failures=restart.failures,
            certain=plan.uncertain if plan.stop_uncertain else None,
            seen=bool(restart.files),  # the restart file of the very start has none
        )

        def save(state: State) -> None:
            potential.forget()  # so that the next steps are the same after a restart
            files = {path.name: path.stat().st_size for path in sorted(_appended(folder))}
            replace(restart, state=state, failures=simulation.failures, files=files).save(work.marker)

        write_frame = TrajectoryWriter(folder, settings.timestep, structures)
        simulation.recorders = [
            (plan.statistics_every, StatisticsWriter(folder / STATISTICS, dynamics)),
            (plan.frame_every, write_frame),
            *_uncertainty_recorders(plan, structures),
            (plan.restart_every, save),
            (1, _Clock(progress, plan, restart.state.step)),
        ]
        outcome = simulation.run(plan.steps, stop)
        if outcome.state.batch.num_systems:
            save(outcome.state)
            last = write_frame.last
            if last is None and outcome.state.step == restart.state.step:  # nothing was left to do
                last = _last_frame(folder)
            if not outcome.interrupted and last != outcome.state.step:
                write_frame(outcome.state)  # the restart file does not count it: a longer simulation cuts it off
        models = {"models": potential.files, "weights_sha256": origin["models"]}
        _write_summary(folder / SUMMARY, outcome, settings, models)
        return outcome


def warnings_of(potential: Potential, batch: Batch, settings: DynamicsSettings) -> list[str]:
    """Warnings about a model that may not conserve energy; empty for other models.

    They have the drift of the first system over 100 fs without a thermostat.
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
        f"warning: this model may not conserve energy: {'; '.join(reasons)} (energy drift without a bath, over "
        f"{steps * settings.timestep:g} fs: {measured})",
    ]


class _Clock:
    """Reports progress about once a second."""

    def __init__(self, report: Report, plan: DynamicsPlan, step: int) -> None:
        self.report, self.plan, self.first = report, plan, step
        self.begin = self.last = time.perf_counter()

    def __call__(self, state: State) -> None:
        now, timestep = time.perf_counter(), self.plan.settings.timestep
        if now - self.last < SECOND:
            return
        self.last = now
        speed = (state.step - self.first) * timestep * 1e-6 * 86_400 / (now - self.begin)
        text = f"{state.step * timestep / 1000:.3f} ps, {speed:.3g} ns/day x {state.batch.num_systems}"
        self.report(state.step, f"{text}, {float(state.temperature.mean()):.0f} K", self.plan.steps)


def _notes(
    structures: Sequence[ase.Atoms], potential: Potential, settings: DynamicsSettings, boxed: Tensor
) -> list[str]:
    """Notes about crowded cells, vacuum at constant pressure, a long time step, masses unlike the standard ones, which
    are used, velocities, which are not, and molecules that turn."""
    heavy = sum(map(has_own_masses, structures))
    moving = sum(bool(np.any(atoms.get_momenta())) for atoms in structures)
    costs = {atoms.get_chemical_formula(): crowding_for(potential, atoms) for atoms in structures}
    said = [f"warning: {formula}: {cost}" for formula, cost in costs.items() if cost]
    if settings.ensemble == "npt":
        empty = dict.fromkeys(atoms.get_chemical_formula() for atoms in structures if has_vacuum(system_of(atoms)))
        said += [f"warning: {formula}: {MAY_CLOSE}. Use nvt or langevin" for formula in empty]
    light = any(((atoms.numbers == 1) & (atoms.get_masses() < LIGHT)).any() for atoms in structures)
    if settings.timestep > LONG_STEP and light:
        said.append(
            f"warning: a time step of {settings.timestep:g} fs is long for hydrogen, whose bonds vibrate in about "
            "10 fs; 0.5 to 1 fs is usual"
        )
    if heavy:
        said.append(note_of_masses(heavy))
    if bool(boxed.any()):
        said.append(
            f"note: {counted(int(boxed.sum()), 'replica')} of a molecule alone in a periodic box: bonds are watched as "
            "in free molecules (--no-bonds: in none)"
        )
    if moving:
        said.append(
            f"note: velocities of {counted(moving, 'structure')} are not used; momenta are drawn at the temperature. "
            "ASE's dynamics with DenskitCalculator use those of the structure"
        )
    return said + _about_rotation(settings, batch_of(structures, boxed.device), boxed)


def _about_pressure(potential: Potential, state: State) -> list[str]:
    if state.modulus is None:
        return []
    low, high = (f"{float(value) / GPA:.3g}" for value in (state.modulus.min(), state.modulus.max()))
    span = low if low == high else f"{low} to {high}"
    found = [f"bulk modulus at the start: {span} GPa (sets the rate of the barostat)"]
    if bool((state.modulus <= SOFTEST).any()):
        least = f"{SOFTEST / GPA:.3g} GPa"
        found.append(f"warning: a structure is softer than {least} or unstable at the start; {least} is taken for it")
    if not potential.learned_stress:
        found.append("warning: this model was not trained on stress: its pressure is a derivative of the energy alone")
    return found


def _boxed(structures: Sequence[ase.Atoms], potential: Potential) -> Tensor:
    """Structures [B] that are molecules alone in a periodic box."""
    found = [is_boxed(system_of(atoms), reach_of(potential)) for atoms in structures]
    return torch.tensor(found, device=potential.device)


def _about_rotation(settings: DynamicsSettings, batch: Batch, boxed: Tensor) -> list[str]:
    """A warning of molecules whose rotation a Nosé-Hoover chain keeps apart from their vibrations."""
    turning = boxed | (free_molecules(batch) if settings.rotation else False)
    if settings.ensemble != "nvt" or not bool(turning.any()):
        return []
    boxes = " in a periodic box" if bool(boxed.any()) else ""
    remedy = "make the structure not periodic" if boxes else "start without rotation"
    return [
        f"warning: {counted(int(turning.sum()), 'replica')} of a molecule that turns freely{boxes}: nvt scales all "
        "momenta alike, so the energy of its rotation never reaches its vibrations, which stay hotter or colder than "
        f"the temperature. Use the ensemble langevin, or {remedy}"
    ]


def _observers(plan: DynamicsPlan, batch: Batch, state: State, molecules: Tensor) -> list[Observer]:
    """Observers of the systems that are left; bonds are those of the initial structures of ``molecules`` [B]."""
    observers: list[Observer] = [Finite(), NotTooHot(plan.settings.temperature)]
    left = torch.isin(torch.arange(batch.num_systems, device=state.replicas.device), state.replicas)
    if plan.settings.ensemble == "npt":
        observers.append(VolumeWithin(batch.cell.double().det().abs()).select(left))
    if plan.bonds and bool(molecules.any()):
        observers.append(BondStability(find_bonds(batch).within(molecules)).select(left))
    return observers


def _check_committee(plan: DynamicsPlan, potential: Potential) -> None:
    if plan.uncertain is None and plan.stop_uncertain:
        raise ValueError("to end uncertain systems, give the threshold (eV/Å) as well")
    if plan.uncertain is not None and len(potential.models) < 2:
        raise ValueError("one model does not know how certain it is: give a committee of two models or more")


def _uncertainty_recorders(plan: DynamicsPlan, structures: Sequence[ase.Atoms]) -> list[tuple[int, Recorder]]:
    if plan.uncertain is None:
        return []
    writer = UncertainWriter(
        Path(plan.folder) / UNCERTAIN_FRAMES, plan.settings.timestep, plan.uncertain, apart=plan.uncertain_every,
        most=plan.uncertain_frames, starts=structures,
    )  # fmt: skip
    return [(Simulation.look_every, writer)]


def _appended(folder: Path) -> list[Path]:
    """The files to which a simulation appends."""
    return [path for name in (STATISTICS, TRAJECTORIES, UNCERTAIN_FRAMES) for path in folder.glob(name)]


def _last_frame(folder: Path) -> int | None:
    """Step of the last frame of the trajectories."""
    files = [path for path in folder.glob(TRAJECTORIES) if path.stat().st_size]
    return max((int(cast(ase.Atoms, ase.io.read(path, -1)).info["step"]) for path in files), default=None)


def _resumed(work: WorkFolder, plan: DynamicsPlan, origin: dict[str, str], batch: Batch) -> Restart:
    """The restart file, after a comparison with the plan; other files are cut back to its step."""
    restart = Restart.load(work.marker, batch.positions.device)
    chosen = _choice(plan) or restart.uncertain  # without a threshold no frame is added to those that are there
    before = replace(restart, uncertain=restart.uncertain or chosen).record
    now = replace(restart, settings=plan.settings, origin=origin, uncertain=chosen).record
    if restart.structures != batch.num_systems:  # then all hashes differ, too, and tell nothing
        before, now = ({k: v for k, v in one.items() if k not in (*OF_STRUCTURES, "masses")} for one in (before, now))
        name = "structures (a replica counts as one)"
        before[name], now[name] = restart.structures, batch.num_systems
    turning = bool(free_molecules(batch).any())  # without any the setting has no effect
    work.require_same(before, now, may_change=() if turning else ("rotation",))
    work.cut(_appended(work.path), restart.files)
    return replace(restart, uncertain=chosen)


def _choice(plan: DynamicsPlan) -> dict[str, float]:
    """By what frames of a committee are chosen: all in the file by the same."""
    if plan.uncertain is None:
        return {}
    return {"uncertain": float(plan.uncertain), "uncertain_every": float(plan.uncertain_every)}


def _write_summary(path: Path, outcome: Outcome, settings: DynamicsSettings, models: dict[str, Any]) -> None:
    summary = {
        **models,
        "settings": settings.model_dump(mode="json"),
        "step": outcome.state.step,
        "time_ps": outcome.state.step * settings.timestep / 1000,
        "interrupted": outcome.interrupted,
        "stable_replicas": outcome.state.replicas.tolist(),
        "failures": [asdict(failure) for failure in outcome.failures],
    }
    write_json(path, summary)
