"""Judgement of predicted energies above the hull, as Matbench Discovery defines it.

J. Riebesell et al., Nat. Mach. Intell. 7, 836 (2025).  A material is stable where its energy above the hull is at most
0, but for rounding.  A material without a prediction counts as predicted unstable, and in no error of energies.
"""

from __future__ import annotations

import math

import numpy as np

STABLE = 1e-9  # eV/atom: energies above a hull that a material itself is on are zero to rounding


def stability_metrics(reference: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Metrics from energies above the hull [M] in eV/atom; ``predicted`` may be NaN.  NaN: a number is not defined.

    DAF is the precision over the share of stable materials, as if these were drawn at random.
    """
    stable, called = reference <= STABLE, predicted <= STABLE
    right, wrong = int((stable & called).sum()), int((~stable & called).sum())
    missed, refused = int((stable & ~called).sum()), int((~stable & ~called).sum())
    precision, recall = _share(right, right + wrong), _share(right, right + missed)
    error = (predicted - reference)[np.isfinite(predicted)]
    judged = reference[np.isfinite(predicted)]
    spread = float(((judged - judged.mean()) ** 2).sum()) if len(judged) > 1 else 0.0
    return {
        "F1": _share(2 * right, 2 * right + wrong + missed) if right else math.nan,
        "DAF": precision / stable.mean() if stable.any() else math.nan,
        "precision": precision,
        "recall": recall,
        "accuracy": _share(right + refused, len(reference)),
        "false_positive_rate": _share(wrong, wrong + refused),
        "MAE_eV_per_atom": float(np.abs(error).mean()) if len(error) else math.nan,
        "RMSE_eV_per_atom": float(np.sqrt((error**2).mean())) if len(error) else math.nan,
        "R2": 1 - float((error**2).sum()) / spread if spread else math.nan,
        "true_positives": right,
        "false_positives": wrong,
        "true_negatives": refused,
        "false_negatives": missed,
        "without_a_prediction": int((~np.isfinite(predicted)).sum()),
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan
