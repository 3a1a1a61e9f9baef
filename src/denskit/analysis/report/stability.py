"""Reports of the folders of ``denskit stability``: the measures, h(r) and the time series of the simulations."""

from __future__ import annotations

from pathlib import Path

from denskit.analysis.report.page import Part, Picture, Section, listed, paragraph, table
from denskit.analysis.report.simulation import models_in_words
from denskit.analysis.run_results import RunResults
from denskit.analysis.simulation_plots import stability_figure
from denskit.files import sha256_of
from denskit.simulation.stability.folder import HEADER, SUMMARY, StudyFiles

OF_RUNS = "stability"  # folder in that of a run
_CAPTION = (
    "Left: density of all interatomic distances beside the reference. Then temperature and potential energy of each "
    "simulation, with a running mean where there are many snapshots; a cross where it became unstable."
)


def is_stability(path: Path) -> bool:
    """Whether ``denskit stability`` wrote the folder."""
    return (path / SUMMARY).is_file()


def stability(path: Path, model: Path | None = None) -> Section:
    """Measures, ends and pictures of simulations; ``model``: the file that they should be of."""
    found = StudyFiles.read(path)
    protocol = found.summary["protocol"]
    told = (
        f"{found.summary['simulated_ps']:g} of {protocol['length']:g} ps, {found.seeds} simulations at "
        f"{protocol['temperature']:g} K with steps of {protocol['timestep']:g} fs; "
        f"{len(found.failures)} became unstable.{models_in_words(found.summary)}"
    )
    if model is not None and found.summary.get("model_sha256") not in (None, sha256_of(model)):
        told += " These simulations are of another model than the one that the run has now."
    parts: list[Part] = [paragraph(told), table(HEADER, found.rows())]
    if found.remark:
        parts.append(paragraph(f"{found.remark}."))
    if found.failures:
        parts.append(listed(map(str, found.failures)))
    parts.append(Picture("stability", stability_figure(found), _CAPTION))
    return Section("Stability of simulations", parts)


def stability_of(run: RunResults) -> Section:
    """That of the run's own folder; without parts where there is none."""
    folder = run.path / OF_RUNS
    return stability(folder, run.folder.model) if is_stability(folder) and run.header else Section("", [])
