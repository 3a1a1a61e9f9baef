"""The stability study: time until simulations become unstable, and the error of their structure.

Simulation-based results of the DeNS paper.  The simulations of all seeds run side by side in one batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from denskit.batch import Batch
from denskit.data.base import collate
from denskit.runtime.progress import Report, unreported
from denskit.runtime.work_folder import WorkFolder
from denskit.simulation.distributions import DistanceHistogram, halves_error, histogram_of
from denskit.simulation.dynamics import Dynamics, State
from denskit.simulation.dynamics.conservation import energy_drift, nve_score
from denskit.simulation.dynamics.loop import Failure, Simulation
from denskit.simulation.dynamics.observers import BondStability, find_bonds
from denskit.simulation.dynamics.restart import load_state, save_state
from denskit.simulation.potential import Potential
from denskit.simulation.stability.protocol import Reference, StudySettings
from denskit.simulation.stability.results import Conservation, Series, Study

CHUNK = 1000  # steps between two saves
NVE_EVERY = 10  # steps between two energies without a thermostat
STATE_FILE = "study.safetensors"


def run_study(
    potential: Potential,
    reference: Reference,
    settings: StudySettings,
    *,
    folder: Path | None = None,
    resume: bool = False,
    progress: Report = unreported,
    stop: Callable[[], bool] = lambda: False,
) -> Study:
    """Simulate a molecule from the first structure of the reference, and compare with the reference.

    ``folder`` keeps ``study.safetensors``, from which ``resume`` continues an interrupted study, or a finished one to a
    larger ``length``; None: nothing is kept.  ``progress`` hears of the simulated ps at every snapshot.  ``stop`` is
    asked before each step whether to end; the study then has the results so far.

    Raises ValueError for a folder with other work or in use, and for elements that the model does not know.
    """
    work = None if folder is None else WorkFolder(folder, "study", STATE_FILE)
    with nullcontext(False) if work is None else work.opened(resume=resume) as continues:
        simulations = _Simulations(potential, reference, settings, work, progress, stop)
        if continues:
            simulations.load()
        interrupted = simulations.run() or simulations.measure_conservation()
    return Study(
        settings=settings,
        simulated=simulations.simulation.state.step * settings.timestep / 1000,
        failures=simulations.simulation.failures,
        series=simulations.series,
        reference=histogram_of(reference.positions),
        structures=len(reference.positions),
        halves=halves_error(reference.positions),
        interrupted=interrupted,
        conservation=simulations.conservation,
    )


class _Simulations:
    """The simulations of a study and their state file."""

    def __init__(
        self,
        potential: Potential,
        reference: Reference,
        settings: StudySettings,
        work: WorkFolder | None,
        progress: Report,
        stop: Callable[[], bool],
    ) -> None:
        self.potential, self.reference, self.settings = potential, reference, settings
        self.work, self.progress, self.stop = work, progress, stop
        start, _ = collate([reference.first] * settings.seeds, torch.float64)
        self.start: Batch = start.to(potential.device)
        self.series = Series(settings=settings, histogram=DistanceHistogram(settings.seeds, potential.device))
        self.conservation: Conservation | None = None
        dynamics = Dynamics(potential, settings.dynamics("nvt"))
        self.bonds = find_bonds(self.start).with_means(self.start, reference.positions)
        self.simulation = Simulation(
            dynamics=dynamics,
            state=dynamics.start(self.start),
            observers=[BondStability(self.bonds)],
            look_every=settings.every,
            recorders=[(settings.every, self._record)],
        )

    def run(self) -> bool:
        """Simulate to the end; whether the simulations were interrupted."""
        total, simulation = self.settings.steps(self.settings.length), self.simulation
        while simulation.state.step < total and simulation.state.batch.num_systems:
            interrupted = simulation.run(min(simulation.state.step + CHUNK, total), self.stop).interrupted
            self._save()
            if interrupted:
                return True
        return False

    def measure_conservation(self) -> bool:
        """Drift and NVE score without a thermostat, unless they are known; whether the simulations were interrupted."""
        settings, length = self.settings, min(self.settings.nve, self.settings.length)
        if not length or (self.conservation is not None and self.conservation.length == length):
            return False
        dynamics = Dynamics(self.potential, settings.dynamics("nve"))
        series: dict[int, list[tuple[float, float, float]]] = {}

        def record(state: State) -> None:
            time = state.step * settings.timestep / 1000
            rows = zip(state.replicas.tolist(), dynamics.conserved(state).tolist(), state.kinetic.tolist(), strict=True)
            for replica, total, kinetic in rows:
                series.setdefault(replica, []).append((time, total, kinetic))
            self.progress(time, f"energy drift, {time:.2f} ps", length)

        steps = max(1, settings.steps(length))
        recorders = [(min(NVE_EVERY, steps), record)]
        simulation = Simulation(
            dynamics=dynamics, state=dynamics.start(self.start), observers=[BondStability(self.bonds)],
            look_every=settings.every, recorders=recorders,
        )  # fmt: skip
        outcome = simulation.run(steps, self.stop)
        if outcome.interrupted:
            return True
        found = [np.array(series[replica]).T for replica in outcome.state.replicas.tolist()]
        n_atoms = int(self.start.n_atoms[0])
        self.conservation = Conservation(
            length=length,
            drift=[energy_drift(time, total, n_atoms) for time, total, _ in found],
            score=[nve_score(time, total, kinetic) for time, total, kinetic in found],
            unstable=settings.seeds - len(found),
        )
        self._save()
        return False

    def load(self) -> None:
        """Continue from the state file."""
        assert self.work is not None
        state, notes, extra = load_state(self.work.marker, self.potential.device)
        self.work.require_same(notes["record"], self._work_record)
        self.series = Series.restored(self.settings, notes, extra["counts"])
        self.conservation = notes["conservation"] and Conservation(**notes["conservation"])
        present = torch.isin(torch.arange(self.settings.seeds, device=state.replicas.device), state.replicas)
        self.simulation.state = state
        self.simulation.observers = [observer.select(present) for observer in self.simulation.observers]
        self.simulation.failures = tuple(Failure(**failure) for failure in notes["failures"])
        self.simulation.seen = True  # the series has the step of the saved state

    def _save(self) -> None:
        if self.work is None:
            return
        notes = {
            "record": self._work_record,
            "failures": [asdict(failure) for failure in self.simulation.failures],
            "conservation": self.conservation and asdict(self.conservation),
            **self.series.notes(),
        }
        save_state(self.work.marker, self.simulation.state, notes, {"counts": self.series.histogram.counts})

    def _record(self, state: State) -> None:
        self.series(state)
        time = state.step * self.settings.timestep / 1000
        self.progress(time, f"stability, {time:.2f} ps", self.settings.length)

    @cached_property
    def _work_record(self) -> dict[str, Any]:
        """Everything that a study depends on but its length: a finished study may be made longer."""
        reference = self.reference.first.atomic_numbers.tobytes() + self.reference.positions.tobytes()
        return {
            "protocol": self.settings.model_dump(exclude={"length"}),
            "reference": hashlib.sha256(reference).hexdigest(),
            "models": self.potential.weights_sha256(),
            "dtype": str(self.potential.dtype).removeprefix("torch."),
        }
