"""Time series of a stability study, and the measures made of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
from torch import Tensor

from denskit.simulation.distributions import DistanceHistogram, h_of_r_error
from denskit.simulation.dynamics import State
from denskit.simulation.dynamics.loop import Failure
from denskit.simulation.dynamics.observers import Finite, NotAlone, NotTooHot, look
from denskit.simulation.stability.protocol import StudySettings

_KEPT = ("time", "temperature", "energy", "alarms")


@dataclass(kw_only=True)
class Series:
    """Time series of S simulations; NaN after a simulation has ended.  Called as a recorder of all stable systems."""

    settings: StudySettings
    histogram: DistanceHistogram
    time: list[float] = field(default_factory=list)  # [T] ps
    temperature: list[list[float]] = field(default_factory=list)  # [T][S] K
    energy: list[list[float]] = field(default_factory=list)  # [T][S] eV, potential
    alarms: dict[str, dict[str, float]] = field(default_factory=dict)  # check -> simulation -> ps of its first alarm

    def __call__(self, state: State) -> None:
        """Record a step."""
        self.histogram.add(state.batch.positions.reshape(state.batch.num_systems, -1, 3), state.replicas)
        self.time.append(state.step * self.settings.timestep / 1000)
        self.temperature.append(self._row(state, state.temperature))
        self.energy.append(self._row(state, state.energy))
        # the other checks of MLIPAudit are reported, but end no simulation
        checks = (Finite(), NotTooHot(self.settings.temperature), NotAlone())
        for alarm in look(checks, state.batch, state.temperature):
            replica = str(int(state.replicas[alarm.system]))
            self.alarms.setdefault(alarm.check, {}).setdefault(replica, self.time[-1])

    def notes(self) -> dict[str, Any]:
        """Everything but the histogram, as JSON."""
        return {name: getattr(self, name) for name in _KEPT}

    @classmethod
    def restored(cls, settings: StudySettings, notes: dict[str, Any], counts: Tensor) -> Self:
        """From :meth:`notes` and the counts of the histogram."""
        histogram = DistanceHistogram(settings.seeds, counts.device)
        histogram.counts.copy_(counts)
        return cls(settings=settings, histogram=histogram, **{name: notes[name] for name in _KEPT})

    def _row(self, state: State, values: Tensor) -> list[float]:
        row = np.full(self.settings.seeds, np.nan)
        row[state.replicas.cpu().numpy()] = values.cpu().numpy()
        return row.tolist()


@dataclass(frozen=True)
class Conservation:
    """Energy conservation of simulations without a thermostat, of those that stay stable."""

    length: float  # ps
    drift: list[float]  # eV an atom and ps
    score: list[float]  # of MLIPAudit
    unstable: int = 0  # simulations left out


@dataclass(frozen=True, kw_only=True)
class Study:
    """Results of a stability study; lists are over the simulations."""

    settings: StudySettings
    simulated: float  # ps reached by the simulations that are still stable
    failures: tuple[Failure, ...]
    series: Series
    reference: DistanceHistogram
    interrupted: bool
    conservation: Conservation | None  # None: not measured
    structures: int = 0  # of the reference
    halves: float = math.nan  # error of h(r) between random halves of the reference

    @property
    def stability(self) -> list[float]:
        """Ps until a bond broke; the simulated length where none did."""
        ended = {failure.replica: failure.time for failure in self.failures}
        return [ended.get(replica, self.simulated) for replica in range(self.settings.seeds)]

    def h_of_r_errors(self) -> list[float]:
        """Published errors of h(r), over the steps before the instability."""
        wanted, found = self.reference.h_of_r(), self.series.histogram
        return [h_of_r_error(found.h_of_r(replica), wanted) for replica in range(self.settings.seeds)]

    def h_of_r_by_chance(self) -> list[float]:
        """The same between the reference and as many independent structures of its own distribution as were recorded.

        An estimate, and too low where snapshots resemble each other.  The error of few samples n and m goes as
        sqrt(1/n + 1/m).
        """
        recorded = np.isfinite(np.array(self.series.temperature).reshape(-1, self.settings.seeds)).sum(0)
        with np.errstate(divide="ignore"):
            return (self.halves * np.sqrt(0.25 + self.structures / (4 * recorded))).tolist()

    def wasserstein(self) -> list[float]:
        """Clipped Wasserstein-1 distances (Å) of the same distributions."""
        return [self.series.histogram.wasserstein(self.reference, replica) for replica in range(self.settings.seeds)]

    def summary(self) -> dict[str, Any]:
        """All results as JSON; each measure with mean, spread and the values of all simulations."""
        measures = {
            "stability_ps": self.stability,
            "h_of_r_error": self.h_of_r_errors(),
            "h_of_r_error_by_chance": self.h_of_r_by_chance(),
            "h_of_r_wasserstein_A": self.wasserstein(),
            "nve_drift_eV_per_atom_ps": self.conservation.drift if self.conservation else [],
            "nve_score": self.conservation.score if self.conservation else [],
        }
        return {
            "protocol": self.settings.model_dump(),
            "simulated_ps": self.simulated,
            "reference_structures": self.structures,
            **{name: spread(values) for name, values in measures.items() if values},
            "unstable": [asdict(failure) for failure in self.failures],
            "other_alarms_ps": self.series.alarms,
        }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation (n - 1 in the denominator; None for one value) and the values themselves.

    Values that are NaN, as of simulations that ended before they were recorded, become None and do not count.
    """
    found = [value for value in values if math.isfinite(value)]
    deviation = statistics.stdev(found) if len(found) > 1 else None  # exactly 0 for equal values
    listed = [value if math.isfinite(value) else None for value in values]
    return {"mean": statistics.fmean(found) if found else None, "std": deviation, "of": listed}
