"""The force field that a training starts from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from ase.data import atomic_numbers, chemical_symbols

from denskit.batch import MAX_ATOMIC_NUMBER, Batch
from denskit.data import LoadedData
from denskit.data.base import Source, Subset, evenly, known_elements, spaced
from denskit.data.config import SplitConfig
from denskit.data.loading import FEW
from denskit.data.records import unknown_elements
from denskit.models import build_force_field
from denskit.models.base import ForceField
from denskit.models.fitted_scaling import fit_scaling
from denskit.models.model_file import load_model, read_header
from denskit.models.scaling import Scaling
from denskit.tasks import LearnedTask, Task
from denskit.training.fine_tuning import HOLDERS, fine_tuned
from denskit.training.parts import freeze
from denskit.training.settings import FixedScale, RunConfig

_OF_ALL = ("none", "mean")  # references with which a model takes all elements
SAMPLE = 50_000  # structures of a larger training set that scales and references are measured on


class Saved(NamedTuple):
    """What a run that continues has saved of its model; the weights follow from its checkpoint."""

    model: Path  # a model file; need not be there
    scaling: Mapping[str, Any]  # as :meth:`Scaling.to_dict`


def initial_force_field(
    config: RunConfig, data: LoadedData, task: Task, device: torch.device | None = None, saved: Saved | None = None
) -> tuple[ForceField, list[str]]:
    """A force field with weights from the seed or from ``training.init_from``, and messages for the log.

    The scaling is fitted on the training split, or on a sample of a large one.  A trained model predicts some
    structures on ``device`` (None: the CPU), and stays there.
    ``saved`` by this run: then nothing is measured again, and the model of ``init_from`` may be gone.
    """
    fine_tunes, dtype = config.training.init_from is not None, getattr(torch, config.training.dtype)
    messages: list[str] = []
    if saved is not None and fine_tunes and saved.model.is_file():
        force_field = load_model(saved.model, dtype=dtype).train()
        force_field.scaling = Scaling.from_dict(dict(saved.scaling))
        force_field.new_elements = tuple(read_header(saved.model)["metadata"].get("new_elements", ()))
        messages = [freeze(force_field, config.training.frozen)] if config.training.frozen else []
    elif saved is not None and not fine_tunes:
        force_field = _seeded(config, task.heads, Scaling.from_dict(dict(saved.scaling))).to(dtype)
    else:
        force_field, messages = _measured(config, data, task.heads, device or torch.device("cpu"))
    if isinstance(task, LearnedTask):
        torch.manual_seed(config.seed)
        force_field.companion = task.network(config.model).to(dtype)
    return force_field, messages


def _measured(
    config: RunConfig, data: LoadedData, heads: dict[str, str], device: torch.device
) -> tuple[ForceField, list[str]]:
    """A force field whose scaling is measured on the training structures, and messages."""
    measured, scale = _to_measure(data.train), config.training.scale
    if config.training.init_from is not None:
        force_field, messages = fine_tuned(config, data, measured, heads, device)
    else:
        scaling, messages = fit_scaling(
            measured,
            references=data.references,  # type: ignore[arg-type]
            scale=scale.model_dump() if isinstance(scale, FixedScale) else scale,  # type: ignore[arg-type]
            gradient_forces=config.model.forces == "gradient",
            more_elements=_unseen(data, config) if len(measured) < len(data.train) else (),
            isolated=data.isolated,
        )
        force_field = _seeded(config, heads, scaling).to(getattr(torch, config.training.dtype))
    if len(measured) < len(data.train):
        force_field.scaling.charges = None  # others may have any
        messages.append(f"the above is of {len(measured)} evenly spaced structures of {len(data.train)}")
        if data.references not in _OF_ALL and not data.train.lists_elements:
            messages.append(
                f"warning: only these {len(measured):,} structures were looked at for elements. One that they lack "
                "ends the training, which then continues with its reference; denskit data convert lists all elements"
            )
    return force_field, messages


def _to_measure(source: Source) -> Source:
    """The training structures, or of many a sample, with structures of the rarest elements where these are known."""
    if len(source) <= SAMPLE or not (elements := known_elements(source)):
        return evenly(source, SAMPLE)
    places = spaced(len(source), SAMPLE)
    lacking = frozenset[int]().union(*elements) - frozenset[int]().union(*(elements[place] for place in places))
    holders = {z: [place for place, own in enumerate(elements) if z in own][:HOLDERS] for z in lacking}
    return Subset(source, np.unique([*places, *(place for own in holders.values() for place in own)]), source.name)


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


def _elements_in(sample: Source) -> list[frozenset[int]]:
    """Atomic numbers in each structure; lists of all structures of a large source would take longer to make."""
    return [frozenset(system.atomic_numbers.tolist()) for system in sample]


def check_known_elements(force_field: ForceField, data: LoadedData, split: SplitConfig) -> None:
    """Raise ValueError naming the validation structures, of a sample where there are many, with elements that the
    training data lack."""
    if data.valid is None:
        return
    looked_at = evenly(data.valid, SAMPLE)
    if found := unknown_elements(looked_at, _elements_in(looked_at), force_field.scaling.elements):
        raise ValueError(f"{found}, but in no structure to train on. {_remedy(data, data.valid, split)}")


def warn_of_unknown_elements(force_field: ForceField, data: LoadedData, split: SplitConfig) -> list[str]:
    """A warning where test structures of the training's own file (a sample of those on disk) have new elements."""
    test = data.test
    if not isinstance(test, Subset):
        return []
    looked_at = evenly(test, SAMPLE if test.in_memory else FEW)
    found = unknown_elements(looked_at, _elements_in(looked_at), force_field.scaling.elements)
    unjudged = "but in no structure to train on, so denskit evaluate cannot judge the test split"
    return [f"warning: {found}, {unjudged}. {_remedy(data, test, split)}"] if found else []


def _remedy(data: LoadedData, lacks: Source, split: SplitConfig) -> str:
    """What to do where the structures of one part have elements that training lacks."""
    if len(data.train) > SAMPLE and not data.train.lists_elements:
        return (
            f"Only {SAMPLE} were looked at. If others have them, give data.references={{H: ..., ...}} or a file of them"
        )
    advice = "Add structures with these elements to train on"
    if data.splits is None:
        return f"{advice}, or leave these out of {lacks.name}"
    if split.file is not None:
        other = "without data.split.file"
    elif split.mode in ("blocks", "published"):
        other = "by data.split.mode=random"
    elif split.train is not None:
        other = "with a larger data.split.train"
    elif len(data.train) > FEW and not data.train.lists_elements:  # rare elements were not drawn for training first
        other = "with another data.split.seed"
    else:
        other = "with fewer for validation and test: data.split.valid=1 data.split.test=0, or 0 for both"
    return f"{advice}, leave these out of the file, or divide it {other}"


def check_measured(force_field: ForceField, batch: Batch, name: str) -> None:
    """Raise ValueError if a training batch (on the CPU) has an element that the measured sample lacked."""
    unknown = sorted(set(batch.atomic_numbers.tolist()) - set(force_field.scaling.elements))
    if unknown:
        require_embeddings(unknown, force_field.config.num_elements)
        symbols = [chemical_symbols[z] for z in unknown]
        raise ValueError(
            f"{name}: structures have {' '.join(symbols)}, which none of the {SAMPLE} evenly spaced ones had, and "
            "which have no reference. Continue with the energy of an atom in eV beside those in the log: --resume "
            f"'data.references={{{', '.join(f'{symbol}: ...' for symbol in symbols)}}}'; where references are of a "
            "file, add it there and begin a new run"
        )


def require_embeddings(numbers: Iterable[int], num_elements: int) -> None:
    """Raise ValueError for an atomic number that a model cannot embed, which no resumed run can change."""
    if (largest := max(numbers, default=0)) >= num_elements:
        raise ValueError(
            f"{chemical_symbols[largest]} has the atomic number {largest}, and the model embeds numbers below "
            f"{num_elements}; begin a new run with model.num_elements={largest + 1} or more"
        )


def _unseen(data: LoadedData, config: RunConfig) -> Iterable[int]:
    """Elements accepted beside those of the sample: those with given references; all, where none is fitted."""
    if isinstance(data.references, dict):
        return [atomic_numbers[symbol] for symbol in data.references]
    known = min(config.model.num_elements, MAX_ATOMIC_NUMBER + 1)  # EquiformerV3 has rows beyond the last element
    return range(1, known) if data.references in _OF_ALL else ()
