"""Frames with all their fields, their predictions and their fingerprints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import ase
import torch
from torch import Tensor

from denskit.batch import Batch, select
from denskit.data import read_file
from denskit.data.config import DataConfig
from denskit.data.frames import bare
from denskit.data.overlaps import overlaps
from denskit.data.readers.ase_files import frames_in
from denskit.data.readers.folders import read_warned
from denskit.data.readers.formats import TRAJECTORIES, is_read_by_ase, path_of
from denskit.data.writing import Originals
from denskit.evaluation.novelty import CUTOFF, Surroundings, radial_features
from denskit.geometry.neighbors import build_neighbors
from denskit.models.base import ForceField
from denskit.models.prediction import groups
from denskit.reading.budget import naming
from denskit.runtime.progress import Report, unreported
from denskit.simulation.dynamics.committee import largest_spread
from denskit.simulation.dynamics.observers import bonded_parts
from denskit.simulation.neighbor_list import unusable
from denskit.simulation.potential import Potential
from denskit.simulation.structures import batch_of, system_of


def read_frames(path: str | Path) -> list[ase.Atoms]:
    """All frames of a file or address with all fields, or of the trajectories in a folder of ``denskit md``.

    Raises FileNotFoundError, and ValueError for a file that cannot be read or holds no frame.
    """
    path = path_of(path)
    files = sorted(path.glob(TRAJECTORIES)) if path.is_dir() else []
    if files:
        return [atoms for file in files for atoms in read_frames(file)]
    if is_read_by_ase(path):
        with naming(path, "cannot be read"):
            frames = list(frames_in(path))
    else:
        source = read_warned(path, DataConfig(missing="mask"), read_file)
        original = Originals(path, source)
        frames = [original(system) for system in source]
    if not frames:
        raise ValueError(f"{path} holds no frame")
    return frames


@dataclass(frozen=True, kw_only=True)
class Look(Surroundings):
    """Features of all atoms of usable frames, and the spread of a committee on each frame."""

    usable: Tensor  # [P] bool: False where atoms lie on each other, are too far apart or are not finite
    alone: Tensor  # [P] bool: True where one of several atoms has no neighbour within the cutoff
    parts: Tensor  # [P] int64: parts of a molecule that no bond joins; 0 with periodicity, and where not usable
    spread: Tensor | None  # [P] eV/Å, NaN where not usable; None: fewer than two models

    def fingerprints(self, elements: Tensor) -> Tensor:
        """Sums of the features over the atoms of each element, per atom of the frame: [P, len(elements) * C]."""
        frames, width = len(self.usable), self.features.shape[1]
        place = torch.searchsorted(elements, self.numbers)
        sums = self.features.new_zeros(frames * len(elements), width)
        sums.index_add_(0, self.frame * len(elements) + place, self.features)
        atoms = torch.bincount(self.frame, minlength=frames).clamp(min=1)
        return sums.reshape(frames, -1) / atoms[:, None]


def look_at(
    frames: Sequence[ase.Atoms],
    potential: Potential | None,
    batch_size: int,
    elements: Tensor,
    progress: Report = unreported,
) -> Look:
    """Features of frames: of the last layer of the first model, or radial ones without a model; spread of several.

    elements: [E] sorted atomic numbers that occur, for the radial features.  Raises ValueError for elements that a
    model does not know.
    """
    usable = torch.ones(len(frames), dtype=torch.bool)
    spread = torch.full((len(frames),), torch.nan, dtype=torch.float64)
    alone, parts = torch.zeros_like(usable), torch.zeros(len(frames), dtype=torch.int64)
    features, numbers, owner = [], [], []
    cutoff = CUTOFF if potential is None else potential.cutoff
    several = potential is not None and len(potential.models) > 1
    for rows in groups(range(len(frames)), batch_size, lambda row: len(frames[row])):
        structures = [bare(frames[row]) for row in rows]
        batch = batch_of(structures)
        bad = unusable(batch, cutoff)
        for system, _, _ in overlaps(system_of(frame, place) for place, frame in enumerate(structures)):
            bad[system.index] = True
        usable[rows] = ~bad
        progress(rows[-1] + 1, f"{rows[-1] + 1} of {len(frames)} frames", len(frames))
        rows = [row for row, wrong in zip(rows, bad.tolist(), strict=True) if not wrong]
        if not rows:
            continue
        if bool(bad.any()):
            batch = batch_of([bare(frames[row]) for row in rows])
        alone[rows], parts[rows] = _alone(batch, cutoff), _parts(batch)
        if potential is None:
            found = radial_features(batch, elements)
        else:
            found = _last_layer(potential.models[0], batch)
            if several:
                evaluation = potential(batch)
                assert evaluation.forces_std is not None
                spread[rows] = largest_spread(batch.to(potential.device), evaluation.forces_std).cpu()
        features.append(found.double().cpu())
        numbers.append(batch.atomic_numbers)
        owner.append(torch.tensor(rows)[batch.system_index])
    if not features:
        raise ValueError("no frame is usable: in each, atoms lie on each other, have flown apart or are not finite")
    return Look(
        features=torch.cat(features), numbers=torch.cat(numbers), frame=torch.cat(owner), usable=usable,
        alone=alone, parts=parts, spread=spread if several else None,
    )  # fmt: skip


def _alone(batch: Batch, cutoff: float) -> Tensor:
    target = build_neighbors(batch, cutoff).built_edges.index[1]
    lonely = torch.bincount(target, minlength=batch.num_atoms) == 0
    return (batch.sum_over_atoms(lonely.long()) > 0) & (batch.n_atoms > 1)


def _parts(batch: Batch) -> Tensor:
    parts = torch.zeros(batch.num_systems, dtype=torch.int64)
    molecules = ~batch.pbc.any(1)
    if bool(molecules.any()):
        parts[molecules] = bonded_parts(select(batch, molecules))
    return parts


def _last_layer(model: ForceField, batch: Batch) -> Tensor:
    """Invariant features [N, C] of the last layer, which the energy head reads."""
    model.scaling.check_elements(batch.atomic_numbers)
    parameter = next(model.parameters())
    # relative to the first atoms, as in Potential: in float32, positions far from the origin lose digits
    first = batch.positions[batch.first_atoms][batch.system_index]
    near = replace(batch, positions=batch.positions - first)
    ready = model.config.with_neighbors(near.to(parameter.device, parameter.dtype))
    with torch.no_grad():
        return model.backbone(ready, l_out=0, execution=model.execution).nodes[0][:, 0]
