"""The section of several runs of the same data as a committee."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import scipy  # its parts are loaded when they are used

from denskit.analysis.error_plots import calibration_figure
from denskit.analysis.judged import Judged
from denskit.analysis.plots import MEV
from denskit.analysis.report.page import Picture, Section, paragraph
from denskit.analysis.run_results import RunResults

_TOO_SURE = 1.2  # error over spread
_CAPTION = "A point is an atom. Above the dashed line the error is larger than the spread."


def committee(runs: Sequence[RunResults], title: str = "The runs as a committee") -> Section:
    """Spread of the runs against the error of their mean; without parts for fewer than two runs with force labels."""
    members = [run.judged for run in runs if isinstance(run.judged, Judged) and run.judged.forces is not None]
    if len(members) < 2:
        return Section(title, [])
    members = shared(members)
    if not members:
        return Section(title, [paragraph("No structure was judged by all runs: no committee.")])
    scored = members[0].scored
    reference = members[0].all_forces[0][scored]
    forces = np.stack([member.all_forces[1][scored] for member in members])  # [M, n, 3]
    error = np.linalg.norm(forces.mean(0) - reference, axis=-1)
    spread = np.sqrt(forces.var(0, ddof=1).sum(-1))
    if not spread.any():
        return Section(title, [paragraph("The runs predict the same forces: no committee.")])
    text = (
        f"{len(members)} runs on {len(members[0]):,} frames that none was trained on. {_in_words(forces, reference)} "
    )
    ratio = np.sqrt(np.mean(error**2) / np.mean(spread**2))
    verdict = (
        "it is too sure of itself" if ratio > _TOO_SURE else "its spread is about as large as its error, or larger"
    )
    text += (
        f"The committee's error is {ratio:.1f} times its spread (root mean squares over atoms), their rank correlation "
        f"is {scipy.stats.spearmanr(spread, error).statistic:.2f}: {verdict}."
    )
    name = title.lower().replace(" ", "_")
    return Section(title, [paragraph(text), Picture(name, calibration_figure(spread, error), _CAPTION)])


def shared(members: Sequence[Judged]) -> list[Judged]:
    """The members on the structures that all have; empty where there is none, or their positions differ."""
    common = reduce(np.intersect1d, [member.index for member in members])
    if not len(common):
        return []
    taken = [member.take(np.searchsorted(member.index, common)) for member in members]
    first = taken[0].positions
    alike = all(other.positions.shape == first.shape and np.allclose(other.positions, first) for other in taken)
    return taken if alike else []


def _in_words(forces: np.ndarray, reference: np.ndarray) -> str:
    each = [MEV * np.abs(member - reference).mean() for member in forces]
    together = MEV * np.abs(forces.mean(0) - reference).mean()
    return f"Force error of their mean {together:.1f} meV/Å, of each alone {min(each):.1f} to {max(each):.1f}."
