"""Files from which simulations go on: safetensors, which cannot carry code."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from denskit.batch import Batch
from denskit.files import atomic_write
from denskit.reading.budget import naming
from denskit.simulation.dynamics.integrators import DynamicsSettings, State
from denskit.simulation.dynamics.loop import Failure

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
    with naming(path, "is not a saved simulation, or it is damaged"):
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118 (not a dict)
        batch = Batch(**_below(tensors, "batch."))
        state = State(batch=batch, step=int(header["step"]), **_below(tensors, "state."))
        return state, header["notes"], _below(tensors, "extra.")


@dataclass(frozen=True, kw_only=True)
class Restart:
    """All that a simulation needs to go on, bit for bit."""

    state: State
    settings: DynamicsSettings
    origin: dict[str, str]  # of :func:`origin_of`: from what, and with which models
    failures: tuple[Failure, ...] = ()
    files: dict[str, int] = field(default_factory=dict)  # bytes of the files written so far, by name

    def save(self, path: Path) -> None:
        """Write, whole or not at all."""
        notes = {
            "settings": self.settings.model_dump(mode="json"),
            "origin": self.origin,
            "failures": [asdict(failure) for failure in self.failures],
            "files": self.files,
        }
        save_state(path, self.state, notes)

    @classmethod
    def load(cls, path: Path, device: str | torch.device = "cpu") -> Restart:
        """Read a restart file; raises FileNotFoundError where there is none, ValueError where it cannot be used."""
        state, notes, _ = load_state(path, device)
        with naming(path, "is no restart file of this Denskit"):
            settings = DynamicsSettings.model_validate(notes["settings"])
            failures = tuple(Failure(**failure) for failure in notes["failures"])
            return cls(state=state, settings=settings, origin=notes["origin"], failures=failures, files=notes["files"])

    def cut_files(self, folder: Path, written: Iterable[Path]) -> None:
        """Cut what was written after the restart file off the ends of the files; remove those begun after it.

        written: the simulation's files that there are in the folder now.

        Raises ValueError for a file that is shorter than it was, or gone.
        """
        for path in written:
            if path.name not in self.files:
                path.unlink()
        for name, size in self.files.items():
            path = folder / name
            found = path.stat().st_size if path.is_file() else 0
            if found < size:
                raise ValueError(f"{path} has {found} bytes, but had {size} when the restart file was written")
            os.truncate(path, size)


def origin_of(batch: Batch, models: Sequence[nn.Module]) -> dict[str, str]:
    """Hashes that tell simulations apart: of each property of the structures they start from, and of the models."""
    names = ("n_atoms", "atomic_numbers", "positions", "cell", "pbc", "fixed")
    origin = {name: hashlib.sha256(_bytes(getattr(batch, name))).hexdigest() for name in names}
    digest = hashlib.sha256()
    for model in models:
        for tensor in model.state_dict().values():
            digest.update(_bytes(tensor))
    return origin | {"models": digest.hexdigest()}


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()


def sizes_of(paths: Iterable[Path]) -> dict[str, int]:
    """Bytes of files, by name."""
    return {path.name: path.stat().st_size for path in sorted(paths)}


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
