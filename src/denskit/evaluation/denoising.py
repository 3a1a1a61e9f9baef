"""Denoising error of a model trained with DeNS or Noisy Nodes: a diagnostic of the auxiliary task, not an accuracy.

Force labels of the judged structures are inputs here.  These numbers must not choose a checkpoint, and say nothing
about the error of a force field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch

from denskit.batch import Batch, System, Targets
from denskit.data.base import Source, collate
from denskit.evaluation.evaluate import Kept, Split, load_force_field
from denskit.evaluation.judged_structures import source_of
from denskit.models.base import ForceField
from denskit.models.prediction import batches
from denskit.random import keys_for
from denskit.runtime.progress import counted
from denskit.tasks import CellDeNSConfig, Denoises, DeNSConfig, Task, build_task, denoises
from denskit.tasks.metrics import Metrics
from denskit.training.load_config import load_config

_NAME = "noise_error_relative_to_zero"
_DRAWS = 50  # of the atoms of one structure
_GUESSED = 0.6  # noise error without forces: 0.8 to 1.9 where DeNS was measured to pay, 0.3 to 0.5 where it did harm


class NothingDrawnError(ValueError):
    """No atom was corrupted: the structures are too few, or none may be corrupted (no forces, too large ones, ...)."""


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """Errors for one kind of noise: mean |error| over mean |noise|, so 1 is predicting zero."""

    sigma: float  # Å
    corruption_ratio: float
    atoms: int  # corrupted
    with_forces: float | None  # the true forces of corrupted atoms encoded; None for a run without force encoding
    without_forces: float


def denoise(
    run: str | Path,
    source: Source | str | Path | None = None,
    *,
    sigmas: Sequence[float] = (),
    ratios: Sequence[float] = (),
    split: Split = "test",
    checkpoint: Kept | None = None,
    device: str = "auto",
    batch_size: int = 32,
) -> list[Recovery]:
    """Corrupt structures and predict their noise, for each corruption ratio and sigma.

    A model predicts noise in units of its training sigma, and does not know the sigma of a structure: the noise is
    compared in Å, or in proportion to the table of a run whose sigma differs between elements.  All cells of the grid
    share their random numbers.

    Args:
        run: run folder of a training with DeNS or Noisy Nodes (which corrupts all atoms: its only ratio is 1).
        source: labelled structures, or a file of them; None: the ``split`` of the run's own data.
        sigmas: of the noise, Å (means over a run's table of elements); none: half, once and twice the run's own.
        ratios: shares of the free atoms that are corrupted; none: once and twice the run's own, and all.
        split, checkpoint, device, batch_size: as for :func:`denskit.evaluation.evaluate.evaluate`.

    Raises ValueError for another task and values out of range, NothingDrawnError where no atom was corrupted.
    """
    task, seed = _task_and_seed(run)
    own_sigma, own_ratio = _own(task)
    force_field = load_force_field(run, checkpoint, device)
    cells = [
        _Cell(task, sigma, ratio, next(force_field.parameters()).device)
        for ratio, sigma in product(
            ratios or sorted({own_ratio, min(2 * own_ratio, 1.0), 1.0}),
            sigmas or [own_sigma / 2, own_sigma, own_sigma * 2],
        )
    ]
    structures = source_of(run, source, split)
    first = 0
    with torch.no_grad():
        for systems, batch, targets in batches(force_field, structures, batch_size, edges=False):
            numbers = torch.arange(first, first + len(systems), device=batch.positions.device)
            for cell in cells:
                cell.add(force_field, batch, targets, keys_for(seed, 0, numbers))
            first += len(systems)
    if not all(cell.atoms for cell in cells):
        judged = counted(len(structures), "structure")
        raise NothingDrawnError(f"{structures.name}: no atom of {judged} was corrupted; give more, with forces")
    return [cell.recovery() for cell in cells]


def noise_error(run: str | Path) -> dict[str, float]:
    """:func:`denoise` on the test split with the run's own sigma and ratio alone, as named numbers.

    The first was predicted with force labels of the split as inputs, the second without.  Raises as :func:`denoise`.
    """
    sigma, ratio = own_noise(run)
    (found,) = denoise(run, sigmas=[sigma], ratios=[ratio])
    informed = {} if found.with_forces is None else {f"{_NAME}_with_test_forces": found.with_forces}
    return informed | {f"{_NAME}_without_forces": found.without_forces}


def own_noise(run: str | Path) -> tuple[float, float]:
    """Sigma (Å, at the end of the training) and corruption ratio of a run.  Raises ValueError for other tasks."""
    return _own(_task_and_seed(run)[0])


def guessed_noise(without_forces: float) -> str | None:
    """What it means where noise is recovered from positions alone; None where it is not."""
    if without_forces >= _GUESSED:
        return None
    return (
        f"without forces the noise is recovered with an error of {without_forces:.2f}: positions alone tell it, as "
        "where atoms are near the sites of a lattice. There forces say nothing new, and DeNS did not lower the force "
        "error: on 50 alloys +18 % [-13, +50] (noise error 0.46); on molecules and hot metals, where it did, the noise "
        "error is 0.8 or more"
    )


def noise_of(results: Iterable[Mapping[str, float]]) -> tuple[float, float]:
    """Means of :func:`noise_error` over runs: with forces encoded (NaN without encoding), and without."""
    found = list(results)
    informed = [one[f"{_NAME}_with_test_forces"] for one in found if f"{_NAME}_with_test_forces" in one]
    bare = [one[f"{_NAME}_without_forces"] for one in found]
    return float(np.mean(informed)) if informed else float("nan"), float(np.mean(bare))


@dataclass(frozen=True, kw_only=True)
class Corrupted:
    """A structure with noise, and the model's reconstruction of it."""

    sigma: float  # Å
    corrupted: np.ndarray  # [n, 3] Å, positions with noise
    denoised: np.ndarray  # [n, 3] Å, positions after the predicted noise is subtracted
    noisy: np.ndarray  # [n] bool, atoms that were moved


def corrupt(run: str | Path, system: System, sigmas: Sequence[float] = (), *, device: str = "auto") -> list[Corrupted]:
    """Corrupt one structure at several sigmas (Å; none: half, once, twice and four times the run's own) and denoise it.

    All sigmas share their random numbers; forces are encoded as in training.  Of several draws the first is taken that
    corrupts as many atoms as the run's ratio promises.  Raises as :func:`denoise`.
    """
    task, seed = _task_and_seed(run)
    own_sigma, own_ratio = _own(task)
    force_field = load_force_field(run, None, device)
    parameter = next(force_field.parameters())
    batch, targets = collate([system], parameter.dtype)
    batch, targets = batch.to(parameter.device), targets.to(parameter.device)
    origin = system.positions[:1] if parameter.dtype != torch.float64 else 0.0  # of positions in float32
    wanted, found = max(1, round(own_ratio * int((~system.fixed).sum()))), []
    for sigma in sigmas or [factor * own_sigma for factor in (0.5, 1, 2, 4)]:
        corrupting = _corrupting(task, sigma, own_ratio)
        draws = (keys_for(seed, 0, torch.tensor([number], device=parameter.device)) for number in range(_DRAWS))
        prepared = (corrupting.prepare(batch, targets, keys, 0.0) for keys in draws)
        drawn = next((one for one in prepared if int(one.noise_mask.sum()) >= wanted), None)
        if drawn is None:
            raise ValueError(f"structure {system.index}: {_DRAWS} draws corrupt fewer than {wanted} atoms")
        with torch.no_grad():
            corrupted = force_field.config.with_neighbors(drawn.batch)
            noise = force_field(corrupted, drawn.force_input, outputs=("noise",))["noise"]
        back = torch.where(drawn.noise_mask[:, None], task.sigma_of(batch, 1.0) * noise, torch.zeros_like(noise))
        positions = (drawn.batch.positions, drawn.batch.positions - back)
        before, after = (each.double().cpu().numpy() + origin for each in positions)
        found.append(Corrupted(sigma=sigma, corrupted=before, denoised=after, noisy=drawn.noise_mask.cpu().numpy()))
    return found


def _task_and_seed(run: str | Path) -> tuple[Denoises, int]:
    config = load_config(run) if Path(run).is_dir() else None
    if config is not None and denoises(config.task):
        return config.task, config.seed
    found = "is no run folder" if config is None else f"was trained with task={config.task.name}"
    raise ValueError(f"{run} {found}; only runs of task=dens or task=noisy_nodes have noise to predict")


def _own(task: Denoises) -> tuple[float, float]:
    """Sigma (Å, at the end of the training) and corruption ratio of a run."""
    return task.sigma_at(1.0), task.corruption_ratio if isinstance(task, DeNSConfig) and task.partial else 1.0


def _corrupting(task: Denoises, sigma: float, ratio: float) -> Task:
    """The task with this noise on every structure that it may corrupt."""
    if not (sigma > 0 and 0 < ratio <= 1):
        raise ValueError(f"noise of sigma={sigma:g} Å on {ratio:g} of the atoms: sigma > 0, 0 < ratio <= 1 wanted")
    changes: dict[str, float | bool | None] = {}
    if isinstance(task, DeNSConfig):
        changes = {"corruption_ratio": ratio, "partial": True, "probability": 1.0, "max_corrupted_share": None}
        if isinstance(task, CellDeNSConfig):
            changes["strain_probability"] = 0.0  # the noise of atoms alone is judged
    elif ratio < 1:
        raise ValueError(f"task=noisy_nodes corrupts all atoms; a corruption ratio of {ratio:g} wants task=dens")
    return build_task(task.with_sigma(sigma).model_copy(update=changes))


class _Cell:
    """Noise errors at one sigma and corruption ratio, summed over batches."""

    def __init__(self, trained: Denoises, sigma: float, ratio: float, device: torch.device) -> None:
        self.task = _corrupting(trained, sigma, ratio)
        self.unit = _own(trained)[0] / sigma  # of the predictions, in units of this sigma
        self.encodes = isinstance(trained, DeNSConfig) and trained.force_encoding
        self.informed, self.bare = Metrics(device), Metrics(device)
        self.sigma, self.ratio, self.atoms = sigma, ratio, 0

    def add(self, force_field: ForceField, batch: Batch, targets: Targets, keys: torch.Tensor) -> None:
        """Corrupt a batch without edges and predict its noise, with and without force input."""
        prepared = self.task.prepare(batch, targets, keys, 0.0)
        corrupted = force_field.config.with_neighbors(prepared.batch)
        inputs = [(self.bare, torch.zeros_like(prepared.force_input))]
        if self.encodes:
            inputs.append((self.informed, prepared.force_input))
        for metrics, force_input in inputs:
            noise = force_field(corrupted, force_input, outputs=("noise",))["noise"]
            metrics.update_noise(self.unit * noise, prepared)
        self.atoms += int(prepared.noise_mask.sum())

    def recovery(self) -> Recovery:
        """The errors, once some atom was corrupted."""
        return Recovery(
            sigma=self.sigma,
            corruption_ratio=self.ratio,
            atoms=self.atoms,
            with_forces=self.informed.summary().get(_NAME),
            without_forces=self.bare.summary()[_NAME],
        )
