"""Running average of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Exponential moving average of parameters: after step n average = d * average + (1 - d) * weights.

    With ``warmup`` d = min(decay, (1 + n) / (10 + n)), so that short trainings are not averaged with the initial
    weights; without, d = decay throughout (published for OC20 and OC22).
    """

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float, *, warmup: bool = True) -> None:
        self.parameters: list[Tensor] = list(parameters)
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self.decay, self.warmup = decay, warmup

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after so many steps."""
        decay = min(self.decay, (1 + step) / (10 + step)) if self.warmup else self.decay
        torch._foreach_lerp_(self.average, self.parameters, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the parameters hold the average; afterwards the weights again, bit for bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state(self) -> list[Tensor]:
        """The averages, in the order of the parameters."""
        return self.average

    @torch.no_grad()
    def load_state(self, state: list[Tensor]) -> None:
        """Take over averages that :meth:`state` gave."""
        for own, other in zip(self.average, state, strict=True):
            own.copy_(other)

    @torch.no_grad()
    def _swap(self) -> None:
        for average, parameter in zip(self.average, self.parameters, strict=True):
            held = average.clone()
            average.copy_(parameter)
            parameter.copy_(held)
