"""The length of a training: set by a time budget, and corrected while it runs."""

from __future__ import annotations

import time
from typing import Any

from denskit.training.settings import LENGTHS, RunConfig, parse_budget

_EVERY, _OFF = 0.1, 0.05  # of the time: between looks at the length, what it may be wrong by


def lasting(config: RunConfig, length: dict[str, Any]) -> RunConfig:
    """The run with another length of its training, and perhaps of its warm-up."""
    training = config.training.model_dump() | dict.fromkeys(LENGTHS) | length
    return config.model_copy(update={"training": type(config.training).model_validate(training)})


class TimeBudget:
    """A time budget (``training.budget``) of which ``spent`` seconds were over before the first step."""

    def __init__(self, text: str, spent: float = 0.0) -> None:
        self.text = text
        budget = parse_budget(text)
        # a long trial, which compiled kernels, leaves a short budget half of its time
        self._left = budget - min(spent, budget / 2)  # s
        self._looked = self._end = 0.0  # by time.monotonic
        self._step = 0  # where it was looked at last

    def begin(self) -> None:
        """The first step comes now."""
        self._looked = time.monotonic()
        self._end = self._looked + self._left

    def steps_that_fit(self, step: int, total: int) -> int:
        """Steps of the whole training that fit at the speed since the last look, after each tenth of the time.

        ``step``: steps done.  ``total``: steps planned, which stay where they are right within 5 %.
        """
        now = time.monotonic()
        if now - self._looked < _EVERY * self._left:
            return total
        seconds = (now - self._looked) / (step - self._step)  # a step
        self._looked, self._step = now, step
        if abs(now + seconds * (total - step) - self._end) < _OFF * self._left:
            return total
        return max(step + 1, step + int((self._end - now) / seconds))
