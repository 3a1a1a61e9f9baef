"""The folder of a training: its files, its beginning, the environment it ran in."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
import yaml

from denskit.data.config import DataConfig, SplitConfig
from denskit.data.splits import Splits
from denskit.files import atomic_write, write_json
from denskit.models.model_file import IN_RUNS, read_header
from denskit.reading.documents import read_json
from denskit.runtime.run_state import LOG
from denskit.runtime.work_folder import WorkFolder
from denskit.settings import require_known
from denskit.training.settings import RunConfig
from denskit.zoo import file_of

PACKAGES = ("denskit", "torch", "numpy", "ase", "vesin", "pydantic", "safetensors", "omegaconf")
FRAMES = "frames"  # subfolder of the frames that were given in memory
_OF_MODEL = (  # results that other verbs wrote
    "test.json", "valid.json", "train.json", "sets.json", "parity.png", "result.json", "denoising.json",
    "denoising.png",
    *(f"{name}_{weights}.json" for name in ("test", "valid", "train", "sets") for weights in ("best", "last")),
    "parity_best.png", "parity_last.png",
)  # fmt: skip


class RunFolder(WorkFolder):
    """Paths inside a run folder, and whether a training may begin or continue there."""

    before_marker = (FRAMES,)

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, "run", "config.yaml")
        self.config = self.marker  # all settings of the run
        self.environment = self.path / "environment.json"  # versions, machine, command
        self.splits = self.path / "splits.json"  # which structures train, validate and test
        self.metrics = self.path / "metrics.csv"  # a row for each logged step
        self.log = self.path / LOG  # for people
        self.last = self.path / "checkpoints" / "last.pt"  # the state to resume from
        self.best_model = self.path / "checkpoints" / "best.safetensors"  # of the best step on validation
        self.last_model = self.path / "checkpoints" / "last.safetensors"
        self.model = self.path / IN_RUNS  # the result of the run

    def frames(self, part: str) -> Path:
        """File of the frames that were given in memory."""
        return self.path / FRAMES / f"{part}.extxyz"

    def divided(self) -> Splits | None:
        """Which structures of one file train, validate and test; None where each part is a file of its own.

        Raises ValueError for a damaged splits.json.
        """
        return Splits.read(self.splits) if self.splits.is_file() else None

    def as_divided(self, data: DataConfig) -> DataConfig:
        """``data`` with the split of the run, which is not drawn again."""
        if not self.splits.is_file():
            return data
        return data.model_copy(update={"split": SplitConfig(file=str(self.splits))})

    def continues(self, *, resume: bool, say: Callable[[str], None] = lambda text: None) -> bool:
        """Whether a checkpoint is there to continue from; False: the training begins.

        Raises ValueError as :meth:`WorkFolder.continues`, and for models without their checkpoint.
        """
        if not super().continues(resume=resume, say=say):
            return False
        if not self.last.exists() and (self.model.exists() or self.best_model.exists()):
            raise ValueError(
                f"{self.path} holds models, but no checkpoint to continue from; remove it, or give another "
                "output=... (nothing changed)"
            )
        return self.last.exists()  # False: killed before the first checkpoint

    def forget_results(self, step: int) -> None:
        """Remove what was measured on the resulting model, where that is of another step than the one that follows."""
        if self.model.is_file() and read_header(self.model)["metadata"].get("step") != step:
            for name in _OF_MODEL:
                (self.path / name).unlink(missing_ok=True)

    def take_best(self) -> None:
        """Make the best model the result of the run, where another one is, or none."""
        if self.best_model.is_file():
            step = read_header(self.best_model)["metadata"]["step"]
            if not self.model.is_file() or read_header(self.model)["metadata"]["step"] != step:
                self.forget_results(step)
                with atomic_write(self.model) as temporary:
                    temporary.write_bytes(self.best_model.read_bytes())

    def last_judged(self, step: int) -> tuple[int, dict[str, float]]:
        """The step and the validation errors of the last model, where it is of that step; else no errors."""
        about = read_header(self.last_model)["metadata"] if self.last_model.is_file() else {}
        return step, about["validation"] if about.get("step") == step else {}

    def best_after(self, step: int) -> dict[str, float]:
        """The validation errors of the best model, where it is of a step after ``step``; else none."""
        about = read_header(self.best_model)["metadata"] if self.best_model.is_file() else {}
        return about["validation"] if about.get("step", 0) > step else {}

    def write_start(self, config: RunConfig) -> None:
        """Write config.yaml and environment.json, which keeps the command that began the run."""
        text = yaml.safe_dump(config.document(), sort_keys=False, allow_unicode=True)
        with atomic_write(self.config) as temporary:  # the marker, so first
            temporary.write_text(text, encoding="utf-8")
        before: dict[str, Any] = {}
        with suppress(ValueError, FileNotFoundError):  # none yet, or damaged, which ends no training
            before = read_json(self.environment)
        began = {"begun_by": before.get("begun_by", before["command"])} if "command" in before else {}
        write_json(self.environment, environment() | began)


def folder_of(run_or_model: str | os.PathLike[str]) -> RunFolder:
    """The run folder of a model, also where its model file is given; there need not be one."""
    path = Path(run_or_model)
    if path.is_file():
        path = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    return RunFolder(path)


@cache
def environment() -> dict[str, Any]:
    """Versions, commit, machine, threads and command: all that a run depends on besides its settings."""
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "commit": _commit(),
        "platform": platform.platform(),
        "machine": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "cuda": torch.version.cuda,
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def version_of(package: str) -> str | None:
    """The version of an installed package; None where there is none."""
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


def model_file(run_or_model: str | os.PathLike[str], checkpoint: Literal["best", "last"] | None = None) -> Path:
    """The path of a model file, given itself, by its run folder, or by the name of a shipped one (``zoo:NAME``).

    checkpoint: "best" or "last" of a run folder; None: the result of the run (``training.final``).
    Raises FileNotFoundError, and ValueError for a checkpoint of a file.
    """
    path = file_of(run_or_model)
    if checkpoint is not None:
        require_known("checkpoint", checkpoint, ("best", "last"))
    if path.is_dir():
        folder = RunFolder(path)
        path = {None: folder.model, "best": folder.best_model, "last": folder.last_model}[checkpoint]
        if folder.config.is_file() and not path.is_file():
            raise FileNotFoundError(
                f"{folder.path}: the run has no {path.relative_to(folder.path)} yet: it still trains, or was stopped "
                f"before its first validation. To go on: denskit train {shlex.quote(str(folder.path))} --resume"
            )
    elif checkpoint is not None:
        raise ValueError(f"{path}: checkpoint={checkpoint} chooses a model of a run folder; this is a file")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such model file; give a model file or the folder of a run")
    return path
