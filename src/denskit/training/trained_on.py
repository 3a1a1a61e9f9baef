"""How the training data of a model were read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from denskit.data.config import DataConfig, FixedFrom
from denskit.data.readers.formats import are_shards
from denskit.models.model_file import read_header

_SHARDS = ("fixed", "energies", "oc20_ref")  # whose fields have names and units of their own
_FILES = ("energy_key", "forces_key", "stress_key", "stress_unit", "stress_sign", "units")


def reading_as_trained(model: Path, file: str | os.PathLike[str], fixed: FixedFrom | None = None) -> DataConfig:
    """Settings to read a file for a model file: units, keys and the like of its training data; ``fixed`` where given.

    Labels that are absent count in no loss and no error.
    """
    trained_on = read_header(model)["metadata"].get("run", {}).get("data", {})  # {} where imported
    path = Path(file)
    names = _SHARDS if are_shards(path) else ("units",) if path.suffix == ".npz" else _FILES
    kept: dict[str, Any] = {name: trained_on[name] for name in names if name in trained_on}
    return DataConfig(missing="mask", **kept | ({} if fixed is None else {"fixed": fixed}))
