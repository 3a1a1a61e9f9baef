"""The folder of a run: its paths, its checks, its record of settings and environment."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
import yaml

from denskit.files import atomic_write, is_empty, write_json
from denskit.models.model_file import IN_RUNS
from denskit.reading.documents import read_json
from denskit.training.settings import RunConfig

PACKAGES = ("denskit", "torch", "numpy", "ase", "vesin", "pydantic", "safetensors", "omegaconf")


@dataclass(frozen=True)
class RunFolder:
    """Paths inside a run folder."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> Path:
        """Versions, machine, command."""
        return self.path / "environment.json"

    @property
    def splits(self) -> Path:
        """Which frames were used for what."""
        return self.path / "splits.json"

    @property
    def metrics(self) -> Path:
        """One row for each logged step."""
        return self.path / "metrics.csv"

    @property
    def log(self) -> Path:
        """Messages and errors, line by line."""
        return self.path / "train.log"

    @property
    def last(self) -> Path:
        """The state to resume from."""
        return self.path / "checkpoints" / "last.pt"

    @property
    def best_model(self) -> Path:
        """Model file of the best step on validation."""
        return self.path / "checkpoints" / "best.safetensors"

    @property
    def last_model(self) -> Path:
        """Model file of the last step."""
        return self.path / "checkpoints" / "last.safetensors"

    @property
    def model(self) -> Path:
        """The model file that the run is for."""
        return self.path / IN_RUNS

    def check_can_begin(self, *, resume: bool) -> None:
        """Raise ValueError unless a run can begin here: in an empty folder, or with ``resume`` where one was killed
        before its first checkpoint."""
        if is_empty(self.path):
            return
        models = self.model.exists() or self.best_model.exists()
        killed = self.config.is_file() and not self.last.exists() and not models
        if killed and resume:
            return
        if self.last.exists() or killed:
            raise ValueError(
                f"output={self.path} holds a run; continue it with --resume, or give another output=... "
                "(nothing changed)"
            )
        raise ValueError(
            f"output={self.path} is not empty, and there is no checkpoint to resume from; remove it, or give "
            "another output=... (nothing changed)"
        )

    def check_same_data(self, sha256: str) -> None:
        """Raise ValueError if the run in this folder was started on other data than the file with this checksum."""
        if not self.splits.is_file():
            return
        before = read_json(self.splits).get("sha256")
        if before != sha256:
            raise ValueError(
                f"{self.path}: the data file has changed since this run started (sha256 {str(before)[:12]}... then, "
                f"{sha256[:12]}... now); bring it back, or start a new run (training.init_from takes the weights along)"
            )

    def write_start(self, config: RunConfig) -> None:
        """Make the folder and write config.yaml and environment.json."""
        text = yaml.safe_dump(config.document(), sort_keys=False, allow_unicode=True)
        with atomic_write(self.config) as temporary:  # first, since it makes the folder that of a run
            temporary.write_text(text, encoding="utf-8")
        write_json(self.environment, environment())


@cache
def environment() -> dict[str, Any]:
    """Versions, commit, machine, threads, command."""
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
        "platform": platform.platform(),
        "machine": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "cuda": torch.version.cuda,
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The git commit of the source, with ``+changes`` where files differ; None for an installed package."""
    source = Path(__file__).resolve().parents[3]
    if not (source / ".git").exists():
        return None
    try:
        commit = subprocess.run(["git", "-C", source, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        state = subprocess.run(
            ["git", "-C", source, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("+changes" if state.stdout.strip() else "")


def model_file(run_or_model: str | Path, checkpoint: Literal["best", "last"] | None = None) -> Path:
    """The model file that a user means: a file itself, or that of a run folder.

    checkpoint: "best" or "last" of a run folder; None: what the run is for (``training.final``).
    Raises FileNotFoundError where there is none.
    """
    path = Path(run_or_model)
    if path.is_dir():
        folder = RunFolder(path)
        path = {None: folder.model, "best": folder.best_model, "last": folder.last_model}[checkpoint]
    elif checkpoint is not None:
        raise ValueError(f"{path}: checkpoint={checkpoint} chooses a model of a run folder; this is a file")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such model file; give a model file or the folder of a run")
    return path
