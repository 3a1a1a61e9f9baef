"""The section of several runs of the same data as a committee."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import spearmanr

from denskit.analysis.committee_plots import calibration_figure
from denskit.analysis.judged import Judged
from denskit.analysis.plots import MEV
from denskit.analysis.report.page import Picture, Section, paragraph
from denskit.analysis.run_results import RunResults


def committee(runs: Sequence[RunResults], title: str = "The runs as a committee") -> Section:
    """Spread of the runs against the error of their mean; without parts where they were judged on other structures."""
    judged = [run.judged for run in runs if isinstance(run.judged, Judged) and run.judged.scored.any()]
    if len(judged) < 2:
        return Section(title, [])
    first = judged[0]
    if any(not np.array_equal(first.index, other.index) for other in judged) or any(
        not np.array_equal(first.all_forces[0], other.all_forces[0], equal_nan=True) for other in judged
    ):
        return Section(title, [paragraph("The runs were judged on different structures: no committee.")])
    forces = np.stack([member.all_forces[1][first.scored] for member in judged])  # [M, n, 3]
    reference = first.all_forces[0][first.scored]
    error = np.linalg.norm(forces.mean(0) - reference, axis=-1)
    spread = np.sqrt(forces.var(0, ddof=1).sum(-1))
    each = [np.abs(member - reference).mean() for member in forces]
    together = np.abs(forces.mean(0) - reference).mean()
    ratio = np.sqrt(np.mean(error**2) / np.mean(spread**2)) if spread.any() else np.nan
    text = (
        f"{len(judged)} runs, judged on the same {len(first):,} frames. Their mean has a force error of "
        f"{MEV * together:.1f} meV/Å; each alone has {MEV * min(each):.1f} to {MEV * max(each):.1f}. The error of an atom is "
        f"{ratio:.1f} times the spread (root mean squares), rank correlation {spearmanr(spread, error).statistic:.2f}: "
        + ("the committee is too sure of itself." if ratio > 1.2 else "the spread is about as large as the error.")
    )
    caption = "A point is an atom. Above the dashed line the error is larger than the committee's spread suggests."
    return Section(
        title, [paragraph(text), Picture(title.lower().replace(" ", "_"), calibration_figure(spread, error), caption)]
    )
