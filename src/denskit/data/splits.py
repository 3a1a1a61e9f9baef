"""Splits of one file into train, valid and test, and their files."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from denskit.data.config import SplitConfig
from denskit.data.readers.formats import are_shards, files_in, shards_in
from denskit.data.readers.shards import INDEX
from denskit.files import sha256_of, write_json
from denskit.reading.budget import naming
from denskit.reading.documents import read_json
from denskit.runtime.progress import counted

PUBLISHED_SEED = 1
PUBLISHED_TRAIN, PUBLISHED_VALID = 950, 50
LARGE = 4 * 2**30  # bytes of a file that is not read for a comparison
DEFAULT = 0.05  # share of validation and of test
FEW = 25  # structures of each that are taken at least, where they are no more than an eighth of all
PARTS = ("train", "valid", "test")


class AnotherFileError(ValueError):
    """A split does not belong to a file; ``found`` is the message without its advice to who trains."""

    def __init__(self, found: str) -> None:
        super().__init__(f"{found}. Make a new split without split.file")
        self.found = found


@dataclass(frozen=True)
class Splits:
    """Frame numbers (int64, counted from 0) of the parts of one file, and the identity of the file."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    file: str = ""  # name, without folder
    size: int = 0  # bytes
    sha256: str = ""
    how: str = ""  # a sentence for people

    def save(self, path: str | Path) -> None:
        """Write as JSON."""
        document = {
            "format": "denskit-splits-1",
            "how": self.how,
            "file": self.file,
            "size": self.size,
            "sha256": self.sha256,
            **{part: getattr(self, part).tolist() for part in PARTS},
        }
        write_json(Path(path), document, indent=None)

    @classmethod
    def read(cls, path: str | Path) -> Splits:
        """Read a split.  Raises FileNotFoundError, and ValueError where ``path`` is none."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"no split file {path}")
        with naming(path, "is not a split file written by Denskit"):
            document = read_json(path)
            if document["format"] != "denskit-splits-1":
                raise KeyError("format")
            train, valid, test = (np.array(document[part], dtype=np.int64).reshape(-1) for part in PARTS)
            about = {key: str(document[key]) for key in ("file", "sha256", "how")}
            return cls(train, valid, test, size=int(document["size"]), **about)

    @classmethod
    def load(cls, path: str | Path, *, of: Path) -> Splits:
        """Read a split of the file ``of``.  Raises as :meth:`read`, and AnotherFileError."""
        splits = cls.read(path)
        if not splits.is_of(of):
            raise AnotherFileError(
                f"{path} divides {splits.file} as it was ({splits.size} bytes, sha256 {splits.sha256[:12]}...), but "
                f"{of} is another file or has changed ({identity_of(of)[0]} bytes)"
            )
        return splits

    def is_of(self, path: Path) -> bool:
        """Whether the file has the content that was divided."""
        return (self.size, self.sha256) == identity_of(path)

    def within(self, pool: np.ndarray) -> Splits:
        """The parts without frames outside ``pool`` [M]."""
        parts = {part: getattr(self, part) for part in PARTS}
        return replace(self, **{part: frames[np.isin(frames, pool)] for part, frames in parts.items()})


def divide(
    split: SplitConfig,
    *,
    pool: np.ndarray,
    groups: Sequence[str],
    seed: int,
    path: Path,
    test: bool,
    elements: Sequence[frozenset[int]] = (),
) -> Splits:
    """Divide the frames ``pool`` [M] of the file at ``path``.

    ``groups``: the group of every frame of the file (used by mode ``group``); ``test``: False where the test frames
    come from a file of their own; ``elements``: atomic numbers of every frame of the file, or empty where unknown.
    Where a random draw would leave an element to valid and test alone, frames or groups with rare elements are drawn
    for training first.  Raises ValueError for an empty part, and for more frames asked than there are.
    """
    mode = split.mode or "random"
    seed = seed if split.seed is None else split.seed
    if mode == "published" and split.train is None and split.valid is None:
        split = split.model_copy(update={"train": PUBLISHED_TRAIN, "valid": PUBLISHED_VALID})
    gap = split.gap if mode == "blocks" else 0
    counts = _counts(split, total=len(pool), test=test, gap=gap, name=str(path))
    how = {
        "random": f"random, seed {seed}",
        "group": f"whole groups, seed {seed}",
        "blocks": f"contiguous blocks in file order, {counted(gap, 'frame')} left out between them",
        "published": f"the published MD17 split (default_rng({PUBLISHED_SEED}).permutation)",
    }[mode]
    if mode in ("blocks", "published"):
        order = pool if mode == "blocks" else pool[np.random.default_rng(PUBLISHED_SEED).permutation(len(pool))]
        parts = _consecutive(order, counts, gap)
    else:
        by_group = partial(_by_group, pool, groups, name=str(path), all_others=split.train is None)
        draw = by_group if mode == "group" else partial(_at_random, pool)
        parts = draw(counts, seed, elements=())
        if elements and _untrained(parts, elements):
            other = draw(counts, seed, elements=elements)
            if not _untrained(other, elements):
                parts, how = other, f"{how}, rare elements first, so that training has all"
    if mode == "group" and any(len(part) > 2 * asked for part, asked in zip(parts[1:], counts[1:], strict=True)):
        how += f"; {counts[1]} valid and {counts[2]} test were asked for, and no group is divided"
    size, sha256 = identity_of(path)
    sizes = " / ".join(f"{len(part)} {name}" for part, name in zip(parts, PARTS, strict=True))
    train, valid, held_out = parts
    return Splits(train, valid, held_out, file=path.name, size=size, sha256=sha256, how=f"{sizes} ({how})")


def _untrained(parts: Sequence[np.ndarray], elements: Sequence[frozenset[int]]) -> frozenset[int]:
    """Atomic numbers of the other parts that training lacks."""
    train, *others = (frozenset[int]().union(*(elements[frame] for frame in part)) for part in parts)
    return frozenset[int]().union(*others) - train


def rare_first(order: np.ndarray, elements: Sequence[frozenset[int]]) -> np.ndarray:
    """The order [M], but before all others some places whose ``elements`` [M] together are all that there are.

    From the rarest element to the most common, unless one chosen before has it: of the places that have it the one
    with most elements that are still lacking.
    """
    chosen = _with_all(elements)
    return np.concatenate([order[chosen], order[~chosen]])


def _with_all(elements: Sequence[frozenset[int]]) -> np.ndarray:
    """The places [M] that :func:`rare_first` puts first."""
    holders: dict[int, list[int]] = {}
    for place, own in enumerate(elements):
        for element in own:
            holders.setdefault(element, []).append(place)
    known: frozenset[int] = frozenset()
    chosen = np.zeros(len(elements), dtype=bool)
    for element in sorted(holders, key=lambda element: (len(holders[element]), element)):
        if element not in known:
            best = max(holders[element], key=lambda place: len(elements[place] - known))
            chosen[best] = True
            known |= elements[best]
    return chosen


def content_in_words(path: Path) -> str:
    """The content of a file or folder for comparisons, in words; of files above ``LARGE`` bytes their size alone."""
    large = path.is_file() and path.stat().st_size > LARGE
    return f"{path.stat().st_size} bytes" if large else f"sha256 {identity_of(path)[1]}"


def identity_of(path: Path) -> tuple[int, str]:
    """Bytes and SHA-256 of a file; of several the bytes of all, and a hash of their names and contents.

    The content of a shard, and of files above ``LARGE`` bytes, is their size here.  Of Denskit's shards the identity is
    that of their index, which has the digest of each shard.
    """
    path = path / INDEX if (path / INDEX).is_file() else path
    if files := files_in(path):
        top = os.path.commonpath([file.parent for file in files])
        contents: dict[str, str | int] = {}
        for file in files:
            size = file.stat().st_size
            contents[os.path.relpath(file, top)] = size if size > LARGE or are_shards(file) else sha256_of(file)
        return sum(file.stat().st_size for file in files), hashlib.sha256(repr(contents).encode()).hexdigest()
    if not path.is_dir():
        return path.stat().st_size, sha256_of(path)
    inside = shards_in(path) or sorted(file for file in path.rglob("*") if file.is_file())
    sizes = {str(file.relative_to(path)): file.stat().st_size for file in inside}
    return sum(sizes.values()), hashlib.sha256(repr(sizes).encode()).hexdigest()


def _counts(split: SplitConfig, *, total: int, test: bool, gap: int, name: str) -> tuple[int, int, int]:
    def frames(part: str) -> int | None:
        share = getattr(split, part)
        return max(1, round(share * total)) if isinstance(share, float) else share

    if split.test and not test:
        raise ValueError(f"split.test={split.test} divides {name}, but data.test names a file for them")
    default = _default(split, total)
    train, valid, held_out = frames("train"), frames("valid"), frames("test") if test else 0
    valid = default if valid is None else valid
    if held_out is None and train is None:
        held_out = default
    gaps = gap * ((valid > 0) + (held_out is None or held_out > 0))
    room = total - gaps - valid - (held_out or 0)
    if train == 0:
        raise ValueError(f"{name}: data.split.train=0 leaves nothing to train on; give at least 1")
    if train is None or (not gaps and _take_all(split, test=test)):
        train = room
    if room < train or train < 1:
        wanted = f"{max(train, 1)} train + {valid} valid" + (f" + {held_out} test" if held_out is not None else "")
        between = f" and {gaps} between blocks" if gaps else ""
        raise ValueError(
            f"{name} has {counted(total, 'frame')} to divide; {wanted}{between} are wanted. "
            "Ask for fewer (data.split.train, data.split.valid), or give valid and test files (data.train, data.valid, "
            "data.test)"
        )
    return train, valid, room - train if held_out is None else held_out


def _default(split: SplitConfig, total: int) -> int:
    """Structures of validation, and of test, where they are not given: no fewer than can judge a model."""
    share = max(1, round(DEFAULT * total))
    if isinstance(split.train, float):
        return share
    room = (total - (split.train or 0)) // 2
    return max(share, min(FEW, total // 8, room))


def _take_all(split: SplitConfig, *, test: bool) -> bool:
    """Whether the shares are all and leave no frame: each is rounded alone, so training takes what is left."""
    valid = DEFAULT if split.valid is None else split.valid
    shares = [share for share in (split.train, valid, split.test if test else None) if share]
    return all(isinstance(share, float) for share in shares) and math.isclose(sum(shares), 1)


def _consecutive(order: np.ndarray, counts: tuple[int, int, int], gap: int) -> list[np.ndarray]:
    parts, begin = [], 0
    for count in counts:
        parts.append(order[begin : begin + count].astype(np.int64))
        begin += count + gap if count else 0
    return parts


def _at_random(
    pool: np.ndarray, counts: tuple[int, int, int], seed: int, *, elements: Sequence[frozenset[int]]
) -> list[np.ndarray]:
    order = pool[np.random.default_rng(seed).permutation(len(pool))]
    if elements:
        order = rare_first(order, [elements[frame] for frame in order])
    return _consecutive(order, counts, 0)


def _by_group(
    pool: np.ndarray,
    groups: Sequence[str],
    counts: tuple[int, int, int],
    seed: int,
    *,
    elements: Sequence[frozenset[int]],
    name: str,
    all_others: bool,
) -> list[np.ndarray]:
    """Whole groups for valid and test up to their counts; training frames from the remaining groups.

    A group that would make a part more than twice as large as asked is left to training where another would not.
    ``all_others``: all frames of the remaining groups are for training.
    """
    if not groups:
        raise ValueError(f"{name}: a split by group needs data.group_key, the field that names each frame's group")
    labels = np.array([groups[index] for index in pool])
    unnamed = np.flatnonzero(labels == "")
    if len(unnamed):
        raise ValueError(
            f"{name}: {counted(len(unnamed), 'frame')} without a group, the first is frame {pool[unnamed[0]]}"
        )
    rng = np.random.default_rng(seed)
    order, kept = rng.permutation(np.unique(labels)), 0
    if elements:
        of_group: dict[str, frozenset[int]] = {}
        for label, frame in zip(labels, pool, strict=True):
            of_group[label] = of_group.get(label, frozenset()) | elements[frame]
        own = [of_group[label] for label in order]
        order, kept = rare_first(order, own), int(_with_all(own).sum())
    left, sizes = list(order), {label: int((labels == label).sum()) for label in order}
    wanted_parts = 1 + (counts[1] > 0) + (counts[2] > 0)
    if len(left) < wanted_parts:
        raise ValueError(f"{name} has {counted(len(left), 'group')}; {wanted_parts} parts need at least as many")
    held_out = []
    for count, after in ((counts[1], 1 + (counts[2] > 0)), (counts[2], 1)):
        taken: list[str] = []
        size = 0
        while size < count and len(left) > after:
            free = left[kept:] or left  # the first ones are for training
            fitting = [label for label in free if size + sizes[label] <= 2 * count]
            if size and not fitting:
                break
            taken.append(fitting[-1] if fitting else min(reversed(free), key=sizes.__getitem__))
            left.remove(taken[-1])
            size += sizes[taken[-1]]
        held_out.append(np.sort(pool[np.isin(labels, taken)]).astype(np.int64))
    train = rng.permutation(pool[np.isin(labels, left)])
    if elements:
        train = rare_first(train, [elements[frame] for frame in train])
    return [np.sort(train if all_others else train[: counts[0]]).astype(np.int64), *held_out]
