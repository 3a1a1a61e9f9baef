"""The simulation study: how long simulations stay stable, and how true their structure is to the reference.

The DeNS paper compares its models with it (its table of simulation-based results).  The simulations of all seeds run
side by side, as replicas in one batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from denskit.batch import Batch
from denskit.data.base import collate
from denskit.files import locked
from denskit.simulation.distributions import DistanceHistogram, histogram_of
from denskit.simulation.dynamics import Dynamics, State
from denskit.simulation.dynamics.conservation import energy_drift, nve_score
from denskit.simulation.dynamics.loop import Failure, Simulation
from denskit.simulation.dynamics.observers import BondStability, find_bonds
from denskit.simulation.dynamics.restart import load_state, save_state
from denskit.simulation.potential import Potential
from denskit.simulation.stability.protocol import Reference, StudySettings
from denskit.simulation.stability.results import Records, Study

Progress = Callable[[str, float, float], None]  # what is simulated, ps done, ps in all
CHUNK = 1000  # steps between two savings
NVE_EVERY = 10  # steps between two energies of the run without a thermostat
STATE_FILE = "study.safetensors"


@dataclass(frozen=True)
class Conservation:
    """How runs without a thermostat conserve energy, of those that survive."""

    length: float  # ps
    drift: list[float]  # eV an atom and ps
    score: list[float]  # MLIPAudit's


@dataclass(frozen=True, kw_only=True)
class _Saved:
    """A study as it is kept in a file."""

    state: State
    records: Records
    failures: tuple[Failure, ...]
    conservation: Conservation | None  # None: not measured yet

    def write(self, path: Path, identity: str) -> None:
        notes = {
            "study": identity,
            "failures": [asdict(failure) for failure in self.failures],
            "conservation": None if self.conservation is None else asdict(self.conservation),
            **self.records.notes(),
        }
        save_state(path, self.state, notes, {"counts": self.records.histogram.counts})

    @classmethod
    def read(cls, path: Path, identity: str, settings: StudySettings, device: torch.device) -> _Saved:
        state, notes, extra = load_state(path, device)
        if notes.get("study") != identity:
            raise ValueError(
                f"{path} is of another study: the model, the reference or the protocol is not the same. "
                "Give another folder, or remove this file to begin anew"
            )
        records = Records.restored(settings, notes, extra["counts"])
        found = notes.get("conservation")
        return cls(
            state=state,
            records=records,
            failures=tuple(Failure(**failure) for failure in notes["failures"]),
            conservation=None if found is None else Conservation(**found),
        )


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

    Raises ValueError where the folder holds another study, another process is at work on this one, or the model does
    not know an element.
    """
    start, _ = collate([reference.first] * settings.seeds, torch.float64)
    start = start.to(potential.device)
    identity = _identity(potential, reference, settings)
    dynamics = Dynamics(potential, settings.dynamics("nvt"))
    path = folder / STATE_FILE if folder else None
    with locked(folder) if folder else nullcontext():
        resumed = path is not None and path.is_file()
        if path and resumed:
            saved = _Saved.read(path, identity, settings, potential.device)
        else:
            records = Records(settings=settings, histogram=DistanceHistogram(settings.seeds, potential.device))
            saved = _Saved(state=dynamics.start(start), records=records, failures=(), conservation=None)
        simulation = _simulation(dynamics, saved, reference, start, settings, progress, resumed)

        def save(conservation: Conservation | None) -> _Saved:
            now = replace(saved, state=simulation.state, failures=simulation.failures, conservation=conservation)
            if path:
                now.write(path, identity)
            return now

        total, interrupted = settings.steps(settings.length), False
        while simulation.state.step < total and simulation.state.batch.num_systems and not interrupted:
            interrupted = simulation.run(min(simulation.state.step + CHUNK, total), stop).interrupted
            saved = save(saved.conservation)
        length = min(settings.nve, settings.length)
        if length and not interrupted and (saved.conservation is None or saved.conservation.length != length):
            conservation = _conservation(potential, start, settings, length, progress, stop)
            interrupted = conservation is None
            saved = save(conservation)
    return Study(
        settings=settings,
        simulated=saved.state.step * settings.timestep / 1000,
        failures=saved.failures,
        records=saved.records,
        reference=histogram_of(reference.positions),
        interrupted=interrupted,
        drift=saved.conservation.drift if saved.conservation else [],
        nve_score=saved.conservation.score if saved.conservation else [],
    )


def _simulation(
    dynamics: Dynamics,
    saved: _Saved,
    reference: Reference,
    start: Batch,
    settings: StudySettings,
    progress: Progress,
    resumed: bool,
) -> Simulation:
    def show(now: State) -> None:
        progress("stability", now.step * settings.timestep / 1000, settings.length)

    bonds = BondStability(find_bonds(start).with_means(start, reference.positions))
    return Simulation(
        dynamics=dynamics,
        state=saved.state,
        observers=[bonds.select(_present(saved.state, settings.seeds))],
        look_every=settings.every,
        recorders=[(settings.every, saved.records), (settings.every, show)],
        failures=saved.failures,
        seen=resumed,  # the frame of the saved state is in the records
    )


def _present(state: State, count: int) -> Tensor:
    """Which simulations [S] are still in the state."""
    present = torch.zeros(count, dtype=torch.bool, device=state.replicas.device)
    present[state.replicas] = True
    return present


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
    potential: Potential,
    start: Batch,
    settings: StudySettings,
    length: float,
    progress: Progress,
    stop: Callable[[], bool],
) -> Conservation | None:
    """Drift and NVE score of every simulation that survives ``length`` ps without a thermostat; None: stopped."""
    dynamics = Dynamics(potential, settings.dynamics("nve"))
    series: dict[int, list[tuple[float, float, float]]] = {}

    def record(state: State) -> None:
        time = state.step * settings.timestep / 1000
        rows = zip(state.replicas.tolist(), dynamics.conserved(state).tolist(), state.kinetic.tolist(), strict=True)
        for replica, total, kinetic in rows:
            series.setdefault(replica, []).append((time, total, kinetic))
        progress("energy drift", time, length)

    steps = max(1, settings.steps(length))
    recorders = [(min(NVE_EVERY, steps), record)]
    outcome = Simulation(dynamics=dynamics, state=dynamics.start(start), recorders=recorders).run(steps, stop)
    if outcome.interrupted:
        return None
    found = [np.array(series[replica]).T for replica in outcome.state.replicas.tolist()]
    n_atoms = int(start.n_atoms[0])
    return Conservation(
        length=length,
        drift=[energy_drift(time, total, n_atoms) for time, total, _ in found],
        score=[nve_score(time, total, kinetic) for time, total, kinetic in found],
    )
