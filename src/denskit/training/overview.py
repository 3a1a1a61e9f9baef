"""Run folders: what their files say, their state and progress as listed by `denskit runs`, and their removal."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from denskit.files import locked
from denskit.models.model_file import read_header
from denskit.reading.budget import Unreadable, naming
from denskit.reading.documents import read_json, read_yaml
from denskit.runtime.run_state import STEP, RunState, lines_of, progress_of, state_of
from denskit.training.run_folder import FRAMES, RunFolder


@dataclass(frozen=True, kw_only=True)
class Overview:
    """A run in one line of a table."""

    path: Path
    model: str
    task: str
    data: str
    state: RunState
    step: int  # steps done
    steps: int  # of the whole training; 0 before the first logged step
    validation: Mapping[str, float]  # errors of the model that is kept so far, by metric; empty before there is one
    test: Mapping[str, float]  # errors on the test split; empty before they are measured
    changed: float  # s since the epoch, of the last line in its log


def overview_of(path: str | os.PathLike[str]) -> Overview:
    """The overview of a run.  Raises FileNotFoundError where the folder holds none, ValueError for a damaged one."""
    folder = run_folder(path)
    with naming(folder.config, "does not say what is trained; it is damaged"):
        config: dict[str, Any] = read_yaml(folder.config)
        model, task, data = config["model"]["name"], config["task"]["name"], _data(config["data"])
    step, steps = progress_of(folder.path)
    return Overview(
        path=folder.path, model=model, task=task, data=data,
        state=state_of(folder.path), step=step, steps=steps, validation=_validation(folder),
        test=errors_of(folder).get("test", {}),
        changed=(folder.log if folder.log.is_file() else folder.config).stat().st_mtime,
    )  # fmt: skip


def run_folder(path: str | os.PathLike[str]) -> RunFolder:
    """The run in a folder.  Raises FileNotFoundError where there is none."""
    folder = RunFolder(Path(path))
    if folder.path.is_file():
        raise FileNotFoundError(f"{folder.path} is a file; wanted the folder of a run, such as {folder.path.parent}")
    if not (folder.config.is_file() and folder.environment.is_file()):
        raise FileNotFoundError(
            f"{folder.path} holds no run: it has no config.yaml and environment.json, which a training writes first"
        )
    return folder


def runs_below(top: Path) -> list[Path]:
    """The run folders in a folder and its subfolders, by name.  Raises FileNotFoundError for no folder."""
    if not top.is_dir():
        raise FileNotFoundError(f"no folder {top}; say where your runs are: denskit runs FOLDER")
    found = []
    for place, folders, files in os.walk(top):
        if {"config.yaml", "environment.json"} <= set(files):
            found.append(Path(place))
            folders.clear()  # nothing in a run folder is a run
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(found)


def delete_run(path: str | os.PathLike[str]) -> None:
    """Remove a run folder.

    Raises FileNotFoundError for a folder without a run; ValueError while it trains, and for a folder around the working
    directory.
    """
    folder = run_folder(path).path
    if Path.cwd().is_relative_to(folder.resolve()):
        raise ValueError(f"{folder} is the working directory, or around it; nothing was deleted")
    with locked(folder):
        shutil.rmtree(folder)


def messages_of(folder: RunFolder) -> list[str]:
    """The lines of train.log without times and without the lines of numbers, which metrics.csv has."""
    return [line for line in lines_of(folder.path) if not STEP.match(line)]


def errors_of(folder: RunFolder) -> dict[str, dict[str, float]]:
    """Errors of the model that the run kept, by test: of the study that it belongs to, and of ``denskit evaluate``.

    Both are removed with the model.  Those of the study are preferred: they are measured alike for all its runs.
    Raises Unreadable for a damaged file.
    """
    test, result = folder.path / "test.json", folder.path / "result.json"
    found = {test: {"test": read_json(test)}} if test.is_file() else {}
    if result.is_file():
        with naming(result, "is damaged"):
            found[result] = read_json(result)["errors"]
    for path, errors in found.items():
        if not isinstance(errors, dict) or not all(isinstance(of_test, dict) for of_test in errors.values()):
            raise Unreadable(f"{path} is damaged: it holds no errors by test; remove it, and measure again")
    return {name: of_test for errors in found.values() for name, of_test in errors.items()}


def rows_of(folder: RunFolder) -> list[dict[str, str]]:
    """The rows of metrics.csv as text, without one that is being written; none before the first logged step."""
    if not folder.metrics.is_file():
        return []
    text = folder.metrics.read_bytes().decode("utf-8")
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))  # a full disk may have cut the last row


def metrics_of(folder: RunFolder) -> dict[str, np.ndarray]:
    """Columns of metrics.csv as float64 arrays of one length; empty cells are NaN.

    Raises FileNotFoundError where there is none, ValueError where the file has no rows.
    """
    if not folder.metrics.is_file():
        raise FileNotFoundError(f"{folder.metrics}: not found; a run folder made by `denskit train` holds metrics.csv")
    rows = rows_of(folder)
    if not rows:
        raise ValueError(f"{folder.metrics}: no rows yet; wait for the first logged step")
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}


def _validation(folder: RunFolder) -> dict[str, float]:
    """Validation errors of the model that the run has kept so far; empty where none can be read."""
    try:
        return read_header(folder.model)["metadata"].get("validation") or {}
    except (OSError, ValueError):  # a list of runs must not end at a damaged file
        return {}


def _data(config: Mapping[str, Any]) -> str:
    if config["name"] != "file":
        return " ".join(word for word in (config["name"], config.get("molecule")) if word)
    given = config.get("path") or config.get("train") or "?"
    paths = [
        Path(part if isinstance(part, str) else part["path"]) for part in ([given] if isinstance(given, str) else given)
    ]
    return ", ".join("atoms in memory" if path.parent.name == FRAMES else path.name for path in paths)
