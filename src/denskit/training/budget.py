"""The length of a training: set by a time budget, and corrected while it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from denskit.training.settings import RunConfig, parse_budget

LENGTHS = ("epochs", "max_steps", "budget")
_FIRST, _OFF = 0.1, 0.05  # of the budget: when the length is first looked at, what it may be wrong by


def lasting(config: RunConfig, length: dict[str, Any]) -> RunConfig:
    """The run with another length of its training."""
    training = config.training.model_dump() | dict.fromkeys(LENGTHS) | length
    return config.model_copy(update={"training": type(config.training).model_validate(training)})


@dataclass(frozen=True)
class TimeBudget:
    """A time budget (``training.budget``) of which ``spent`` seconds were over before the first step."""

    text: str
    spent: float = 0.0

    def steps_that_fit(self, step: int, total: int, since: float) -> int:
        """Steps of the whole training by the speed so far; ``total`` as long as that is within 5 % of the budget.

        Args:
            step: steps done.
            total: steps planned.
            since: when the first step began, by :func:`time.monotonic`.
        """
        budget, now = parse_budget(self.text), time.monotonic() - since
        # a long trial, which compiled kernels, leaves a short budget half of its time
        whole = budget - min(self.spent, budget / 2)
        if now < _FIRST * whole or abs(now * total / step - whole) < _OFF * whole:
            return total
        return max(step + 1, int(step * whole / now))
