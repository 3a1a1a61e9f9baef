"""Data sources: from files in many forms to structures with labels in eV and Å."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches

from denskit.data.base import Source, Subset, collate
from denskit.data.config import DataConfig, SplitConfig
from denskit.data.loading import WEIGHTED, LoadedData, load_files, read_file
from denskit.data.md17 import load_md17
from denskit.data.shipped import load_embedded
from denskit.data.splits import Splits

__all__ = [
    "DATASETS", "DataConfig", "LoadedData", "Source", "SplitConfig", "Splits", "Subset", "collate", "load_data",
    "read_file",
]  # fmt: skip

DATASETS: dict[str, Callable[[DataConfig, int, Sequence[str]], LoadedData]] = {
    "file": load_files,
    "md17": load_md17,
    "rmd17": load_md17,
    "embedded": load_embedded,
}


def load_data(config: DataConfig, seed: int, required: Sequence[str] = WEIGHTED) -> LoadedData:
    """The sources of a run, in eV and Å, and messages that say what was decided.

    ``seed`` divides the frames where ``data.split.seed`` is None; ``required``: labels that carry weight in the loss.
    Raises ValueError for an unknown dataset, for data that cannot be trained on, and for a split that cannot be made;
    FileNotFoundError.
    """
    if config.name not in DATASETS:
        near = get_close_matches(config.name, DATASETS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"data.name={config.name!r} is not a dataset ({', '.join(DATASETS)}){hint}")
    if config.name == "file" and config.molecule is not None:
        raise ValueError(f"data.molecule={config.molecule} needs data.name=md17, rmd17 or embedded")
    return DATASETS[config.name](config, seed, required)
