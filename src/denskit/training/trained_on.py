"""How the training data of a model were read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from denskit.data.config import DataConfig
from denskit.data.readers.formats import are_shards, path_of, require_effect
from denskit.data.splits import Splits
from denskit.models.model_file import read_header
from denskit.training.load_config import data_config
from denskit.training.run_folder import folder_of, model_file
from denskit.training.settings import RunConfig

_FIRST = 20  # models of a chain of fine-tunings that are looked at
_SHARDS = ("fixed", "energies", "oc20_ref")  # whose fields have names and units of their own
_FILES = ("energy_key", "forces_key", "stress_key", "stress_unit", "stress_sign", "units")

Reading = Mapping[str, Any] | None  # settings of DataConfig that say how a file is read


def seen_before(config: RunConfig, splits: Splits | None) -> list[str]:
    """A warning where the model that fine-tuning starts from has trained on structures that the run is judged by.

    Looks at the models that it was fine-tuned from in turn, too; other copies of a file are not recognized.
    """
    origin, first = config.training.init_from, ""
    seen: dict[str, set[int]] = {"valid": set(), "test": set()}  # by the part of the run that is judged
    for _ in range(_FIRST if splits is not None else 0):
        if origin is None or not Path(origin).exists():
            break
        folder = folder_of(origin)
        own = folder.divided()
        if splits is not None and own is not None and own.sha256 == splits.sha256:
            seen["valid"].update(own.train.tolist())
            seen["test"].update(own.train.tolist(), own.valid.tolist())  # by which it was chosen
            first = first or str(folder.splits)
        try:
            origin = read_header(model_file(origin))["metadata"].get("run", {}).get("training", {}).get("init_from")
        except (FileNotFoundError, ValueError):
            break
    shared = [(part, getattr(splits, part, np.zeros(0, dtype=int)), numbers) for part, numbers in seen.items()]
    counts = [(part, len(own), len(numbers & set(own.tolist()))) for part, own, numbers in shared]
    listed = " and ".join(f"{count} of the {of} {part} structures" for part, of, count in counts if count)
    if not listed:
        return []
    return [
        f"warning: the model of training.init_from={config.training.init_from} has trained on {listed} (or was chosen "
        f"by them), so errors on them will be too low; data.split.file={first} divides the file as there"
    ]


def reading_as_trained(model: Path, file: str | os.PathLike[str], data: Reading = None) -> DataConfig:
    """Settings to read a file for a model file: units, keys and the like of its training data, changed by ``data``.

    Labels that are absent count in no loss and no error.  Raises ValueError as :func:`reading_of`.
    """
    trained_on = read_header(model)["metadata"].get("run", {}).get("data", {})  # {} where imported
    return reading_like(trained_on, file, data)


def reading_like(trained_on: Mapping[str, Any], file: str | os.PathLike[str], data: Reading = None) -> DataConfig:
    """Settings to read a file beside training data of the settings ``trained_on``, as :func:`reading_as_trained`."""
    path = path_of(os.fspath(file))
    names = _SHARDS if are_shards(path) else ("units",) if path.suffix == ".npz" else _FILES
    return reading_of(data, file, {name: trained_on[name] for name in names if name in trained_on})


def reading_of(
    data: Reading, file: str | os.PathLike[str] | None = None, trained_on: Mapping[str, Any] | None = None
) -> DataConfig:
    """Settings to read a file of structures: those of training, changed by ``data``; labels may be absent.

    Raises ValueError for a setting that does not say how a file is read, such as ``split``, for one that ``file``
    would ignore, and for a wrong value.
    """
    known = (*_FILES, *_SHARDS)
    for name in data or {}:
        if name not in known:
            raise ValueError(f"data.{name} does not say how a file is read; those that do: {', '.join(known)}")
        if name in _SHARDS and file is not None and not are_shards(path_of(os.fspath(file))):
            raise ValueError(f"{os.fspath(file)}: data.{name} is for OC20's and OC22's files; here it would be ignored")
    if data and file is not None:
        require_effect(data_config({"data": dict(data)}), [os.fspath(file)])
    return data_config({"data": {"missing": "mask", **(trained_on or {}), **(data or {})}})
