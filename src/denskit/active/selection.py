"""Frames to label next: by the spread of a committee, by distance from the training set, or far from each other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import ase
import ase.io
import numpy as np
import torch
from torch import Tensor

from denskit.active.frames import look_at, read_frames
from denskit.batch import System
from denskit.data.base import evenly
from denskit.data.writing import in_extxyz
from denskit.evaluation.evaluate import run_data
from denskit.evaluation.novelty import nearest_distance, novelty
from denskit.files import atomic_write, new_frames_file
from denskit.models.base import ForceField
from denskit.models.model_file import Model
from denskit.runtime.device import choose_device
from denskit.runtime.progress import Report, unreported
from denskit.simulation.potential import Potential
from denskit.training.run_folder import RunFolder, model_file

By = Literal["spread", "farthest", "distance"]
MEANING = {
    "spread": "largest spread of the force on an atom over the models, eV/Å",
    "farthest": "distance to the nearest training or chosen frame, 1: typical distance of two frames",
    "distance": "largest distance of an atom to the nearest training atom, 1: typical from training frame to frame",
}
MOST_TRAINING = 2000  # structures of a larger training set that are compared with, evenly spaced
SAMPLE = 500  # frames of which the typical distance is measured


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
    exploded: list[int]  # frames with more spread than allowed
    known: list[int]  # frames nearly equal to a training frame
    alike: int  # frames nearly equal to a chosen one, of those met
    threshold: float  # frames nearer than this are nearly equal; 1: typical distance of two frames


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
        duplicate: frames nearer than this to a training or chosen frame are left out; 1 is the median distance of two
            training frames, or frames of the pool where there are none.
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
    potential = _potential(given, device)
    numbers = [frame.numbers if isinstance(frame, ase.Atoms) else frame.atomic_numbers for frame in [*frames, *known]]
    elements = torch.from_numpy(np.unique(np.concatenate(numbers))).long()
    name = str(pool) if isinstance(pool, str | Path) else "the pool"
    for model in potential.models if potential is not None else ():
        for place in range(len(frames)):
            model.scaling.check_elements(numbers[place], f"{name}, frame {place},")
    look = look_at(frames, potential, batch_size, elements, progress)
    reference = look_at(known, potential, batch_size, elements, progress) if known else None
    found = look.fingerprints(elements)
    taken = found[:0] if reference is None else reference.fingerprints(elements)[reference.usable]
    unit = _typical(taken if len(taken) > 1 else found[look.usable])
    apart = nearest_distance(found, taken) / unit  # [P], infinite without training frames
    wild = torch.zeros_like(look.usable)
    if look.spread is not None and most_spread is not None:
        wild = look.spread > most_spread
    allowed = look.usable & ~wild & (apart >= duplicate)
    score = None
    if by == "spread":
        score = look.spread
    elif by == "distance":
        assert reference is not None
        new = novelty(look, reference)
        score = torch.zeros(len(frames), dtype=torch.float64).scatter_reduce(0, look.frame, new, "amax")
    chosen, scores, nearest = _pick(found / unit, apart, allowed, score, count, duplicate)
    return Selection(
        chosen=chosen, scores=scores, nearest=nearest, by=by, pool=len(frames), training=len(known),
        broken=_rows(~look.usable), exploded=_rows(wild), known=_rows(look.usable & ~wild & (apart < duplicate)),
        alike=_alike(found / unit, chosen, allowed, duplicate), threshold=duplicate,
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
        chosen.append(in_extxyz(atoms))
    with atomic_write(path) as temporary:
        ase.io.write(temporary, chosen, format="extxyz")
    return path


def _training(
    models: Sequence[Model], train: str | Path | Sequence[ase.Atoms] | None
) -> list[ase.Atoms] | list[System]:
    """The frames to compare with: those given, else those that the first model was trained on, else none."""
    if train is not None:
        return read_frames(train) if isinstance(train, str | Path) else list(train)
    if models and not isinstance(models[0], ForceField) and RunFolder(Path(models[0])).config.is_file():
        return list(evenly(run_data(Path(models[0])).train, MOST_TRAINING))
    return []


def _check(by: By, models: int, count: int, most_spread: float | None, *, has_training: bool) -> None:
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


def _pick(
    places: Tensor, apart: Tensor, allowed: Tensor, score: Tensor | None, count: int, threshold: float
) -> tuple[list[int], list[float], list[float]]:
    """Frames with the highest scores one by one, each at least ``threshold`` from those before, with their distances.

    places: [P, D].  apart: [P] from training.  score: [P]; None: farthest-point sampling, whose score is the distance
    itself; without training it begins with the frame farthest from the mean.
    """
    nearest = apart.clone()
    chosen: list[int] = []
    scores, distances = [], []
    while len(chosen) < count and bool(allowed.any()):
        value = nearest if score is None else score
        if score is None and not chosen and bool(apart.isinf().all()):
            value = (places - places[allowed].mean(0)).norm(dim=1)
        best = int(torch.where(allowed, value, -torch.inf).argmax())
        chosen.append(best)
        scores.append(float(value[best]))
        distances.append(float(nearest[best]))
        nearest = torch.minimum(nearest, (places - places[best]).norm(dim=1))
        allowed = allowed & (nearest >= threshold)
        allowed[best] = False
    return chosen, scores, distances


def _alike(places: Tensor, chosen: list[int], allowed: Tensor, threshold: float) -> int:
    """Frames that were allowed, but lie within the threshold of a chosen one."""
    if not chosen:
        return 0
    left = allowed.clone()
    left[chosen] = False
    return int((nearest_distance(places[left], places[chosen]) < threshold).sum())


def _typical(places: Tensor) -> float:
    """Median distance of two of at most ``SAMPLE`` points; 1 for a single point or equal ones."""
    sample = places[:: max(1, len(places) // SAMPLE)]
    pairs = torch.pdist(sample)
    median = float(pairs.median()) if len(pairs) else 0.0
    return median if median > 0 else 1.0


def _rows(mask: Tensor) -> list[int]:
    rows: list[int] = mask.nonzero()[:, 0].tolist()
    return rows
