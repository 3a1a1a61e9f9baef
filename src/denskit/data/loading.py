"""From a DataConfig to the sources of a run: read, check and divide files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
from ase.data import chemical_symbols

from denskit.batch import ISOLATED, System
from denskit.data.base import Lazy, Source, Subset, elements_of, evenly, known_elements
from denskit.data.config import DataConfig, References
from denskit.data.copies import Copies
from denskit.data.filters import filtered, without_filtered
from denskit.data.readers.ase_files import require_one_name
from denskit.data.readers.folders import Files, read_given
from denskit.data.readers.formats import (
    are_shards,
    is_there,
    open_unchecked,
    path_of,
    places_in,
    reading_of_index,
    require_effect,
    size_of,
)
from denskit.data.records import Records, joined, numbered_in
from denskit.data.references import linear_references
from denskit.data.splits import Splits, divide
from denskit.data.structure_arrays import StructureArrays, numbered, require_some
from denskit.reading.remote import address_of
from denskit.runtime.progress import counted
from denskit.runtime.warning import warn

WEIGHTED = ("energy", "forces")
SAMPLE = 64  # structures of shards that are read before training
QUICK = 100 * 2**20  # bytes of a test file that is read before a training: some seconds
SAME = 0.01  # eV between energies of isolated atoms of one element that are the same
FEW = 10_000  # structures of shards that are all read for a split that trains every element: some seconds


@dataclass(frozen=True, kw_only=True)
class LoadedData:
    """The sources of a run.  ``test`` is opened when it is first used where it is a file of its own."""

    train: Source
    valid: Source | None
    test: Source | None
    splits: Splits | None  # how a file was divided, to be saved beside the run; None: each part is a file of its own
    messages: list[str]  # findings and decisions, for the log
    references: References  # for fit_scaling: the config's, ``isolated`` resolved to energies in eV
    isolated: dict[str, float] = field(default_factory=dict)  # energies of isolated atoms, which no part has, in eV

    @property
    def judged(self) -> dict[str, Source | None]:
        """The sources that a run is judged by, by part."""
        return {"valid": self.valid, "test": self.test}


def read_file(
    path: str | Path, config: DataConfig | None = None, *, required: Sequence[str] = ()
) -> tuple[StructureArrays | Records, list[str]]:
    """The structures of a file of any known form, or of a folder of shards, in eV and Å, and messages.

    ``required``: labels that every frame must have ("energy", "forces", "stress"); see ``DataConfig.missing``.  Small
    files are read and checked at once, records of shards when they are read.
    Raises FileNotFoundError, and ValueError naming the file and the frames (see :meth:`StructureArrays.checked`).
    """
    return _read_one(path, config or DataConfig(), required, alone=True)


def _read_one(
    path: str | Path, config: DataConfig, required: Sequence[str], *, alone: bool = False
) -> tuple[StructureArrays | Records, list[str]]:
    """As :func:`read_file`; unless ``alone`` one of several files, another of which may have a label that it lacks."""
    source, messages = open_unchecked(path, config)
    checked, masked = source.checked(required=required, missing=config.missing, alone=alone)
    return checked, messages + masked


def read_files(path: str | Path, config: DataConfig, required: Sequence[str] = ()) -> tuple[Source, list[str]]:
    """As :func:`read_file`, and the structures of all ordinary files of a folder or a pattern."""
    source, messages = read_given(path, config, partial(_read_one, required=required), strict=True)
    _require_some([source], required)
    return source, messages


def _require_some(sources: Sequence[Source], required: Sequence[str]) -> None:
    """As :func:`require_some`, of files and folders of them; shards are checked when they are read."""
    parts = [part for source in sources for part in (source.sources if isinstance(source, Files) else [source])]
    files = [part for part in parts if isinstance(part, StructureArrays)]
    if len(files) == len(parts):
        require_some(files, required)


def read(path: str | Path, **settings: Any) -> Source:
    """The structures of a file, a folder or a pattern as a sequence of :class:`denskit.batch.System`, in eV and Å.

    ``settings``: fields of :class:`DataConfig` that say how to read it, such as ``energy_key``, ``units``, ``missing``.
    Errors as :func:`read_file`.
    """
    return read_files(path, DataConfig(**settings))[0]


def load_files(config: DataConfig, seed: int, required: Sequence[str] = WEIGHTED) -> LoadedData:
    """The dataset ``file``: a user's ``data.path``, or ``data.train`` with ``data.valid`` and ``data.test``."""
    parts = config.parts
    if not parts:
        raise ValueError("no data given: data.path=FILE, data.train=FILE, or data.name=embedded, md17 or rmd17")
    _require_other_files([part.path for part in parts], [config.valid, config.test])
    given = [*(part.path for part in parts), config.valid, config.test]
    require_effect(config, [path for path in given if path is not None])
    source, messages = _read_parts(config, required)
    alone = _single_atoms(source, np.arange(len(source))) if source.in_memory else {}
    kept, left_out = filtered(source, config.filter, exempt=alone)
    pool, references, isolated, said = _references(source, config, kept)
    if alone and not isolated:  # they are structures like others, which the filter may leave out
        kept, left_out = filtered(source, config.filter)
        pool, references, isolated, said = _references(source, config, kept)
    messages += left_out + said
    test: Source | None = None
    if (file := config.test) is not None:
        test = Lazy(file, lambda: _test_file(file, config, required, source))
    train: Source | None
    valid: Source | None
    splits: Splits | None = None
    if config.valid is not None:
        valid, said = read_files(config.valid, config, required)
        valid, left_out = without_filtered(valid, config.filter, like=source)
        valid, unjudged = without_isolated(valid)
        left_out += unjudged
        train = source if len(pool) == len(source) else Subset(source, pool, source.name)
        counts = f"{counted(len(pool), 'training frame')} of {source.name}"
        counts += f", {counted(len(valid), 'validation frame')} of {valid.name}"
        messages += [*said, *left_out, counts, *(f"warning: {text}" for text in repeated(train, [valid]))]
    else:
        if len(parts) > 1:
            raise ValueError(f"data.train lists {len(parts)} sources, which data.split cannot divide; give data.valid")
        if parts[0].repeat > 1:
            raise ValueError(
                "data.train repeats structures, which data.split would put into several parts; give data.valid"
            )
        path = path_of(parts[0].path)
        try:
            splits, message = split_of(config, source, path, seed, pool)
        except ValueError as error:
            if len(pool) < len(source):  # which may be why
                error.args = (". ".join([str(error), *left_out, *said]),)
            raise
        messages.append(message)
        train, valid, held_out = (
            Subset(source, indices, f"{path} ({part})") if len(indices) else None
            for part, indices in (("train", splits.train), ("valid", splits.valid), ("test", splits.test))
        )
        if train is not None:
            messages += [f"warning: {text}" for text in repeated(train, [valid, held_out])]
        test = held_out if test is None else test
    assert train is not None
    return LoadedData(
        train=train, valid=valid, test=test, splits=splits, messages=messages, references=references, isolated=isolated
    )


def _read_parts(config: DataConfig, required: Sequence[str]) -> tuple[Source, list[str]]:
    """The training structures of all parts in a row, and messages."""
    read: list[Source] = []
    sources: list[Source] = []
    messages: list[str] = []
    for part in config.parts:
        reading = config.model_copy(update={"origin": part.origin})
        source, said = read_given(part.path, reading, partial(_read_one, required=required), strict=True)
        read.append(source)
        sources += [source] * part.repeat
        messages += said
        if part.repeat > 1:
            messages.append(f"{part.path}: each of {counted(len(source), 'structure')} counts {part.repeat} times")
        if (origin := part.origin or reading_of_index(path_of(part.path)).get("origin")) is not None:
            touched = "never corrupted by DeNS" if origin == "md" else "denoised"
            messages.append(f"{part.path}: {counted(len(source), 'structure')} of origin {origin}: {touched}")
    _require_some(read, required)
    require_one_name(", ".join(source.name for source in read), read)
    return joined(sources), messages


def _test_file(file: str, config: DataConfig, required: Sequence[str], train: Source) -> Source:
    """The test structures of a file of their own; warns of those that are trained on."""
    test, left_out = without_isolated(read_files(file, config, required)[0])
    for text in left_out + repeated(train, [test]):
        warn(text)
    return test


def without_isolated(source: Source) -> tuple[Source, list[str]]:
    """A file that judges a training without isolated atoms, whose energies are no matter of accuracy; and a message.

    They belong into the file to train on; here they outweigh all other energies.  A file of nothing else stays.
    """
    if not source.in_memory or source.sizes is None:
        return source, []
    single = np.flatnonzero(np.asarray(source.sizes) == 1).tolist()
    places = [place for place in single if source[place].is_isolated]
    if not 0 < len(places) < len(source):
        return source, []
    others = Subset(source, np.setdiff1d(np.arange(len(source)), places), source.name)
    return others, [f"{source.name}: isolated atoms are not judged: {numbered_in(source, places)}"]


def warnings_of_test(config: DataConfig, data: LoadedData) -> list[str]:
    """Warnings about the file ``data.test`` before the first step, where it is small and training is in memory.

    Otherwise it is opened after the training only.  Raises FileNotFoundError where it is not there.
    """
    if config.test is None or not isinstance(data.test, Lazy) or address_of(config.test) is not None:
        return []
    path = path_of(config.test)
    if not is_there(path):
        raise FileNotFoundError(f"data.test={config.test}: there is no such file, and the run is judged on it")
    if not data.train.in_memory or are_shards(path) or size_of(path) > QUICK:
        return []
    try:
        with catch_warnings(record=True) as told:
            simplefilter("always")
            data.test.open()
    except ValueError as error:
        return [f"warning: data.test: {error}"]
    return [f"warning: {one.message}" for one in told if issubclass(one.category, UserWarning)]


def repeated(train: Source, judged: Iterable[Source | None]) -> list[str]:
    """Warnings where geometries by which a training is judged are trained on; only files in memory are compared."""
    parts = [part for part in judged if part is not None and part.in_memory]
    if not (train.in_memory and parts):
        return []
    known = Copies(train)
    again = [[system.index for system in part if system in known] for part in parts]
    return [
        f"{part.name}: {len(places)} of {counted(len(part), 'structure')} with the geometry of a structure of "
        f"{train.name}, which is trained on: {numbered_in(part, places)}. Their errors are too low. Keep one of each"
        for part, places in zip(parts, again, strict=True)
        if places
    ]


def _references_from(path: Path, source: Source) -> tuple[dict[str, float], list[str]]:
    """References of a file, and messages.  Raises ValueError where an element of the structures has none."""
    references, messages = linear_references(path)
    looked_at = evenly(source, None if source.in_memory else SAMPLE)
    lacking = [chemical_symbols[z] for z in sorted(elements_of(looked_at)) if chemical_symbols[z] not in references]
    if lacking:
        raise ValueError(
            f"{path} has no plausible reference for {', '.join(lacking)}, which {source.name} contains: such rows of a "
            "fit are arbitrary. Use data.references=fit, or give energies as data.references={H: ..., ...}"
        )
    return references, messages


def _require_other_files(train: Sequence[str], judged: Sequence[str | None]) -> None:
    """Raise ValueError where two names hold the same file, be it as a folder, a pattern or the file itself."""
    names = [*train, *(name for name in judged if name is not None)]
    places = [places_in(name) for name in names]
    for one, other in combinations(range(len(names)), 2):
        if not (shared := places[one] & places[other]):
            continue
        files = "one file" if len(shared) == 1 else f"{len(shared)} files"
        twice = f"{files} twice: {min(shared)}, by {names[one]} and {names[other]}"
        if other < len(train):
            advice = f"Structures count twice with {{path: {names[one]}, repeat: 2}}"
            raise ValueError(f"data.train names {twice}. {advice}")
        advice = "Divide it with data.path, or give each part files of its own"
        raise ValueError(f"train, valid and test name {twice}. {advice}")


def split_of(
    config: DataConfig, source: Source, path: Path, seed: int, pool: np.ndarray | None = None
) -> tuple[Splits, str]:
    """The split that ``data.split`` asks of the structures of the file at ``path``, and a message.

    That of ``split.file``, else a new one, drawn with ``seed`` where ``split.seed`` is None.  ``pool`` [M]: the
    structures to divide; None: all.  Raises ValueError for an impossible split and for a split of another file.
    """
    split = config.split
    pool = np.arange(len(source)) if pool is None else pool
    if split.file is not None:
        splits = Splits.load(split.file, of=path).within(pool)
        _check_indices(splits, source, Path(split.file))
        return splits, f"{path}: split reused from {split.file}: {splits.how}"
    by_default = not split.model_fields_set
    if split.mode is None:
        by_data = "group" if source[0].group else "random"
        split = split.model_copy(update={"mode": "blocks" if split.gap and split.seed is None else by_data})
    groups = source.group_names() if split.mode == "group" else ()
    elements = known_elements(source, FEW)
    splits = divide(split, pool=pool, groups=groups, seed=seed, path=path, test=config.test is None, elements=elements)
    advice = "; frames of one trajectory resemble each other: data.split.mode=blocks or group judges more strictly"
    return splits, f"{path}: {splits.how}{advice if by_default and split.mode == 'random' else ''}"


def _check_indices(splits: Splits, source: Source, path: Path) -> None:
    everything = np.concatenate([splits.train, splits.valid, splits.test])
    outside = everything[(everything < 0) | (everything >= len(source))]
    if len(outside) or len(np.unique(everything)) < len(everything) or not len(splits.train):
        raise ValueError(
            f"{path} does not divide the {len(source)} frames of {source.name}: some are outside the file or twice in "
            "it, or none is for training"
        )


def _references(
    source: Source, config: DataConfig, kept: np.ndarray
) -> tuple[np.ndarray, References, dict[str, float], list[str]]:
    """Structures to divide [M], the references, energies of isolated atoms, and messages.

    Of the structures to keep [M] isolated atoms are left out where there is one of each element: their energies, eV
    above those of bound atoms, are exact without training on them.
    """
    wanted = config.references or "fit"
    if wanted == "isolated":
        if not source.in_memory:
            raise ValueError(f"{source.name}: data.references=isolated reads one file in memory; these are shards")
        places, energies, messages = _isolated_atoms(source, np.arange(len(source)), strict=True)
        return np.setdiff1d(kept, places), energies, energies, messages
    pool, isolated, messages = kept, dict[str, float](), list[str]()
    if source.in_memory:
        places, isolated, messages = _isolated_atoms(source, kept, strict=False)
        pool = np.setdiff1d(kept, places)
    if isinstance(wanted, dict) or wanted in ("fit", "mean", "none", "trained"):
        return pool, wanted, isolated, messages  # type: ignore[return-value]
    references, said = _references_from(Path(wanted).expanduser(), source)
    return pool, references, isolated, [*messages, *said]


def _isolated_atoms(
    source: Source, kept: np.ndarray, *, strict: bool
) -> tuple[np.ndarray, dict[str, float], list[str]]:
    """Places [M] of isolated atoms among the structures to keep [M], the lowest energy of each element, and messages.

    None where an element of the other structures has no isolated atom with an energy; where ``strict``, a ValueError.
    Atoms of elements that no other structure has are structures like others.
    """
    atoms = _single_atoms(source, kept)
    if not atoms and not strict:
        return np.zeros(0, dtype=np.int64), {}, []
    energies: dict[str, list[float]] = {}
    for atom in atoms.values():
        energies.setdefault(chemical_symbols[int(atom.atomic_numbers[0])], []).append(float(atom.energy or 0.0))
    others = elements_of(Subset(source, np.setdiff1d(kept, [*atoms]), source.name))
    lacking = [chemical_symbols[z] for z in sorted(others) if chemical_symbols[z] not in energies]
    if lacking and strict:
        raise ValueError(_without_atoms(source, lacking))
    if lacking or not others:
        return np.zeros(0, dtype=np.int64), {}, []
    places = [place for place, atom in atoms.items() if int(atom.atomic_numbers[0]) in others]
    lowest = {chemical_symbols[z]: min(energies[chemical_symbols[z]]) for z in sorted(others)}
    messages = [
        f"{source.name}: isolated atoms of {', '.join(lowest)} are not trained on: {numbered_in(source, places)}"
    ]
    several = [symbol for symbol in lowest if max(energies[symbol]) - lowest[symbol] > SAME]
    if several:
        found = "; ".join(f"{name} {', '.join(f'{energy:g}' for energy in energies[name])}" for name in several)
        messages.append(f"warning: isolated atoms of one element have several energies (eV): {found}; the lowest count")
    return np.array(places), lowest, messages


def _single_atoms(source: Source, kept: np.ndarray) -> dict[int, System]:
    """The isolated atoms with an energy among the structures to keep [M], by place."""
    one = kept if source.sizes is None else kept[np.asarray(source.sizes)[kept] == 1]
    return {place: atom for place in one.tolist() if (atom := source[place]).is_isolated and atom.energy is not None}


def _without_atoms(source: Source, lacking: list[str]) -> str:
    """An error about elements that have no isolated atom with an energy."""
    near = np.array([len(system) == 1 and not system.is_isolated for system in source])
    images = f" ({numbered(near)}: an atom with periodic images nearer than {ISOLATED:g} Å)" if near.any() else ""
    return (
        f"{source.name}: data.references=isolated needs a frame with one atom and an energy for each element; none for "
        f"{', '.join(lacking)}{images}. Add them, give energies as data.references={{H: ...}}, or use "
        "data.references=fit"
    )
