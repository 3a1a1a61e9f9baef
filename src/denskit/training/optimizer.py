"""AdamW, the gradients of a step as one vector, the running average of the weights, mixed precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from denskit.models.base import ForceField
from denskit.runtime.processes import Processes
from denskit.training.loader import divide
from denskit.training.parts import depths, is_frozen, parts_of
from denskit.training.settings import TrainingConfig

_DTYPES = {"none": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_CHUNK = 25 * 2**20  # bytes of gradients that are summed over processes at once
_SMALLEST_SCALE = 2.0**-10  # of a loss: below it, overflow is not the cause of infinite gradients


def build_optimizer(force_field: ForceField, config: TrainingConfig, *, sharded: bool = False) -> torch.optim.Optimizer:
    """Fused AdamW (Loshchilov and Hutter 2019); no weight decay for the parameters that the model names.

    Nor for tables of elements in frozen parts, where it would move the rows that get no gradient.  ``sharded``: each
    process holds the moments of a share of the parameters and updates these (Rajbhandari et al. 2020, stage 1).  With
    ``layer_decay`` the learning rate is lower the farther a part is from the heads (Howard and Ruder 2018).
    """
    exempt, depth, parts = force_field.no_decay_parameters(), depths(force_field), parts_of(force_field)
    exempt |= {name for name, part in parts.items() if is_frozen(part, config.frozen)}
    chosen: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in force_field.named_parameters():
        if parameter.requires_grad:
            chosen.setdefault((config.layer_decay ** depth[name], name in exempt), []).append(parameter)
    groups = [
        {"params": parameters, "weight_decay": 0.0 if bare else config.weight_decay, "share": share}
        for (share, bare), parameters in sorted(chosen.items(), key=lambda item: item[0][1])
    ]
    settings: dict[str, Any] = {
        "lr": config.lr, "betas": config.betas, "eps": config.adam_epsilon, "amsgrad": config.amsgrad, "fused": True
    }  # fmt: skip
    if sharded:
        # here, since the import is slow and shows a warning of torch's
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(groups, torch.optim.AdamW, **settings)
    return torch.optim.AdamW(groups, **settings)


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of an optimizer, of a sharded one on the first process alone (else empty); all processes call this."""
    if isinstance(optimizer, torch.optim.AdamW):
        return optimizer.state_dict()
    optimizer.consolidate_state_dict(to=0)  # type: ignore[attr-defined]  # a ZeroRedundancyOptimizer
    return optimizer.state_dict() if torch.distributed.get_rank() == 0 else {}


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Restore a state that :func:`optimizer_state` returned."""
    optimizer.load_state_dict(state)
    own = getattr(optimizer, "optim", optimizer)  # of a ZeroRedundancyOptimizer the one that holds this process's share
    for parameter, values in own.state.items():
        # it moves the numbers of steps to the CPU, and fused AdamW wants them beside the parameter
        values |= {name: value.to(parameter.device) for name, value in values.items() if torch.is_tensor(value)}


def learning_rates_in_words(optimizer: torch.optim.Optimizer, config: TrainingConfig) -> list[str]:
    """A message where parts of the model learn more slowly than others."""
    if config.layer_decay == 1:
        return []
    least = min(group["share"] for group in optimizer.param_groups)
    return [
        f"learning rates: {config.lr:g} of the heads, falling to {config.lr * least:.3g} of the first part that is "
        f"trained (training.layer_decay={config.layer_decay:g})"
    ]


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate: of each group its share of it."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["share"]


class Gradients:
    """The gradients of all parameters, each a view into one flat vector.

    Zeroing and the norm are one operation each, and a parameter without a gradient in a step has zeros on every
    process.  The sum over processes is taken in chunks; the chunk of the last parameters, whose gradients come first,
    is summed while the backward pass goes on.
    """

    def __init__(self, parameters: list[nn.Parameter], group: Processes | None = None) -> None:
        kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
        assert len(kinds) == 1, kinds
        dtype, device = kinds.pop()
        self.flat = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=dtype, device=device)  # [P]
        self.complete = False  # after the backward pass that comes next
        self._group = group
        self._chunks: list[Tensor] = []  # of the flat vector, from its end
        self._members: list[int] = []  # parameters of each chunk
        start = end = len(self.flat)
        held = 0
        for parameter in reversed(parameters):
            start, held = start - parameter.numel(), held + 1
            parameter.grad = self.flat[start : start + parameter.numel()].view_as(parameter)
            if group is not None and group.count > 1:
                parameter.register_post_accumulate_grad_hook(self._arrived(len(self._chunks)))
            if (end - start) * dtype.itemsize >= _CHUNK or start == 0:
                self._chunks.append(self.flat[start:end])
                self._members.append(held)
                end, held = start, 0
        self.zero()

    def zero(self) -> None:
        """Set all gradients to zero."""
        self.flat.zero_()
        self.complete = False
        self._missing = list(self._members)  # gradients of each chunk that are still to come
        self._sums: list[Callable[[], None]] = []  # that have begun, in the order of the chunks

    def add(self) -> None:
        """Sum the gradients over the processes, after the last backward pass of the step."""
        if self._group is not None:
            while len(self._sums) < len(self._chunks):
                self._begin()
            for end in self._sums:
                end()

    def _arrived(self, chunk: int) -> Callable[[Tensor], None]:
        """A hook that counts the gradients of a chunk and begins sums, in the same order on all processes."""

        def arrived(parameter: Tensor) -> None:
            if self.complete:
                self._missing[chunk] -= 1
                while len(self._sums) < len(self._chunks) and self._missing[len(self._sums)] == 0:
                    self._begin()

        return arrived

    def _begin(self) -> None:
        assert self._group is not None
        self._sums.append(self._group.begin_to_add(self._chunks[len(self._sums)]))

    def clip(self, max_norm: float | None) -> Tensor:
        """Norm [] of the gradient before clipping to ``max_norm`` (None: no clipping)."""
        norm = torch.linalg.vector_norm(self.flat)
        if max_norm is not None:
            self.flat.mul_(max_norm / norm.clamp(min=max_norm))
        return norm


class WeightAverage:
    """Exponential moving average of parameters: after step n average = d * average + (1 - d) * weights.

    With ``warmup`` d = min(decay, (1 + n) / (10 + n)), so that short trainings are not averaged with the initial
    weights; without, d = decay throughout (published for OC20 and OC22).
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], decay: float, *, warmup: bool = True, shares: Processes | None = None
    ) -> None:
        self.parameters: list[Tensor] = list(parameters)
        # each process holds the average of its share of the parameters
        self.shares = shares or Processes(rank=0, count=1, device=self.parameters[0].device)
        sizes = np.array([parameter.numel() for parameter in self.parameters])
        self._held = divide(sizes, self.shares.count)  # places in the parameters, of each process
        self._own = [self.parameters[place] for place in self._held[self.shares.rank]]
        self.average = [parameter.detach().clone() for parameter in self._own]
        self.decay, self.warmup = decay, warmup

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after ``step`` steps to the average."""
        decay = min(self.decay, (1 + step) / (10 + step)) if self.warmup else self.decay
        torch._foreach_lerp_(self.average, self._own, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context: the parameters hold the average; afterwards the weights again, bit for bit.

        With shares all processes enter it.
        """
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state(self) -> list[Tensor]:
        """The averages, in the order of the parameters; with shares all processes call this."""
        with self.applied():
            return [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def load_state(self, state: list[Tensor]) -> None:
        """Restore averages that :meth:`state` returned."""
        for own, place in zip(self.average, self._held[self.shares.rank], strict=True):
            own.copy_(state[place])

    @torch.no_grad()
    def _swap(self) -> None:
        for average, parameter in zip(self.average, self._own, strict=True):
            held = average.clone()
            average.copy_(parameter)
            parameter.copy_(held)
        for rank, places in enumerate(self._held):
            self.shares.copy_from(rank, [self.parameters[place] for place in places])


class Precision:
    """Automatic mixed precision: matmuls in half precision, weights, sums and the loss in float32.

    bfloat16 has float32's range.  float16 has not: the loss is multiplied by a scale before the backward pass and the
    gradients divided by it afterwards (Micikevicius et al. 2018).  Where they overflow nevertheless, the step is
    skipped and the scale halved; after 2000 steps without overflow the scale is doubled.

    ``tf32``: float32 matmuls in TF32 on CUDA devices.
    """

    def __init__(self, amp: Literal["none", "bf16", "fp16"], device: torch.device, *, tf32: bool = False) -> None:
        self.tf32 = tf32 and device.type == "cuda"
        self.device, self.dtype, self.enabled = device.type, _DTYPES[amp], amp != "none"
        self.scaler = torch.amp.GradScaler(device.type, enabled=amp == "fp16")
        if self.scaler.is_enabled():
            self.scaler.scale(torch.zeros(1, device=device))  # makes the scale, also on a process without work

    def autocast(self) -> torch.autocast:
        """Context: matmuls in half precision, if enabled."""
        return torch.autocast(self.device, dtype=self.dtype, enabled=self.enabled)

    @contextmanager
    def products(self) -> Iterator[None]:
        """Context: float32 matmuls, those of derivatives included, in TF32, if enabled."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.tf32 else before)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss [], scaled until :meth:`unscale`."""
        self.scaler.scale(loss).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of all micro-batches and processes by the loss scale; before clipping."""
        self.scaler.unscale_(optimizer)

    def skips(self, norm: Tensor) -> bool:
        """Whether a step with this gradient norm [] is to be skipped; then the loss scale is lowered.

        False for float32 and bfloat16, and where the scale has become so small that it cannot be the cause.
        """
        if not self.scaler.is_enabled():
            return False
        small = self.scaler.get_scale() < _SMALLEST_SCALE
        self.scaler.update()
        return not bool(torch.isfinite(norm)) and not small

    def state(self) -> dict[str, Any]:
        """The loss scale and its history; empty without float16."""
        return self.scaler.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        if state:
            self.scaler.load_state_dict(state)
