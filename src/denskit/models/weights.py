"""A force field with weights from a file, checked against its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from denskit.models import build_force_field
from denskit.models.base import ForceField
from denskit.models.config import ModelConfig
from denskit.models.scaling import Scaling
from denskit.reading.budget import Unreadable, naming, require_allowed


def with_weights(
    weights: Mapping[str, Tensor],
    *,
    config: ModelConfig,
    heads: dict[str, str],
    scaling: Scaling,
    path: str | Path,
    dtype: torch.dtype | None = None,
) -> ForceField:
    """A force field in evaluation mode with these settings and the weights of the file ``path``.

    dtype: of the force field; None: torch's default.

    Raises ValueError where weights and settings do not fit, before the settings of a small file allocate a huge model.
    """
    with naming(path, "does not fit its settings"):
        layers: int = getattr(config, "num_layers", 1)
        if layers > len(weights):
            raise ValueError(f"{layers} layers from {len(weights)} tensors")
        try:
            with _Bounded(path), torch.random.fork_rng(devices=[]):  # random weights first, which are replaced
                force_field = build_force_field(config, heads=heads, scaling=scaling)
        except Unreadable as error:
            numbers = sum(tensor.numel() for tensor in weights.values())
            raise Unreadable(
                f"{path} does not fit its settings: it has {len(weights)} tensors of {numbers:,} numbers, and a model "
                f"of these settings has far more. {error}"
            ) from None
        state = force_field.state_dict()
        wanted = {name: list(tensor.shape) for name, tensor in state.items() if not name.startswith("scaling.")}
        if wanted.keys() != weights.keys():
            missing, surplus = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
            raise ValueError(
                f"{len(missing)} tensors are missing and {len(surplus)} left over, first {(missing + surplus)[0]!r}"
            )
        if wrong := [name for name, shape in wanted.items() if list(weights[name].shape) != shape]:
            raise ValueError(
                f"{len(wrong)} tensors have another shape, first {wrong[0]!r}: {list(weights[wrong[0]].shape)}, and "
                f"{wanted[wrong[0]]} by the settings"
            )
        if dtype is not None:
            force_field.to(dtype)
        force_field.load_state_dict(weights, strict=False)
    return force_field.eval()


class _Bounded(TorchFunctionMode):
    """Context in which the tensors that torch allocates may not exceed the allowance of a file."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path, self.size, self.made = path, Path(path).stat().st_size, 0

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):  # reserved memory costs nothing yet
            self.made += out.nbytes
            if self.made > self.size:
                require_allowed(self.made, self.size, self.path)
        return out
