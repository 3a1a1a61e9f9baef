"""Means over seeds, and differences paired by seed with their confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its parts are loaded when they are used

CONFIDENCE = 0.95  # of the intervals
_MOST_DECIMALS = 3
_ROUNDING = 1e-9  # standard errors of equal values


@dataclass(frozen=True)
class Mean:
    """Mean of several seeds and its standard error (NaN for one seed)."""

    value: float
    error: float
    count: int


@dataclass(frozen=True)
class Difference:
    """Paired difference to the reference, in per cent of the reference's mean; significant where 0 is outside."""

    percent: float
    low: float  # of the confidence interval; NaN for one pair
    high: float
    pairs: int


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and standard error of independent repetitions."""
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return Mean(float(np.mean(values)), error, len(values))


def decimals(means: Iterable[Mean]) -> int:
    """Decimals, one to three, that show a digit of each standard error; three where a mean is below 1."""
    needed = 1
    for mean in means:
        if abs(mean.value) < 1:
            return _MOST_DECIMALS
        if mean.error > _ROUNDING:
            needed = max(needed, math.ceil(-math.log10(mean.error)))
    return min(needed, _MOST_DECIMALS)


def difference(values: Mapping[int, float], reference: Mapping[int, float], floor: float = 0.0) -> Difference | None:
    """Difference paired by seed, by Student's t distribution, relative to the mean of the reference's common seeds.

    None without a common seed, and where the reference is not above ``floor``.
    """
    seeds = sorted(values.keys() & reference.keys())
    if not seeds:
        return None
    mean = abs(float(np.mean([reference[seed] for seed in seeds])))
    if mean <= floor:
        return None
    pairs = np.array([values[seed] - reference[seed] for seed in seeds])
    scale = 100 / mean
    middle = float(pairs.mean())
    if len(seeds) < 2:
        return Difference(scale * middle, float("nan"), float("nan"), 1)
    half = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, len(seeds) - 1) * pairs.std(ddof=1) / np.sqrt(len(seeds)))
    return Difference(scale * middle, scale * (middle - half), scale * (middle + half), len(seeds))
