"""States of simulations in files, so that a run can go on: safetensors, which cannot carry code."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from denskit.batch import Batch
from denskit.data.files import atomic_write
from denskit.simulation.dynamics import State

_KEY = "denskit_simulation"


def save_state(path: Path, state: State, notes: dict[str, Any], extra: dict[str, Tensor] | None = None) -> None:
    """Write a state, whatever JSON can hold beside it, and further tensors; whole or not at all."""
    tensors = {f"extra.{name}": value for name, value in (extra or {}).items()}
    for prefix, holder in (("batch", state.batch), ("state", state)):
        for item in fields(holder):
            value = getattr(holder, item.name)
            if isinstance(value, Tensor):
                tensors[f"{prefix}.{item.name}"] = value
    header = json.dumps({"step": state.step, "notes": notes})
    with atomic_write(path) as temporary:
        save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, temporary, {_KEY: header})


def load_state(path: Path, device: torch.device | str = "cpu") -> tuple[State, dict[str, Any], dict[str, Tensor]]:
    """The state, notes and further tensors of a file of :func:`save_state`.

    Raises FileNotFoundError, and ValueError for a file that is none of these.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no saved simulation at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a saved simulation, or it is damaged ({error!r})") from None

    def group(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    state = State(batch=Batch(**group("batch.")), step=int(header["step"]), **group("state."))
    return state, header["notes"], group("extra.")
