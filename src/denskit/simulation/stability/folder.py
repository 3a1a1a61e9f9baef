"""The files of a stability study: its measures as JSON, the data of its plots as CSV."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from denskit.files import atomic_write, write_json
from denskit.reading.budget import naming
from denskit.reading.documents import read_json
from denskit.runtime.progress import counted
from denskit.simulation.distributions import EDGES
from denskit.simulation.dynamics.loop import Failure
from denskit.simulation.stability.results import Study

SUMMARY, SERIES, CURVES = "stability.json", "series.csv", "h_of_r.csv"
MOSTLY = 1.5  # error of h(r) over that of chance, below which it tells little of the model
HEADER = ("measure", "mean", "spread", "of each simulation")  # of the rows of a table
# measure of the summary: name, format, factor
_MEASURES: dict[str, tuple[str, str, float]] = {
    "stability_ps": ("stability (ps)", "{:.4g}", 1.0),
    "h_of_r_error": ("h(r) error", "{:.3f}", 1.0),
    "h_of_r_error_by_chance": ("by chance, about", "{:.3f}", 1.0),
    "h_of_r_wasserstein_A": ("h(r) Wasserstein-1 (Å)", "{:.4f}", 1.0),
    "nve_drift_eV_per_atom_ps": ("NVE drift (meV/atom/ps)", "{:+.4f}", 1000.0),
    "nve_score": ("NVE score", "{:.4f}", 1.0),
}


@dataclass(frozen=True)
class StudyFiles:
    """The results in a folder of ``denskit stability``."""

    summary: dict[str, Any]  # of Study.summary
    # time_ps, temperature_K_0, ..., energy_eV_0, ...: a value a snapshot, NaN after an end
    series: dict[str, np.ndarray]
    curves: dict[str, np.ndarray]  # r_A, reference, simulation_0, ...: h(r) in 1/Å at the middle of each bin

    @classmethod
    def of(cls, study: Study) -> Self:
        """Of results in memory."""
        records, seeds = study.series, range(study.settings.seeds)
        series = {"time_ps": np.array(records.time)}
        for name, values in (("temperature_K", records.temperature), ("energy_eV", records.energy)):
            columns = np.array(values).reshape(len(records.time), len(seeds)).T
            series |= {f"{name}_{seed}": columns[seed] for seed in seeds}
        curves = {"r_A": (EDGES[1:] + EDGES[:-1]) / 2, "reference": study.reference.h_of_r()}
        curves |= {f"simulation_{seed}": records.histogram.h_of_r(seed) for seed in seeds}
        return cls(study.summary(), series, curves)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Of a folder.  Raises FileNotFoundError for a file that is absent, ValueError for a damaged one."""
        return cls(read_json(folder / SUMMARY), _columns(folder / SERIES), _columns(folder / CURVES))

    def write(self, folder: Path) -> None:
        """Write the files."""
        write_json(folder / SUMMARY, self.summary)
        for name, columns in ((SERIES, self.series), (CURVES, self.curves)):
            with atomic_write(folder / name) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])

    @property
    def seeds(self) -> int:
        """The number of simulations."""
        return int(self.summary["protocol"]["seeds"])

    @property
    def failures(self) -> list[Failure]:
        """The simulations that became unstable."""
        return [Failure(**failure) for failure in self.summary["unstable"]]

    def of_each(self, name: str) -> np.ndarray:
        """A quantity of ``series`` [T, S], such as "energy_eV"."""
        return np.stack([self.series[f"{name}_{seed}"] for seed in range(self.seeds)], axis=-1)

    @property
    def remark(self) -> str:
        """A sentence where the error of h(r) is mostly that of few samples; empty where not, or not known."""
        error, chance = (self.summary.get(name, {}).get("mean") for name in ("h_of_r_error", "h_of_r_error_by_chance"))
        if error is None or chance is None or error > MOSTLY * chance:
            return ""
        structures = counted(self.summary["reference_structures"], "reference structure")
        return (
            f"The h(r) error of {error:.3f} says little: as many structures of the reference's own distribution would "
            f"have about {chance:.3f}. Compare with more than {structures} (a FILE), and simulate longer (--time)"
        )

    def rows(self) -> list[list[str]]:
        """The measures as cells of a table under ``HEADER``."""
        measures = [(self.summary[name], *how) for name, how in _MEASURES.items() if name in self.summary]
        return [
            [
                label,
                _cell(found["mean"], form, factor),
                _cell(found["std"], form.replace("+", ""), factor),
                ", ".join(_cell(value, form, factor) for value in found["of"]),
            ]
            for found, label, form, factor in measures
        ]


def _cell(value: float | None, form: str, factor: float) -> str:
    """A number, or "-" where there is none."""
    return "-" if value is None else form.format(factor * value)


def _columns(path: Path) -> dict[str, np.ndarray]:
    with naming(path, "is no table of a stability study"), path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
        return dict(zip(header, np.array(rows, dtype=np.float64).reshape(len(rows), len(header)).T, strict=True))
