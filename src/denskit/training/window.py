"""What happened over the steps since the last row of metrics.csv."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from denskit.tasks.metrics import Metrics
from denskit.training.distributed import Processes


@dataclass
class Window:
    """Sums over steps: loss terms already over all processes, metrics of this process's share."""

    terms: Tensor  # [2, number of terms] float64: sums and counts
    metrics: Metrics  # of predictions in training, on atoms that were not corrupted
    steps: int = 0
    skipped: int = 0  # of the steps, those that float16 overflowed in; they count in no sum
    seconds: float = 0.0

    @classmethod
    def empty(cls, num_terms: int, device: torch.device) -> Window:
        """The start of a window."""
        return cls(terms=torch.zeros(2, num_terms, dtype=torch.float64, device=device), metrics=Metrics(device))

    def add(self, terms: Tensor, metrics: Metrics) -> None:
        """A step with its loss terms [2, number of terms] and its errors."""
        self.terms += terms
        self.metrics += metrics
        self.steps += 1

    def skip(self) -> None:
        """A step that changed no weights."""
        self.steps += 1
        self.skipped += 1

    def summary(self, weights: Mapping[str, float], batch_size: int, group: Processes) -> dict[str, float]:
        """Columns of a row; ``weights`` of the loss terms by name.  All processes must call this."""
        group.add(self.metrics.state)
        speed = {
            "step_ms": 1000 * self.seconds / self.steps,
            "samples_per_s": batch_size * self.steps / self.seconds,
        }
        if self.steps == self.skipped:
            return speed
        sums, counts = self.terms
        means = dict(zip(weights, (sums / counts.clamp(min=1)).tolist(), strict=True))
        return {
            "train_loss": sum(weights[name] * mean for name, mean in means.items()),
            **{f"train_loss_{name}": mean for name, mean in means.items()},
            **{f"train_{name}": value for name, value in self.metrics.summary().items()},
            **speed,
        }
