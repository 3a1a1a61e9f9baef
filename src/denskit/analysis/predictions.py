"""Predictions of a run or a model file beside the labels."""

from __future__ import annotations

from pathlib import Path

from denskit.analysis.judged import Judged, judge
from denskit.evaluation.evaluate import Kept, Models, load_predictor, source_of
from denskit.training.reading_settings import Reading


def predictions_of(
    model: Models,
    file: str | Path | None = None,
    *,
    checkpoint: Kept | None = None,
    device: str = "auto",
    data: Reading = None,
) -> Judged:
    """Predict at most 1000 structures of ``file``, else of a run's test split; ``data`` as :func:`evaluate` takes it.

    Raises FileNotFoundError where there is no model, ValueError where a run has no test split.
    """
    return judge(load_predictor(model, checkpoint, device), source_of(model, file, "test", data))
