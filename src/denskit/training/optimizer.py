"""AdamW with its two groups of parameters, and the gradients of a step as one vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from denskit.models.base import ForceField
from denskit.training.settings import TrainingConfig


def build_optimizer(force_field: ForceField, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019); parameters that the model names are not decayed.  Fused kernels."""
    exempt = force_field.no_decay_parameters()
    named = [(name, parameter) for name, parameter in force_field.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for name, p in named if name not in exempt], "weight_decay": config.weight_decay},
        {"params": [p for name, p in named if name in exempt], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, amsgrad=config.amsgrad, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all groups."""
    for group in optimizer.param_groups:
        group["lr"] = lr


class Gradients:
    """The gradients of all parameters, each a view into one flat vector.

    So zeroing, the sum over processes and the norm are one operation each, and a parameter that took no part in a step
    has a zero gradient on every process instead of none on some.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
        assert len(kinds) == 1, kinds
        dtype, device = kinds.pop()
        self.flat = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=dtype, device=device)  # [P]
        start = 0
        for parameter in parameters:
            parameter.grad = self.flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()

    def zero(self) -> None:
        """Forget the gradients of the last step; the next backward passes add to zero."""
        self.flat.zero_()

    def clip(self, max_norm: float | None) -> Tensor:
        """The norm [] of the gradient before it is scaled down to ``max_norm`` (None: left as it is)."""
        norm = torch.linalg.vector_norm(self.flat)
        if max_norm is not None:
            self.flat.mul_(max_norm / norm.clamp(min=max_norm))
        return norm
