"""The simulation study: how long simulations stay stable, and how true their structure is to the reference.

The protocol for molecules of MD17 of Fu et al. (2023), "Forces are not Enough", with which the DeNS paper compares its
models (its table of simulation-based results): Nosé-Hoover at 500 K with 0.5 fs for 300 ps, a frame every 100 steps,
over several seeds, which run here side by side as replicas in one batch.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from denskit.batch import Batch, System
from denskit.data.base import Source, collate
from denskit.simulation.conservation import energy_drift, nve_score
from denskit.simulation.distributions import DistanceHistogram, h_of_r_error, histogram_of
from denskit.simulation.dynamics import Dynamics, DynamicsSettings, State
from denskit.simulation.potential import Potential
from denskit.simulation.saving import load_state, save_state
from denskit.simulation.simulate import Failure, Simulation
from denskit.simulation.stability import BondStability, Finite, NotAlone, NotTooHot, find_bonds, look

Progress = Callable[[str, float, float], None]  # what is simulated, ps done, ps in all
CHUNK = 1000  # steps between two savings
NVE_EVERY = 10  # steps between two energies of the run without a thermostat
STATE_FILE = "study.safetensors"


class StudySettings(BaseModel):
    """The protocol; the defaults are those of MD17 in Fu et al. (2023)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    length: float = Field(300.0, gt=0, description="ps")
    seeds: int = Field(5, ge=1, description="simulations, side by side; they differ in their first momenta")
    seed: int = Field(0, ge=0, description="of all of them")
    temperature: float = Field(500.0, gt=0, description="K")
    timestep: float = Field(0.5, gt=0, description="fs")
    every: int = Field(100, ge=1, description="steps between two frames")
    relaxation_time: float = Field(10.0, gt=0, description="fs, of the thermostat; published: 20 steps")
    nve: float = Field(
        5.0, ge=0, description="ps without a thermostat, at most `length`, for the energy drift; 0: none"
    )

    def steps(self, length: float) -> int:
        """Time steps in so many ps."""
        return round(length * 1000 / self.timestep)

    def dynamics(self, ensemble: str) -> DynamicsSettings:
        """Settings of the integrator: as published one thermostat, not a chain."""
        chosen = self.model_dump(include={"temperature", "timestep", "seed", "relaxation_time"})
        return DynamicsSettings.model_validate({"ensemble": ensemble, "links": 1, **chosen})


@dataclass(frozen=True, kw_only=True)
class Reference:
    """True frames of a molecule, from which bond lengths and h(r) are taken."""

    first: System  # from which simulations start
    positions: np.ndarray  # [F, n, 3] Å

    @classmethod
    def of(cls, frames: Source) -> Reference:
        """From the frames of one molecule; raises ValueError where they are none, or of a periodic system."""
        if not len(frames):
            raise ValueError(f"{frames.name} has no frames; at least one is wanted")
        first = frames[0]
        if first.pbc.any():
            raise ValueError(f"{frames.name} is periodic; bonds and h(r) are compared for molecules only")
        positions = np.empty((len(frames), len(first), 3))
        for place in range(len(frames)):
            system = frames[place]
            if not np.array_equal(system.atomic_numbers, first.atomic_numbers):
                raise ValueError(
                    f"{frames.name}: frame {place} is another molecule than frame 0, or orders its atoms otherwise; "
                    "frames of one molecule are wanted"
                )
            positions[place] = system.positions
        return cls(first=first, positions=positions)


@dataclass(kw_only=True)
class Records:
    """What is kept of S simulations, frame by frame; NaN where one has ended."""

    settings: StudySettings
    histogram: DistanceHistogram
    time: list[float] = field(default_factory=list)  # ps
    temperature: list[list[float]] = field(default_factory=list)  # [frames][S] K
    energy: list[list[float]] = field(default_factory=list)  # [frames][S] eV, potential
    alarms: dict[str, dict[str, float]] = field(default_factory=dict)  # check -> simulation -> ps of its first alarm

    def __call__(self, state: State) -> None:
        """Record a frame of all simulations that are stable."""
        self.histogram.add(state.batch.positions.reshape(state.batch.num_systems, -1, 3), state.replicas)
        self.time.append(state.step * self.settings.timestep / 1000)
        self.temperature.append(self._row(state, state.temperature))
        self.energy.append(self._row(state, state.energy))
        # what MLIPAudit looks at beside the bonds is reported, but ends nothing
        checks = (Finite(), NotTooHot(self.settings.temperature), NotAlone())
        for alarm in look(checks, state.batch, state.temperature):
            replica = str(int(state.replicas[alarm.system]))
            self.alarms.setdefault(alarm.check, {}).setdefault(replica, self.time[-1])

    def notes(self) -> dict[str, Any]:
        """All but the histogram, as JSON can hold it."""
        return {"time": self.time, "temperature": self.temperature, "energy": self.energy, "alarms": self.alarms}

    def _row(self, state: State, values: Tensor) -> list[float]:
        row = np.full(self.settings.seeds, np.nan)
        row[state.replicas.cpu().numpy()] = values.cpu().numpy()
        return row.tolist()


@dataclass(frozen=True, kw_only=True)
class Study:
    """Results; lists are over the simulations."""

    settings: StudySettings
    simulated: float  # ps, how far the simulations that are still stable have come
    failures: tuple[Failure, ...]
    records: Records
    reference: DistanceHistogram
    interrupted: bool
    drift: list[float]  # eV an atom and ps, without a thermostat; empty where it was not measured
    nve_score: list[float]

    @property
    def stability(self) -> list[float]:
        """Ps until a bond broke; the length simulated where none did."""
        ended = {failure.replica: failure.time for failure in self.failures}
        return [ended.get(replica, self.simulated) for replica in range(self.settings.seeds)]

    def h_of_r_errors(self) -> list[float]:
        """Errors of h(r) as published, over the frames before the instability."""
        wanted, found = self.reference.h_of_r(), self.records.histogram
        return [h_of_r_error(found.h_of_r(replica), wanted) for replica in range(self.settings.seeds)]

    def wasserstein(self) -> list[float]:
        """Clipped Wasserstein-1 distances in Å of the same distances."""
        return [self.records.histogram.wasserstein(self.reference, replica) for replica in range(self.settings.seeds)]

    def summary(self) -> dict[str, Any]:
        """All of it as JSON can hold it; each measure with mean, spread and the values of all simulations."""
        measures = {
            "stability_ps": self.stability,
            "h_of_r_error": self.h_of_r_errors(),
            "h_of_r_wasserstein_A": self.wasserstein(),
            "nve_drift_eV_per_atom_ps": self.drift,
            "nve_score": self.nve_score,
        }
        return {
            "protocol": self.settings.model_dump(),
            "simulated_ps": self.simulated,
            **{name: spread(values) for name, values in measures.items() if values},
            "unstable": [asdict(failure) for failure in self.failures],
            "other_alarms_ps": self.records.alarms,
        }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation (n - 1 in the denominator; None for one value) and the values themselves."""
    deviation = statistics.stdev(values) if len(values) > 1 else None  # exactly 0 for equal values
    return {"mean": statistics.fmean(values), "std": deviation, "of": list(values)}


def run_study(
    potential: Potential,
    reference: Reference,
    settings: StudySettings,
    *,
    folder: Path | None = None,
    progress: Progress = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> Study:
    """Simulate a molecule from the reference's first frame, and judge by the reference.

    Args:
        potential: of the model.
        reference: frames of the molecule.
        settings: the protocol.
        folder: where ``study.safetensors`` is kept, from which an interrupted study goes on; None: nothing is kept.
        progress: told at every frame.
        stop: asked before each step whether to end here; the results are then those so far.

    Raises ValueError where the folder holds another study, or where the model does not know an element.
    """
    start, _ = collate([reference.first] * settings.seeds, torch.float64)
    start = start.to(potential.device)
    study = _identity(potential, reference, settings)
    path = folder / STATE_FILE if folder else None
    dynamics = Dynamics(potential, settings.dynamics("nvt"))
    if path and path.is_file():
        state, records, kept = _resumed(path, study, settings, start)
    else:
        state, kept = dynamics.start(start), {"study": study, "failures": [], "drift": [], "nve_score": []}
        records = Records(settings=settings, histogram=DistanceHistogram(settings.seeds, potential.device))
    bonds = BondStability(find_bonds(start).with_means(start, reference.positions))

    def show(now: State) -> None:
        progress("stability", now.step * settings.timestep / 1000, settings.length)

    simulation = Simulation(
        dynamics=dynamics,
        state=state,
        observers=[bonds.select(_present(state, settings.seeds))],
        look_every=settings.every,
        recorders=[(settings.every, records), (settings.every, show)],
    )

    def save() -> None:
        if path:
            save_state(path, simulation.state, kept | records.notes(), {"counts": records.histogram.counts})

    total, interrupted = settings.steps(settings.length), False
    while simulation.state.step < total and simulation.state.batch.num_systems and not interrupted:
        outcome = simulation.run(min(simulation.state.step + CHUNK, total), stop)
        kept["failures"] += [asdict(failure) for failure in outcome.failures]
        interrupted = outcome.interrupted
        save()
    if settings.nve and not interrupted and not kept["drift"]:
        kept |= _conservation(potential, start, settings, progress, stop)
        interrupted = not kept["drift"] and stop()
        save()
    return Study(
        settings=settings,
        simulated=simulation.state.step * settings.timestep / 1000,
        failures=tuple(Failure(**failure) for failure in kept["failures"]),
        records=records,
        reference=histogram_of(reference.positions),
        interrupted=interrupted,
        drift=kept["drift"],
        nve_score=kept["nve_score"],
    )


def _present(state: State, count: int) -> Tensor:
    """Which simulations [S] are still in the state."""
    present = torch.zeros(count, dtype=torch.bool, device=state.replicas.device)
    present[state.replicas] = True
    return present


def _resumed(path: Path, study: str, settings: StudySettings, start: Batch) -> tuple[State, Records, dict[str, Any]]:
    """The saved state, records and other notes of this very study."""
    state, notes, extra = load_state(path, start.positions.device)
    if notes["study"] != study:
        raise ValueError(
            f"{path} is of another study: the model, the reference or the protocol is not the same. "
            "Give another folder, or remove this file to begin anew"
        )
    names = ("time", "temperature", "energy", "alarms")
    records = Records(
        settings=settings,
        histogram=DistanceHistogram(settings.seeds, start.positions.device),
        **{name: notes.pop(name) for name in names},
    )
    records.histogram.counts.copy_(extra["counts"])
    return state, records, notes


def _identity(potential: Potential, reference: Reference, settings: StudySettings) -> str:
    """A hash of all that a study depends on, but its length: a finished one may be made longer."""
    digest = hashlib.sha256(settings.model_dump_json(exclude={"length"}).encode())
    digest.update(reference.first.atomic_numbers.tobytes())
    digest.update(reference.positions.tobytes())
    for model in potential.models:
        for tensor in model.state_dict().values():
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _conservation(
    potential: Potential, start: Batch, settings: StudySettings, progress: Progress, stop: Callable[[], bool]
) -> dict[str, list[float]]:
    """Drift and NVE score of every simulation that survives ``settings.nve`` ps without a thermostat."""
    length = min(settings.nve, settings.length)
    dynamics = Dynamics(potential, settings.dynamics("nve"))
    series: dict[int, list[tuple[float, float, float]]] = {}

    def record(state: State) -> None:
        time = state.step * settings.timestep / 1000
        rows = zip(state.replicas.tolist(), dynamics.conserved(state).tolist(), state.kinetic.tolist(), strict=True)
        for replica, total, kinetic in rows:
            series.setdefault(replica, []).append((time, total, kinetic))
        progress("energy drift", time, length)

    simulation = Simulation(dynamics=dynamics, state=dynamics.start(start), recorders=[(NVE_EVERY, record)])
    outcome = simulation.run(settings.steps(length), stop)
    survivors = [] if outcome.interrupted else outcome.state.replicas.tolist()
    found = [np.array(series[replica]).T for replica in survivors]
    n_atoms = int(start.n_atoms[0])
    return {
        "drift": [energy_drift(time, total, n_atoms) for time, total, _ in found],
        "nve_score": [nve_score(time, total, kinetic) for time, total, kinetic in found],
    }
