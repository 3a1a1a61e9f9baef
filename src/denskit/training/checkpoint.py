"""The state of a training, saved so that it can continue from any step bit for bit.

A checkpoint has no random state: the order of the data, the corruption and dropout are functions of the seed and the
step.  :mod:`denskit.reading.torch_files` reads it, which runs no code of a pickle.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from denskit.files import NO_ROOM, atomic_write
from denskit.reading.budget import naming
from denskit.reading.torch_files import read_torch
from denskit.settings import ON_RESUME, marked
from denskit.training.settings import RunConfig

FORMAT_VERSION = 3
MAY_CHANGE = marked(RunConfig, ON_RESUME)  # when a run is resumed, whatever its model and task


def may_change(config: RunConfig) -> frozenset[str]:
    """Dotted keys of the settings that may differ when a run is resumed, also those of its model and task alone."""
    sections = ((name, getattr(config, name)) for name in ("model", "task"))
    return MAY_CHANGE.union(f"{name}.{key}" for name, own in sections for key in marked(type(own), ON_RESUME))


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A training after ``step`` steps."""

    step: int
    weights: dict[str, Tensor]  # state of the force field, its scaling included
    optimizer: dict[str, Any]
    average: list[Tensor] | None  # of the weights, where it is on
    best: float | None  # smallest validation MAE so far, meV/Å or meV
    seconds: float  # of training so far
    num_train: int  # training structures
    num_processes: int
    config: dict[str, Any]  # of the run, as JSON
    loss_scale: dict[str, Any]  # of float16; empty without
    window: dict[str, Any]  # sums since the last row of metrics.csv
    inputs: dict[str, str]  # content of the training's files, by setting
    scaling: dict[str, Any]  # of the force field
    unjudged: bool  # the validation after this step, and its row of metrics.csv, are still to come
    failure: str  # why the training failed, by the errors of the last row


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace a checkpoint atomically.  Raises ValueError when it cannot be written (a full disk)."""
    content = {**vars(checkpoint), "config": json.dumps(checkpoint.config), "format_version": FORMAT_VERSION}
    buffer = io.BytesIO()
    torch.save(content, buffer)
    try:
        with atomic_write(path) as temporary:
            temporary.write_bytes(buffer.getvalue())
    except OSError as error:
        raise cannot_write(path, checkpoint.step, error) from error


def cannot_write(path: Path, step: int, error: OSError) -> ValueError:
    """The error for a file of a run that could not be written; an earlier file is intact."""
    kept = "the file written before is intact; " if path.exists() else ""
    return ValueError(
        f"step {step}: {path} could not be written ({error.strerror or error}); {kept}"
        "make room and continue with --resume"
    )


@contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Turn the system's error about a full disk into ValueError with advice."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise ValueError(
            f"{folder}: writing failed ({error.strerror}); checkpoints written before are intact. "
            "Make room and continue with --resume"
        ) from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint, onto the CPU.  Raises FileNotFoundError; ValueError for a damaged or foreign file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not found, so there is nothing to resume")
    with naming(path, "is no checkpoint of a Denskit run"):
        content = read_torch(path)
        version = content.pop("format_version")
        if version == FORMAT_VERSION:
            return Checkpoint(**{**content, "config": dict(json.loads(content["config"]))})
    raise ValueError(
        f"{path}: has format version {version}, this Denskit reads {FORMAT_VERSION}; go on with that which wrote it"
    )
