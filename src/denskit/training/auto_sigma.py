"""``task.sigma=auto``: the size of the noise from the training structures."""

from __future__ import annotations

import numpy as np

from denskit.data.base import Source, evenly
from denskit.data.inspection.nearest import REACH, nearest_of
from denskit.tasks import DeNSConfig
from denskit.training.settings import RunConfig

SHARE = 0.045  # of the median distance to the nearest atom: 0.05 Å for organic molecules, as published for MD17
RANGE = (0.025, 0.15)  # Å, smallest and largest sigma of the paper
SAMPLE = 64  # training structures


def fit_sigma_to_data(config: RunConfig, source: Source) -> tuple[RunConfig, list[str]]:
    """The run with a number for ``task.sigma``, and how it was found, for the log.

    A rule, not an optimum: ``SHARE`` of the median distance from an atom to its nearest one, over all atoms of at most
    ``SAMPLE`` evenly spaced training structures, kept in ``RANGE`` and rounded to 0.001 Å.
    Raises ValueError where no atom has another one near.
    """
    task = config.task
    if not isinstance(task, DeNSConfig) or task.sigma != "auto":
        return config, []
    distance = nearest_of(evenly(source, SAMPLE)).distance
    distance = distance[np.isfinite(distance)]
    if not distance.size:
        raise ValueError(
            f"task.sigma=auto: in {source.name} no atom has another one within {REACH:g} Å; give sigma as a number in Å"
        )
    median = float(np.median(distance))
    sigma = round(float(np.clip(SHARE * median, *RANGE)), 3)
    message = (
        f"task.sigma=auto: sigma = {sigma:g} Å, {SHARE:g} of the median distance to the nearest atom, {median:.3f} Å, "
        f"kept between {RANGE[0]:g} and {RANGE[1]:g} Å"
    )
    return config.model_copy(update={"task": task.model_copy(update={"sigma": sigma})}), [message]
