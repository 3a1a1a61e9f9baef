"""The force field that a training starts from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from ase.data import atomic_numbers, chemical_symbols

from denskit.batch import Batch
from denskit.data import LoadedData
from denskit.data.base import Source, Subset, evenly
from denskit.data.loading import FEW
from denskit.models import build_force_field
from denskit.models.base import ForceField
from denskit.models.model_file import load_model
from denskit.models.scaling import Scaling, fit_scaling
from denskit.tasks import LearnedTask, Task
from denskit.training.fine_tuning import fine_tuned
from denskit.training.parts import freeze
from denskit.training.settings import FixedScale, RunConfig

SAMPLE = 50_000  # structures of a larger training set that scales and references are measured on


def initial_force_field(
    config: RunConfig, data: LoadedData, task: Task, device: torch.device | None = None, continued: Path | None = None
) -> tuple[ForceField, list[str]]:
    """A force field with weights from the seed or from ``training.init_from``, in the run's precision.

    The scaling is fitted on the training split, or on a sample of a large one.  A trained model predicts some
    structures on ``device`` (None: the CPU), and stays there.  Also returns messages for the log.

    ``continued``: a model that this run has saved; then that of ``init_from`` is not read again, and may be gone.
    """
    measured = evenly(data.train, SAMPLE)
    if config.training.init_from is not None and continued is not None and continued.is_file():
        force_field = load_model(continued, dtype=getattr(torch, config.training.dtype)).train()
        messages = [freeze(force_field, config.training.frozen)] if config.training.frozen else []
    elif config.training.init_from is not None:
        device = device or torch.device("cpu")
        force_field, messages = fine_tuned(config, data.references, measured, task.heads, device)
    else:
        scale = config.training.scale
        scaling, messages = fit_scaling(
            (measured[index] for index in range(len(measured))),
            references=data.references,  # type: ignore[arg-type]
            scale=scale.model_dump() if isinstance(scale, FixedScale) else scale,  # type: ignore[arg-type]
            gradient_forces=config.model.forces == "gradient",
            more_elements=_unseen(data, config) if len(measured) < len(data.train) else (),
        )
        force_field = _seeded(config, task.heads, scaling).to(getattr(torch, config.training.dtype))
    if isinstance(task, LearnedTask):
        torch.manual_seed(config.seed)
        force_field.companion = task.network(config.model).to(getattr(torch, config.training.dtype))
    if len(measured) < len(data.train):
        messages.append(f"the above is of {len(measured)} evenly spaced structures of {len(data.train)}")
    return force_field, messages


@torch.no_grad()
def _seeded(config: RunConfig, heads: dict[str, str], scaling: Scaling) -> ForceField:
    """Random weights, the same for all tasks where models share them, so that tasks compare in pairs."""
    torch.manual_seed(config.seed)
    force_field = build_force_field(config.model, heads=heads, scaling=scaling)
    if heads:
        torch.manual_seed(config.seed)
        plain = dict(build_force_field(config.model, heads={}, scaling=scaling).named_parameters())
        for name, parameter in force_field.named_parameters():
            if name in plain and plain[name].shape == parameter.shape:
                parameter.copy_(plain[name])
    return force_field


def check_known_elements(force_field: ForceField, source: Source) -> None:
    """Raise ValueError naming the first structure, of a sample where there are many, with an element that the training
    data lack."""
    looked_at = evenly(source, SAMPLE)
    for index in range(len(looked_at)):
        system = looked_at[index]
        force_field.scaling.check_elements(system.atomic_numbers, f"{source.name}, frame {system.index},")


def warn_of_unknown_elements(force_field: ForceField, test: Source | None) -> list[str]:
    """A warning where the test structures of the training's own file have elements that the model cannot predict.

    Test structures in a file of their own are not looked at; of those that stay on disk a sample is.
    """
    if not isinstance(test, Subset):
        return []
    try:
        check_known_elements(force_field, test if test.in_memory else evenly(test, FEW))
    except ValueError as error:
        return [f"warning: {error}, so denskit evaluate cannot judge the test split; another data.split would"]
    return []


def check_measured(force_field: ForceField, batch: Batch, name: str) -> None:
    """Raise ValueError if a training batch (on the CPU) has an element that the measured sample lacked."""
    unknown = sorted(set(batch.atomic_numbers.tolist()) - set(force_field.scaling.elements))
    if unknown:
        symbols = " ".join(chemical_symbols[z] for z in unknown)
        raise ValueError(
            f"{name}: structures have {symbols}, which none of the {SAMPLE} evenly spaced ones had that the references "
            "of the elements were fitted to; give the references, data.references={H: ..., ...} or a file of them"
        )


def _unseen(data: LoadedData, config: RunConfig) -> Iterable[int]:
    """Elements accepted beside those of the sample: those with given references; all, where none is fitted."""
    if isinstance(data.references, dict):
        return [atomic_numbers[symbol] for symbol in data.references]
    return range(1, config.model.num_elements) if data.references in ("none", "mean") else ()
