"""Loss terms, errors, gradients and time since the last row of metrics.csv."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from denskit.tasks.metrics import Metrics


@dataclass
class RunningTotals:
    """Sums over steps and all processes."""

    terms: Tensor  # [2, number of terms] float64: sums and counts
    metrics: Metrics  # of predictions in training, on atoms that were not corrupted
    gradient: Tensor  # [4] float64: steps, sum of the norms of their gradients, the largest, steps that were clipped
    steps: int = 0
    skipped: int = 0  # steps in which float16 overflowed; they count in no sum
    seconds: float = 0.0
    waiting: float = 0.0  # s of these that a step waited for its batch
    untimed: int = 0  # steps that the seconds leave out

    @classmethod
    def empty(cls, num_terms: int, device: torch.device) -> RunningTotals:
        """Totals of no step."""
        terms = torch.zeros(2, num_terms, dtype=torch.float64, device=device)
        return cls(terms=terms, metrics=Metrics(device), gradient=terms.new_zeros(4))

    def add(self, terms: Tensor, metrics: Metrics, norm: Tensor, clip_norm: float | None) -> None:
        """Add a step with its loss terms [2, number of terms], its errors, and the norm [] of its gradient."""
        self.terms += terms
        self.metrics += metrics
        clipped = norm > (torch.inf if clip_norm is None else clip_norm)
        self.gradient += torch.stack([torch.ones_like(norm), norm, torch.zeros_like(norm), clipped])
        self.gradient[2] = torch.maximum(self.gradient[2], norm)
        self.steps += 1

    def skip(self) -> None:
        """Count a step that changed no weights."""
        self.steps += 1
        self.skipped += 1

    def time(self, seconds: float, waiting: float, *, first: bool) -> None:
        """Count the time of the step that was added, and how much of it passed until its batch was there.

        The time of a process's first step tells nothing of the others.
        """
        if first:
            self.untimed += 1
        else:
            self.seconds += seconds
            self.waiting += waiting

    def state(self) -> dict[str, Any]:
        """All of it, for a checkpoint."""
        return {**vars(self), "metrics": self.metrics.state}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned; an empty one changes nothing."""
        for name, value in state.items():
            own = getattr(self, name)
            if name == "metrics":
                self.metrics.state.copy_(value)
            elif isinstance(own, Tensor):
                own.copy_(value)
            else:
                setattr(self, name, value)

    def summary(self, weights: Mapping[str, float], batch_size: int) -> dict[str, float]:
        """Columns of a row; ``weights`` of the loss terms by name.  No speed before a second step."""
        timed = self.steps - self.untimed
        speed = {
            "step_ms": 1000 * self.seconds / timed,
            "samples_per_s": batch_size * timed / self.seconds,
            "waiting_share": self.waiting / self.seconds,
        } if timed else {}  # fmt: skip
        if self.steps == self.skipped:
            return speed
        sums, counts = self.terms
        means = dict(zip(weights, (sums / counts.clamp(min=1)).tolist(), strict=True))
        return {
            "train_loss": sum(weights[name] * mean for name, mean in means.items()),
            **{f"train_loss_{name}": mean for name, mean in means.items()},
            **{f"train_{name}": value for name, value in self.metrics.summary().items()},
            **self._gradient(),
            **speed,
        }

    def _gradient(self) -> dict[str, float]:
        steps, total, largest, clipped = self.gradient.tolist()
        if steps == 0:
            return {}
        return {"gradient_norm": total / steps, "gradient_norm_max": largest, "gradient_clipped": clipped / steps}
