"""The section of the learning curves."""

from __future__ import annotations

from collections.abc import Sequence

from denskit.analysis.plots import curves_figure
from denskit.analysis.report.page import Picture, Section, paragraph
from denskit.analysis.run_results import RunResults

_CAPTION = (
    "Mean absolute errors over the training: validation with dots, training as thin lines. With DeNS part of the "
    "training structures are corrupted, which makes the training errors larger, that of the energy above all."
)


def curves(runs: Sequence[RunResults]) -> Section:
    """Errors of one or several runs over the training."""
    logged = {run.name: run.columns for run in runs if len(run.columns["step"])}
    if not logged:
        return Section("Learning curves", [paragraph("No step is logged yet.")])
    return Section("Learning curves", [Picture("learning_curves", curves_figure(logged), _CAPTION)])
