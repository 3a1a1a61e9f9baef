"""The state of a training, saved so that it can continue from any step bit for bit.

There is no random state in it: the order of the data, the corruption and dropout are functions of the seed and the
step.  The file is read by our own loader (:mod:`denskit.reading.torch_files`), so one from elsewhere can do no harm.
"""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from denskit.files import atomic_write
from denskit.reading.budget import naming
from denskit.reading.torch_files import read_torch
from denskit.settings import ON_RESUME, marked
from denskit.training.settings import RunConfig

FORMAT_VERSION = 3
_READABLE = (1, 2, 3)  # 1 lacks the loss scale, 2 the sums of the current row of metrics.csv
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    loss_scale: dict[str, Any] = field(default_factory=dict)  # of float16; empty without
    window: dict[str, Any] = field(default_factory=dict)  # sums since the last row of metrics.csv
    failure: str = ""  # verdict on the last row of metrics.csv, where the training failed


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically: an earlier file of that name stays whole on any failure.

    Raises ValueError when the file cannot be written (a full disk).
    """
    content = {**vars(checkpoint), "config": json.dumps(checkpoint.config), "format_version": FORMAT_VERSION}
    buffer = io.BytesIO()
    torch.save(content, buffer)
    try:
        with atomic_write(path) as temporary:
            temporary.write_bytes(buffer.getvalue())
    except OSError as error:
        raise cannot_write(path, checkpoint.step, error) from error


def cannot_write(path: Path, step: int, error: OSError) -> ValueError:
    """The error for people when a file of a run could not be written; an earlier one is whole."""
    kept = "the file written before is intact; " if path.exists() else ""
    return ValueError(
        f"step {step}: {path} could not be written ({error.strerror or error}); {kept}"
        "make room and continue with --resume"
    )


@contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Turn the system's error about a full disk into one for people; checkpoints are never half written."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise ValueError(
            f"{folder}: writing failed ({error.strerror}); checkpoints written before are intact. "
            "Make room and continue with --resume"
        ) from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint, onto the CPU.

    Raises FileNotFoundError, and ValueError for a file that is truncated, foreign or of a newer format.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not found, so there is nothing to resume")
    with naming(path, "is no checkpoint of a Denskit run"):
        content = read_torch(path)
        version = content.pop("format_version")
        if version in _READABLE:
            return Checkpoint(**{**content, "config": json.loads(content["config"])})
    raise ValueError(f"{path}: has format version {version}, this Denskit reads up to {FORMAT_VERSION}; update Denskit")


def changed_settings(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings that differ between two configurations, as dotted key -> (saved, now)."""
    old, new = dict(_flat(saved)), dict(_flat(now))
    return {
        key: (old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)
    }


def check_resumable(checkpoint: Checkpoint, config: Mapping[str, Any], num_train: int) -> dict[str, tuple[Any, Any]]:
    """The settings that changed since the checkpoint, all of them allowed to.

    Raises ValueError naming those that are not (another architecture, other data, another task).
    """
    changes = changed_settings(checkpoint.config, config)
    may_change = marked(RunConfig, ON_RESUME) | {"training.step"}  # the last in checkpoints of earlier versions
    wrong = [
        f"{key}: {old} in the checkpoint, {new} now" for key, (old, new) in changes.items() if key not in may_change
    ]
    if checkpoint.num_train != num_train:
        wrong.append(f"training structures: {checkpoint.num_train} in the checkpoint, {num_train} now")
    if wrong:
        listed = "\n  ".join(wrong)
        raise ValueError(
            f"the checkpoint belongs to another run:\n  {listed}\nResume with the settings of the run folder's "
            "config.yaml, or start a new run (training.init_from=... takes over weights)"
        )
    return changes


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value
