"""Settings to read a file of structures as the training data of a model were read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from denskit.data.config import DataConfig
from denskit.data.readers.formats import LABEL_KEYS, are_shards, files_in, path_of, require_effect
from denskit.models.model_file import run_settings
from denskit.training.load_config import data_config

_SHARDS = ("fixed", "energies", "oc20_ref")  # whose fields have names and units of their own
_FILES = (*LABEL_KEYS, "stress_unit", "stress_sign", "units", "forces_unit")

Reading = Mapping[str, Any] | None  # settings of DataConfig that say how a file is read


def reading_as_trained(model: Path, file: str | os.PathLike[str], data: Reading = None) -> DataConfig:
    """Settings to read a file for a model file, as its training data were read, changed by ``data``.

    Labels that are absent count in no loss and no error.  Raises ValueError as :func:`reading_of`.
    """
    return reading_like(run_settings(model).get("data", {}), file, data)


def reading_like(trained_on: Mapping[str, Any], file: str | os.PathLike[str], data: Reading = None) -> DataConfig:
    """Settings to read a file beside training data of the settings ``trained_on``, as :func:`reading_as_trained`."""
    path = path_of(os.fspath(file))
    npz = any(file.suffix.lower() == ".npz" for file in files_in(path) or [path])
    names = _SHARDS if are_shards(path) else ("units", "forces_unit") if npz else _FILES
    return reading_of(data, file, {name: trained_on[name] for name in names if name in trained_on})


def reading_of(
    data: Reading, file: str | os.PathLike[str] | None = None, trained_on: Mapping[str, Any] | None = None
) -> DataConfig:
    """Settings to read a file of structures: those of training, changed by ``data``; labels may be absent.

    Raises ValueError for settings that do not say how a file is read, or that ``file`` would ignore, and wrong values.
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
