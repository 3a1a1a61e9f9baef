"""A table of runs that are there, whoever made them: those that differ only in the seed are averaged."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from denskit.evaluation.study.config import dotted
from denskit.evaluation.study.results import Found, Results, tabulate
from denskit.models.model_file import read_header
from denskit.training.load_config import load_config
from denskit.training.run_folder import RunFolder, model_file

_NOT_COMPARED = ("seed", "output", "device", "data.split.seed", "data.split.file", "training.log_every")


def compare_runs(runs: Sequence[str]) -> Results:
    """Errors of runs, each a folder or NAME=FOLDER; runs of one name or with the same settings are seeds of a variant.

    Judged by result.json or test.json, where all runs have one (``denskit evaluate``); else by the validation errors
    of the model that each run kept.  Raises FileNotFoundError for what is no run, ValueError for fewer than two.
    """
    if len(runs) < 2:
        raise ValueError(f"{len(runs)} runs given; give two or more folders to compare")
    folders = [Path(run.partition("=")[2] or run) for run in runs]
    for folder in folders:
        if not RunFolder(folder).config.is_file():
            raise FileNotFoundError(f"{folder}: no run folder (it has no config.yaml)")
    settings = [dict(dotted(load_config(folder).document())) for folder in folders]
    names = [_name(run, own, settings, folder) for run, own, folder in zip(runs, settings, folders, strict=True)]
    by = "test" if all(_tested(folder) for folder in folders) else "validation"
    found = [
        Found(
            variant=name, point="", values={}, seed=own["seed"], errors=_errors(folder, by),
            seconds=_seconds(RunFolder(folder).metrics), parameters=read_header(model_file(folder))["parameters"],
            folder=folder,
        )
        for name, own, folder in zip(names, settings, folders, strict=True)
    ]  # fmt: skip
    _check_seeds(found)
    return tabulate(f"{len(runs)} runs, {by} errors", found, list(dict.fromkeys(names)), [("", {})])


def _name(run: str, own: Mapping[str, Any], settings: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """The given name, else the settings in which the run differs from the others, else the folder's name."""
    given, equals, _ = run.partition("=")
    if equals:
        return given
    shared = set.intersection(*(set(other) for other in settings))
    keys = [key for key in own if key in shared and key not in _NOT_COMPARED]
    different = [key for key in keys if any(other[key] != own[key] for other in settings)]
    return ", ".join(f"{key.removesuffix('.name')}={_short(own[key])}" for key in different) or folder.name


def _short(value: Any) -> str:
    return Path(value).stem if isinstance(value, str) and "/" in value else str(value)


def _check_seeds(found: Sequence[Found]) -> None:
    seen: dict[tuple[str, int], Path] = {}
    for run in found:
        other = seen.setdefault((run.variant, run.seed), run.folder)
        if other != run.folder:
            raise ValueError(
                f"{other} and {run.folder} have the same settings and seed {run.seed}; name them to compare them: "
                "NAME=FOLDER"
            )


def _tested(folder: Path) -> bool:
    return (folder / "result.json").is_file() or (folder / "test.json").is_file()


def _errors(folder: Path, by: str) -> dict[str, dict[str, float]]:
    if by == "validation":
        return {"validation": read_header(model_file(folder))["metadata"]["validation"]}
    if (folder / "result.json").is_file():
        errors: dict[str, dict[str, float]] = json.loads((folder / "result.json").read_text("utf-8"))["errors"]
        return errors
    return {"test": json.loads((folder / "test.json").read_text("utf-8"))}


def _seconds(metrics: Path) -> float:
    with metrics.open(newline="") as stream:
        return float(list(csv.DictReader(stream))[-1]["seconds"])
