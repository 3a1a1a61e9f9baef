"""Frames to label next: by the spread of a committee, by distance from the training set, or far from each other."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import ase
import numpy as np
import torch
from torch import Tensor

from denskit.active.frames import Look, look_at, read_frames
from denskit.data.base import evenly
from denskit.data.frames import exact_extxyz
from denskit.data.writing import plain
from denskit.evaluation.judged_structures import run_data
from denskit.evaluation.novelty import nearest_distance, novelty
from denskit.files import atomic_write, new_frames_file
from denskit.models.base import ForceField
from denskit.models.model_file import Model
from denskit.runtime.device import choose_device
from denskit.runtime.progress import Report, unreported
from denskit.settings import require_known
from denskit.simulation.potential import Potential
from denskit.training.load_config import load_config
from denskit.training.replay import old_structures
from denskit.training.run_folder import RunFolder, model_file

By = Literal["spread", "farthest", "distance"]
Formula = tuple[tuple[int, int], ...]  # atomic numbers, ascending, with their counts
MEANING = {
    "spread": "largest spread of the force on an atom over the models, eV/Å",
    "farthest": "distance to the nearest training or chosen frame, 1: typical distance of two of one composition",
    "distance": "largest distance of an atom to the nearest training atom, 1: typical from training frame to frame",
}
MOST_TRAINING = 2000  # structures of a larger training set that are compared with, evenly spaced
SAMPLE = 500  # frames of a composition of which the typical distance is measured


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Frames of a pool that are to be labelled, best first, and the fate of the others."""

    chosen: list[int]  # numbers of frames in the pool
    scores: list[float]  # of the chosen, in the meaning of ``MEANING[by]``
    nearest: list[float]  # distance of each from the nearest training frame or frame chosen before; 1: typical
    by: By
    pool: int  # frames looked at
    training: int  # frames compared with
    broken: list[int]  # frames that cannot be evaluated
    alone: list[int]  # frames in which an atom sees no other, as in no training frame
    torn: list[int]  # molecules in more parts than any training frame of their formula
    exploded: list[int]  # frames with more spread than allowed
    known: list[int]  # frames nearly equal to a training frame
    alike: int  # frames nearly equal to a chosen one, of those met
    threshold: float  # frames nearer than this are nearly equal; 1: typical distance of two frames of one composition


def select(
    models: Model | Sequence[Model],
    pool: str | Path | Sequence[ase.Atoms],
    *,
    count: int,
    by: By | None = None,
    train: str | Path | Sequence[ase.Atoms] | None = None,
    duplicate: float = 0.1,
    most_spread: float | None = None,
    device: str = "auto",
    batch_size: int = 32,
    progress: Report = unreported,
) -> Selection:
    """Choose frames of a pool for labelling; at most ``count``, fewer where the others are duplicates.

    Args:
        models: run folders, model files or force fields; two or more are a committee; an empty list: radial features.
        pool: frames, a file of them, or a folder of ``denskit md``.
        count: frames wanted.
        by: "spread" of the committee, "farthest" from training and chosen frames, "distance" of atoms from those of
            training; None: spread with a committee, else farthest.
        train: training frames, or a file of them; None: those of the first model, if it is a run folder.
        duplicate: frames nearer than this to a training or chosen frame of their composition are left out; 1 is the
            median distance of two training frames of one composition, or of the pool where there are no such.
        most_spread: eV/Å; frames with more are left out as exploded.
        device: of the models.
        batch_size: frames evaluated at once.
        progress: called after each batch.

    Raises:
        FileNotFoundError: No such file.
        ValueError: A score that the models cannot give, an unknown element, no usable frame.
    """
    given = [models] if isinstance(models, str | os.PathLike | ForceField) else list(models)
    by = by or ("spread" if len(given) > 1 else "farthest")
    frames = read_frames(pool) if isinstance(pool, str | Path) else list(pool)
    known = _training(given, train)
    _check(by, len(given), count, most_spread, has_training=bool(known))
    name = str(pool) if isinstance(pool, str | Path) else "the pool"
    numbers = [frame.numbers for frame in [*frames, *known]]
    elements = torch.from_numpy(np.unique(np.concatenate(numbers))).long()
    potential = _potential(given, device)
    for model in potential.models if potential is not None else ():
        for place in range(len(frames)):
            model.scaling.check_elements(numbers[place], f"{name}, frame {place},")
    look = look_at(frames, potential, batch_size, elements, progress)
    reference = look_at(known, potential, batch_size, elements, progress) if known else None
    formulas, wild = [_formula(each) for each in numbers], torch.zeros_like(look.usable)
    if look.spread is not None and most_spread is not None:
        wild = look.spread > most_spread
    alone, torn = _flown_apart(look, reference, formulas, seen=bool(given))
    fit = look.usable & ~alone & ~torn
    kinds = _compositions(formulas)
    own = _Places(look.fingerprints(elements), kinds[: len(frames)])
    others = own.where(torch.zeros_like(fit))
    if reference is not None:
        others = _Places(reference.fingerprints(elements), kinds[len(frames) :]).where(reference.usable)
    unit = _unit(others, own.where(fit))
    own, others = own.over(unit), others.over(unit)
    near = own.from_alike(others)
    allowed = fit & ~wild & (near >= duplicate)
    score = None
    if by == "spread":
        score = look.spread
    elif by == "distance":
        assert reference is not None
        new = novelty(look, reference)
        score = torch.zeros(len(frames), dtype=torch.float64).scatter_reduce(0, look.frame, new, "amax")
    apart = nearest_distance(own.points, others.points)  # [P], infinite without training frames
    chosen, scores, nearest = _pick(own, apart, allowed, score, count, duplicate)
    return Selection(
        chosen=chosen, scores=scores, nearest=nearest, by=by, pool=len(frames), training=len(known),
        broken=_rows(~look.usable), alone=_rows(alone), torn=_rows(torn), exploded=_rows(fit & wild),
        known=_rows(fit & ~wild & (near < duplicate)), alike=_alike(own, chosen, allowed, duplicate),
        threshold=duplicate,
    )  # fmt: skip


def write_selection(
    selection: Selection, pool: str | Path | Sequence[ase.Atoms], output: str | Path, *, force: bool = False
) -> Path:
    """Write the chosen frames, best first, as extxyz with all their fields.

    ``info`` gets ``selection_score``, ``selection_by`` and ``selection_frame``, the number in the pool.
    Raises ValueError where the output is no extxyz by its name, exists (and not ``force``) or is the pool.
    """
    path = new_frames_file(output, inputs=[pool] if isinstance(pool, str | Path) else [], force=force)
    frames = read_frames(pool) if isinstance(pool, str | Path) else pool
    chosen = []
    for frame, score in zip(selection.chosen, selection.scores, strict=True):
        atoms = frames[frame].copy()
        atoms.calc = frames[frame].calc
        atoms.info |= {"selection_score": score, "selection_by": selection.by, "selection_frame": frame}
        chosen.append(atoms)
    with atomic_write(path) as temporary:
        temporary.write_text("".join(exact_extxyz(chosen)), encoding="utf-8")
    return path


def _training(models: Sequence[Model], train: str | Path | Sequence[ase.Atoms] | None) -> list[ase.Atoms]:
    """The frames to compare with: those given, else those that the first model was trained on, else none.

    Replayed ones are among them.  Raises FileNotFoundError where files are gone.
    """
    if train is not None:
        return read_frames(train) if isinstance(train, str | Path) else list(train)
    if not models or isinstance(models[0], ForceField) or not RunFolder(Path(models[0])).config.is_file():
        return []
    run = Path(models[0])
    found = [plain(system) for system in evenly(run_data(run).train, MOST_TRAINING)]
    config = load_config(run)
    if config.training.replay is None:
        return found
    try:
        return found + [plain(system) for system in evenly(old_structures(config)[0], MOST_TRAINING)]
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{run} replayed old structures, which are not there: {error}. Give the training frames (--train)"
        ) from error


def _check(by: By, models: int, count: int, most_spread: float | None, *, has_training: bool) -> None:
    require_known("by", by, MEANING)
    if count < 1:
        raise ValueError(f"{count} frames wanted; give 1 or more")
    if models < 2 and (by == "spread" or most_spread is not None):
        raise ValueError(f"a spread needs a committee of two models or more; {models} given")
    if by == "distance" and not has_training:
        raise ValueError("a distance from training needs the training frames: give a run folder, or the file (--train)")


def _potential(models: Sequence[Model], device: str) -> Potential | None:
    if not models:
        return None
    files = [model if isinstance(model, ForceField) else model_file(model) for model in models]
    placed = None if isinstance(models[0], ForceField) else choose_device(device)
    return Potential(files, device=placed)


class _Places(NamedTuple):
    """Frames as points, with their compositions."""

    points: Tensor  # [P, D]
    kinds: Tensor  # [P] int64, equal where the shares of the elements are

    def where(self, rows: Tensor) -> _Places:
        """The frames at ``rows``, a mask [P] or numbers."""
        return _Places(self.points[rows], self.kinds[rows])

    def over(self, unit: float) -> _Places:
        """The same with distances in a unit."""
        return _Places(self.points / unit, self.kinds)

    def from_alike(self, others: _Places) -> Tensor:
        """Distance [P] to the nearest of the others of equal composition; infinite where there is none."""
        found = torch.full((len(self.kinds),), torch.inf, dtype=self.points.dtype)
        for kind in self.kinds.unique():
            rows = self.kinds == kind
            found[rows] = nearest_distance(self.points[rows], others.points[others.kinds == kind])
        return found


def _formula(numbers: np.ndarray) -> Formula:
    elements, counts = np.unique(numbers, return_counts=True)
    return tuple(zip(elements.tolist(), counts.tolist(), strict=True))


def _compositions(formulas: Sequence[Formula]) -> Tensor:
    """A number [P] for each formula, equal for equal shares of the elements: a cell and its supercell are alike."""
    kinds: dict[Formula, int] = {}
    found = []
    for formula in formulas:
        divisor = math.gcd(*(count for _, count in formula))
        found.append(kinds.setdefault(tuple((z, count // divisor) for z, count in formula), len(kinds)))
    return torch.tensor(found, dtype=torch.int64)


def _flown_apart(
    look: Look, reference: Look | None, formulas: Sequence[Formula], *, seen: bool
) -> tuple[Tensor, Tensor]:
    """Frames [P] with an atom that sees no other, and molecules in more parts than in training, of those usable.

    ``formulas``: of the frames, then of those of training, which show what is usual.  ``seen``: by a model, which has
    nothing to say of an atom alone; without training frames it is taken to know none.
    """
    alone = look.alone & (seen or reference is not None)
    if reference is None:
        return alone, torch.zeros_like(alone)
    if bool(reference.alone.any()):
        alone = torch.zeros_like(alone)
    most: dict[Formula, int] = {}
    for formula, parts in zip(formulas[len(alone) :], reference.parts.tolist(), strict=True):
        most[formula] = max(parts, most.get(formula, 0))
    usual = torch.tensor([most.get(formula, 0) for formula in formulas[: len(alone)]])  # 0: not known
    return alone, ~alone & (usual > 0) & (look.parts > usual)


def _unit(training: _Places, pool: _Places) -> float:
    """The distance that is 1: that of two frames of one composition, of training if it has such.

    Frames of several compositions differ by far more than those of one.  Without two of one the median distance of any
    two; 1 for equal ones.
    """
    both = _Places(*(torch.cat(pair) for pair in zip(training, pool, strict=True)))
    for places in (training, pool, both):
        if (typical := _typical(places)) > 0:
            return typical
    any_two = training if len(training.points) > 1 else pool
    return _typical(_Places(any_two.points, torch.zeros_like(any_two.kinds))) or 1.0


def _typical(places: _Places) -> float:
    """Median distance of two frames of one composition, each frame counting once; 0 where there are no two.

    Pairs alone would let the composition with the most frames decide.
    """
    apart, weights = [torch.zeros(0, dtype=torch.float64)], [torch.zeros(0, dtype=torch.float64)]
    for kind in places.kinds.unique():
        own = places.points[places.kinds == kind]
        pairs = torch.pdist(own[:: max(1, len(own) // SAMPLE)])
        apart.append(pairs)
        weights.append(torch.full_like(pairs, len(own) / max(1, len(pairs))))
    distances, order = torch.cat(apart).sort()
    if not len(distances):
        return 0.0
    below = torch.cat(weights)[order].cumsum(0)
    half = below[-1] / 2 * (1 - 1e-9)  # rounding takes no other of two middle ones than the lower
    return float(distances[torch.searchsorted(below, half)])


def _pick(
    own: _Places, apart: Tensor, allowed: Tensor, score: Tensor | None, count: int, threshold: float
) -> tuple[list[int], list[float], list[float]]:
    """Frames with the highest scores one by one, with their distances from those before.

    None is nearer than ``threshold`` to one of its composition.  apart: [P] from training.  score: [P]; None:
    farthest-point sampling, whose score is the distance itself; without training it begins with the frame farthest from
    the mean.
    """
    nearest = apart.clone()
    chosen: list[int] = []
    scores, distances = [], []
    while len(chosen) < count and bool(allowed.any()):
        value = nearest if score is None else score
        if score is None and not chosen and bool(apart.isinf().all()):
            value = (own.points - own.points[allowed].mean(0)).norm(dim=1)
        best = int(torch.where(allowed, value, -torch.inf).argmax())
        chosen.append(best)
        scores.append(float(value[best]))
        distances.append(float(nearest[best]))
        gap = (own.points - own.points[best]).norm(dim=1)
        nearest = torch.minimum(nearest, gap)
        allowed = allowed & ((gap >= threshold) | (own.kinds != own.kinds[best]))
        allowed[best] = False
    return chosen, scores, distances


def _alike(own: _Places, chosen: list[int], allowed: Tensor, threshold: float) -> int:
    """Frames that were allowed, but lie within the threshold of a chosen one."""
    left = allowed.clone()
    left[chosen] = False
    return int((own.where(left).from_alike(own.where(torch.tensor(chosen, dtype=torch.int64))) < threshold).sum())


def _rows(mask: Tensor) -> list[int]:
    rows: list[int] = mask.nonzero()[:, 0].tolist()
    return rows
