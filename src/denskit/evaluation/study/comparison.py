"""A table of finished runs: runs that differ only in the seed are averaged."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from denskit.evaluation.study.config import short
from denskit.evaluation.study.data import of_other_structures
from denskit.evaluation.study.results import Found, Results, tabulate
from denskit.evaluation.study.running import seconds_of_run
from denskit.files import sha256_of, short_names
from denskit.models.config import MEASURED
from denskit.models.model_file import read_header
from denskit.settings import dotted
from denskit.training.load_config import load_config
from denskit.training.overview import errors_of
from denskit.training.run_folder import FRAMES, RunFolder, model_file

_NOT_COMPARED = (  # settings that do not change what is learned
    "seed", "output", "device", "deterministic", "data.split.seed", "data.split.file",
    *(f"model.{name}" for name in MEASURED),
    *(f"training.{name}" for name in (
        "activation_checkpointing", "checkpoint_every", "cuda_graphs", "edge_chunk", "evaluate_batch_size", "kernels",
        "loader_threads", "log_every", "prefetch", "shard",
    )),
)  # fmt: skip
_PARTS = ("data.train", "data.valid", "data.test")
_SEED = re.compile(r"[_-]seed[_-]?\d+$")  # at the end of a folder's name
_LONGEST = 60  # letters of a name made of settings


def compare_runs(runs: Sequence[str | os.PathLike[str]]) -> Results:
    """Errors of runs, each a folder or NAME=FOLDER; runs of one name or with the same settings are seeds of a variant.

    Judged by the errors that studies or ``denskit evaluate`` wrote, where all runs have some; else by the validation
    errors of the model that each run kept.  Raises FileNotFoundError where a folder is no run, ValueError for one run.
    """
    if len(runs) < 2:
        told = f"one run was given ({os.fspath(runs[0])})" if runs else "no run was given"
        raise ValueError(f"{told}; give two or more folders to compare")
    parted = [run.partition("=") if isinstance(run, str) and "=" in run else ("", "", os.fspath(run)) for run in runs]
    given, folders = [name for name, _, _ in parted], [Path(folder) for _, _, folder in parted]
    for folder in folders:
        if not RunFolder(folder).config.is_file():
            raise FileNotFoundError(f"{folder}: no run folder (it has no config.yaml)")
    settings = [_settings_of(folder) for folder in folders]
    names = _names(given, settings, folders)
    measured = [errors_of(RunFolder(folder)) for folder in folders]
    tested = all(measured)
    found: list[Found] = []
    for name, own, folder, test_errors in zip(names, settings, folders, measured, strict=True):
        other = next((run.folder for run in found if (run.variant, run.seed) == (name, own["seed"])), None)
        if other is not None:
            raise ValueError(f"{other} and {folder} have the same settings and seed; give names: NAME=FOLDER")
        header = read_header(model_file(folder))
        errors = test_errors if tested else {"validation": header["metadata"]["validation"]}
        if not any(errors.values()):
            raise ValueError(
                f"{folder}: no errors of its model are kept, since it was not judged at its last step; first: denskit "
                f"evaluate {shlex.quote(str(folder))}, and the same for the other runs"
            )
        found.append(
            Found(
                variant=name, values={}, seed=own["seed"], errors=errors, seconds=seconds_of_run(folder),
                parameters=header["parameters"], folder=folder,
            )
        )  # fmt: skip
    unlike = of_other_structures(found, "test" if tested else "valid")
    return replace(tabulate(f"{len(runs)} runs", found, list(dict.fromkeys(names))), warning=unlike)


def _names(given: Sequence[str], settings: Sequence[Mapping[str, Any]], folders: Sequence[Path]) -> list[str]:
    """The given names, else the settings in which a run differs from the others; where these are many, folders.

    Runs that differ in nothing but the seed have one name, that of the first's folder without its seed where it is a
    folder's.
    """
    described = [_differences(own, settings, folder) for own, folder in zip(settings, folders, strict=True)]
    if max(map(len, described)) > _LONGEST:
        first = {text: folder for text, folder in reversed(list(zip(described, folders, strict=True)))}
        names = short_names(list(first.values()))
        bare = [_SEED.sub("", name) for name in names]
        called = dict(zip(first, bare if len(set(bare)) == len(bare) and all(bare) else names, strict=True))
        described = [called[text] for text in described]
    return [own or text for own, text in zip(given, described, strict=True)]


def _differences(own: Mapping[str, Any], settings: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """The settings in which a run differs from the others; its folder where it repeats another."""
    different = [
        key
        for key, value in own.items()
        if key not in _NOT_COMPARED and any(other.get(key, value) != value for other in settings)
    ]
    if different:
        return ", ".join(f"{key.removesuffix('.name')}={short(own[key])}" for key in different)
    seeds = [other["seed"] for other in settings]  # nothing else differs
    return folder.name if len(set(seeds)) < len(seeds) else f"task={short(own['task.name'])}"


def _settings_of(folder: Path) -> dict[str, Any]:
    """All settings of a run, and the number of training structures where its split is in a file."""
    settings = dict(dotted(load_config(folder).document()))
    for part in _PARTS:  # of frames in memory each run has a copy of its own: alike where the content is
        if settings.get(part) is not None and (file := Path(str(settings[part]))).parent.name == FRAMES:
            settings[part] = sha256_of(file)[:12] if file.is_file() else str(file)
    if settings.get("data.split.file") is not None and (splits := RunFolder(folder).divided()) is not None:
        settings["data.split.train"] = len(splits.train)
    return settings
