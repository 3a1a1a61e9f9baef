"""How the training data of a model were read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from denskit.data.config import DataConfig
from denskit.data.readers.formats import are_shards
from denskit.models.model_file import read_header

_SHARDS = ("fixed", "energies", "oc20_ref")  # whose fields have names and units of their own
_FILES = ("energy_key", "forces_key", "stress_key", "stress_unit", "stress_sign", "units")

Reading = Mapping[str, Any] | None  # settings of DataConfig that say how a file is read


def reading_as_trained(model: Path, file: str | os.PathLike[str], data: Reading = None) -> DataConfig:
    """Settings to read a file for a model file: units, keys and the like of its training data, changed by ``data``.

    Labels that are absent count in no loss and no error.  Raises ValueError as :func:`reading_of`.
    """
    trained_on = read_header(model)["metadata"].get("run", {}).get("data", {})  # {} where imported
    path = Path(file)
    names = _SHARDS if are_shards(path) else ("units",) if path.suffix == ".npz" else _FILES
    return reading_of({name: trained_on[name] for name in names if name in trained_on} | dict(data or {}))


def reading_of(data: Reading) -> DataConfig:
    """Settings to read a file of structures.

    Raises ValueError for a setting that does not say how a file is read, such as ``split``.
    """
    known = (*_FILES, *_SHARDS)
    for name in data or {}:
        if name not in known:
            raise ValueError(f"data.{name} does not say how a file is read; those that do: {', '.join(known)}")
    return DataConfig(missing="mask", **dict(data or {}))
