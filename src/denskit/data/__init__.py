"""Data sources: from files in many forms to structures with labels in eV and Å."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches

import numpy as np

from denskit.data.base import Source, Subset, collate
from denskit.data.config import DataConfig, SplitConfig
from denskit.data.datasets.embedded import load_embedded
from denskit.data.datasets.md17 import load_md17
from denskit.data.datasets.open_catalyst import load_oc20, load_oc22
from denskit.data.loading import WEIGHTED, LoadedData, load_files, read_file, split_of
from denskit.data.splits import PARTS, Splits
from denskit.runtime.registry import Registry

__all__ = [
    "DATASETS", "DataConfig", "LoadedData", "Source", "SplitConfig", "Splits", "Subset", "collate", "load_data",
    "read_file", "split_of",
]  # fmt: skip

Loader = Callable[[DataConfig, int, Sequence[str]], LoadedData]


def _problem(name: str, entry: object) -> str | None:
    return None if callable(entry) else f"wanted a function load(config, seed, required), found {entry!r:.199}"


DATASETS: Registry[Loader] = Registry(
    "dataset",
    {
        "file": load_files,
        "md17": load_md17,
        "rmd17": load_md17,
        "embedded": load_embedded,
        "oc20": load_oc20,
        "oc22": load_oc22,
    },
    _problem,
)

_BELONG = (  # keys, the datasets that read them
    (("molecule",), ("md17", "rmd17", "embedded")),
    (("fixed", "energies", "oc20_ref"), ("oc20", "oc22")),
)

_RESOLVED = ("fit", "mean", "none", "trained")  # beside energies; anything else would be taken for none, unsaid


def load_data(config: DataConfig, seed: int, required: Sequence[str] = WEIGHTED) -> LoadedData:
    """The sources of a run, in eV and Å, and messages about decisions.

    ``seed`` divides the structures where ``data.split.seed`` is None; ``required``: labels with weight in the loss.
    Raises ValueError for an unknown dataset, data unfit for training and an impossible split; FileNotFoundError.
    """
    if config.name not in DATASETS:
        near = get_close_matches(config.name, DATASETS, n=1)
        if not near:
            raise ValueError(f"data.name={config.name}: {DATASETS.absent(config.name)}")
        known = ", ".join(DATASETS)
        raise ValueError(f"data.name={config.name!r} is not a dataset ({known}); did you mean {near[0]!r}?")
    for keys, names in _BELONG:
        for key in keys:
            default = DataConfig.model_fields[key].default  # a saved configuration names every key
            if getattr(config, key) != default and config.name not in names:
                raise ValueError(f"data.{key}={getattr(config, key)} needs data.name={' or '.join(names)}")
    data = DATASETS[config.name](config, seed, required)
    if not isinstance(data.references, dict) and data.references not in _RESOLVED:
        raise ValueError(
            f"data.references={data.references} is not understood by data.name={config.name}; use one of "
            f"{', '.join(_RESOLVED)}, or energies as data.references={{H: ..., ...}}"
        )
    if config.split.file is not None:
        _require_split(config, data.splits)
    return data


def _require_split(config: DataConfig, found: Splits | None) -> None:
    """Raise ValueError where a dataset drew another split than ``data.split.file``: it would be judged on structures
    that were trained on."""
    wanted = Splits.read(str(config.split.file))
    if found is None or not all(np.isin(getattr(found, part), getattr(wanted, part)).all() for part in PARTS):
        raise ValueError(
            f"data.name={config.name} does not divide its structures as data.split.file={config.split.file} says: its "
            "reader must take the split from denskit.data.loading.split_of"
        )
