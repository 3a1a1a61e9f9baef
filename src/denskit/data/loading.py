"""From a DataConfig to the three sources: reading files, checking them, dividing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ase.data import chemical_symbols

from denskit.data.ase_files import read_ase
from denskit.data.base import Lazy, Source, Subset
from denskit.data.config import DataConfig, References
from denskit.data.frames import Frames, check, numbers
from denskit.data.npz import read_npz
from denskit.data.splits import Splits, divide

WEIGHTED = ("energy", "forces")


@dataclass(frozen=True, kw_only=True)
class LoadedData:
    """The sources of a run.  ``test`` is opened when it is first used where it is a file of its own."""

    train: Source
    valid: Source | None
    test: Source | None
    splits: Splits | None  # how a file was divided, to be saved beside the run; None: each part is a file of its own
    messages: list[str]  # what was found and decided, for the log
    references: References  # for fit_scaling: the config's, ``isolated`` resolved to energies in eV


def read_file(
    path: str | Path, config: DataConfig | None = None, *, required: Sequence[str] = ()
) -> tuple[Frames, list[str]]:
    """All frames of one file of any known form, checked, in eV and Å, and what was found out about it.

    ``required``: labels that every frame must have ("energy", "forces", "stress"); see ``DataConfig.missing``.
    Raises FileNotFoundError, and ValueError naming the file and the frames (see :func:`denskit.data.frames.check`).
    """
    config = config or DataConfig()
    frames, messages = read_unchecked(path, config)
    frames, masked = check(frames, required=required, missing=config.missing)
    return frames, messages + masked


def read_unchecked(path: str | Path, config: DataConfig) -> tuple[Frames, list[str]]:
    """All frames of a file, with whatever is wrong with them.  Raises FileNotFoundError, and ValueError for a file that
    cannot be read."""
    path = Path(path).expanduser()
    if path.is_dir():
        raise ValueError(f"{path} is a folder; wanted a file of structures (npz, extxyz, traj, db, ...)")
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    return (read_npz if path.suffix == ".npz" else read_ase)(path, config)


def load_files(config: DataConfig, seed: int, required: Sequence[str] = WEIGHTED) -> LoadedData:
    """The dataset ``file``: a user's ``data.path``, or ``data.train`` with ``data.valid`` and ``data.test``."""
    chosen = config.path or config.train
    if chosen is None:
        raise ValueError("no data given: data.path=FILE, data.train=FILE, or data.name=embedded, md17 or rmd17")
    path = Path(chosen).expanduser()
    _require_other_files(chosen, config.valid, config.test)
    frames, messages = read_file(path, config, required=required)
    pool, references = _without_isolated_atoms(frames, config)
    test: Source | None = Lazy(config.test, lambda: _read_test(config, required)) if config.test else None
    if config.valid is not None:
        valid, said = read_file(config.valid, config, required=required)
        messages += [*said, f"{len(pool)} training frames of {path}, {len(valid)} validation frames of {config.valid}"]
        train = Subset(frames, pool, str(path))
        return LoadedData(train=train, valid=valid, test=test, splits=None, messages=messages, references=references)
    splits, said_split = _splits(config, frames, pool, path, seed)
    messages.append(said_split)
    parts = {
        part: Subset(frames, indices, f"{path} ({part})") if len(indices) else None
        for part, indices in (("train", splits.train), ("valid", splits.valid), ("test", splits.test))
    }
    assert parts["train"] is not None
    return LoadedData(
        train=parts["train"],
        valid=parts["valid"],
        test=parts["test"] if test is None else test,
        splits=splits,
        messages=messages,
        references=references,
    )


def _read_test(config: DataConfig, required: Sequence[str]) -> Frames:
    assert config.test is not None
    return read_file(config.test, config, required=required)[0]


def _require_other_files(*names: str | None) -> None:
    files = [str(Path(name).expanduser().resolve()) for name in names if name is not None]
    if len(set(files)) < len(files):
        raise ValueError(
            f"train, valid and test name one file twice: {', '.join(files)}. Divide it with data.path instead"
        )


def _splits(config: DataConfig, frames: Frames, pool: np.ndarray, path: Path, seed: int) -> tuple[Splits, str]:
    split = config.split
    if split.file is not None:
        splits = Splits.load(split.file, of=path)
        _check_indices(splits, frames, Path(split.file))
        return splits, f"{path}: split reused from {split.file}: {splits.how}"
    by_default = not split.model_fields_set
    if split.mode is None:
        split = split.model_copy(update={"mode": "group" if frames.groups else "random"})
    splits = divide(split, pool=pool, groups=frames.groups, seed=seed, path=path, test=config.test is None)
    advice = "; frames of one trajectory resemble each other: data.split.mode=blocks or group judges more strictly"
    return splits, f"{path}: {splits.how}{advice if by_default and split.mode == 'random' else ''}"


def _check_indices(splits: Splits, frames: Frames, path: Path) -> None:
    everything = np.concatenate([splits.train, splits.valid, splits.test])
    outside = everything[(everything < 0) | (everything >= len(frames))]
    if len(outside) or len(np.unique(everything)) < len(everything) or not len(splits.train):
        raise ValueError(
            f"{path} does not divide the {len(frames)} frames of {frames.name}: frames outside the file, twice in "
            "it, or no training frames"
        )


def _without_isolated_atoms(frames: Frames, config: DataConfig) -> tuple[np.ndarray, References]:
    """Frames to divide [M], and the references.

    With ``isolated``, single-atom frames give these and are then left out: their energy is exactly the reference,
    and far from every other residual.
    """
    single = frames.n_atoms == 1
    if config.references != "isolated":
        return np.arange(len(frames)), config.references
    found = np.flatnonzero(single & frames.has["energy"])
    elements = frames.atomic_numbers[frames.starts[found]]
    energies = dict(zip((chemical_symbols[z] for z in elements), frames.energy[found].tolist(), strict=True))
    if len(energies) < len(found):
        raise ValueError(f"{frames.name}: data.references=isolated finds an element twice among the {numbers(found)}")
    lacking = [chemical_symbols[z] for z in np.unique(frames.atomic_numbers) if chemical_symbols[z] not in energies]
    if lacking:
        raise ValueError(
            f"{frames.name}: data.references=isolated needs a frame with one atom and an energy for each element; "
            f"none for {', '.join(lacking)}. Add them, give energies as data.references={{H: ...}}, or use "
            "data.references=fit"
        )
    return np.flatnonzero(~single), energies
