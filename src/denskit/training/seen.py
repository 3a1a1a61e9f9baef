"""Whether the model that a training starts from has trained on structures that the run is judged by."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

from denskit.data import load_data
from denskit.data.base import Lazy, Source
from denskit.data.copies import Copies
from denskit.data.readers.formats import are_shards, is_there, size_of
from denskit.data.splits import Splits
from denskit.models.model_file import read_header, run_settings
from denskit.reading.remote import address_of
from denskit.training.inputs import contents, structures_of
from denskit.training.load_config import load_config
from denskit.training.run_folder import RunFolder, folder_of, model_file
from denskit.training.settings import RunConfig

LEARNED = {"valid": ("train",), "test": ("train", "valid")}  # parts of another run, by the part that is judged here
SMALL = 20 * 2**20  # bytes of a run's files that are read to be compared: about a second
_FIRST = 20  # models of a chain of fine-tunings that are looked at


def seen_before(config: RunConfig, splits: Splits | None, judged: Mapping[str, Source | None]) -> list[str]:
    """A warning where the model of ``init_from``, or one before it, has trained on structures that judge the run.

    ``splits``: of the run's file, if it divides one.  ``judged``: structures by part, "valid" and "test"; a test file
    that was not read yet is not looked at.
    """
    parts = {part: source for part, source in judged.items() if source is not None and not isinstance(source, Lazy)}
    seen: dict[str, set[int]] = {part: set() for part in parts}  # places
    origin, same_file = config.training.init_from, ""
    for _ in range(_FIRST if parts else 0):
        if origin is None or not Path(origin).exists():
            break
        folder = folder_of(origin)
        for part, source in parts.items():
            places = places_seen(folder, splits, part, source)
            seen[part].update([] if places is None else places.tolist())
        if splits is not None and (own := folder.divided()) is not None and own.sha256 == splits.sha256:
            same_file = same_file or str(folder.splits)
        try:
            origin = run_settings(model_file(origin)).get("training", {}).get("init_from")
        except (FileNotFoundError, ValueError):
            break
    counts = [
        f"{len(seen[part])} of the {len(source)} {part} structures" for part, source in parts.items() if seen[part]
    ]
    if not counts:
        return []
    remedy = "give other structures to judge by, as files of their own (data.valid, data.test)"
    if same_file:
        remedy = f"data.split.file={same_file} divides the file as there"
    return [
        f"warning: the model of training.init_from={config.training.init_from} has trained on {' and '.join(counts)} "
        f"(or was chosen by them), so errors on them will be too low; {remedy}"
    ]


def places_seen(folder: RunFolder, splits: Splits | None, part: str, judged: Source) -> np.ndarray | None:
    """Places in ``judged`` of structures that a run has learned from, or was chosen by where they are a test.

    ``splits``: that ``judged`` is the ``part`` of, "valid" or "test"; None where each part is a file of its own.
    Where it has no such part, ``judged`` is a file of its own, too.  Of one file its frames are compared, of files in
    memory geometries; None where neither can be.
    """
    own = folder.divided()
    divides = splits is not None and len(getattr(splits, part)) == len(judged)
    if own is not None and splits is not None and divides and own.sha256 == splits.sha256:
        known = np.concatenate([getattr(own, name) for name in LEARNED[part]])
        return np.flatnonzero(np.isin(getattr(splits, part), known))
    return copies_seen(folder, judged, LEARNED[part])


def copies_seen(folder: RunFolder, judged: Source, parts: Sequence[str] = ("train",)) -> np.ndarray | None:
    """Places in ``judged`` of geometries that are in ``parts`` of a run's structures; None where that cannot be told.

    It can for files in memory, and structures of a run that are small and as they were.
    """
    there = judged.in_memory and folder.config.is_file()
    known = _learned(folder.path, folder.config.stat().st_mtime_ns) if there else None
    if known is None:
        return None
    return np.flatnonzero([any(system in known[name] for name in parts) for system in judged])


@lru_cache(maxsize=4)  # for each part that is judged, and each model of a chain
def _learned(run: Path, written: int) -> dict[str, Copies] | None:
    """The structures of a run, ``written`` then, by part, where its files are there, small and as they were."""
    folder = RunFolder(run)
    with suppress(ValueError, OSError, KeyError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said when the run began
        config = load_config(folder.path)
        names = [name for _, name in structures_of(config)[:-1] if name is not None]  # but for replayed ones
        if not names or any(address_of(name) is not None for name in names):
            return None
        paths = [Path(name).expanduser() for name in names]
        if not all(is_there(path) and not are_shards(path) for path in paths) or sum(map(size_of, paths)) > SMALL:
            return None
        recorded = read_header(model_file(folder.path))["metadata"].get("contents", {})
        now = contents(config, recorded)
        if any(recorded[key] != now.get(key) for key in recorded if key != "data.test"):
            return None
        data = load_data(folder.as_divided(config.data), config.seed, config.required_labels)
        if data.train.in_memory and (data.valid is None or data.valid.in_memory):
            return {"train": Copies(data.train), "valid": Copies(data.valid or ())}
    return None
