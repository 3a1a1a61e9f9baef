"""The force field that a training starts from."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from ase.data import atomic_numbers, chemical_symbols
from torch import Tensor

from denskit.batch import Batch
from denskit.data import LoadedData
from denskit.data.base import Source, Subset
from denskit.models import build_force_field
from denskit.models.base import ForceField
from denskit.models.model_file import load_model
from denskit.models.scaling import fit_scaling
from denskit.tasks import Task
from denskit.training.run_folder import model_file
from denskit.training.settings import FixedScale, RunConfig

SAMPLE = 50_000  # structures of a larger training set that scales and references are measured on

# Settings of a model that its weights do not depend on: they may change in fine-tuning.
_FREE = frozenset(
    {
        "attention_dropout",
        "projection_dropout",
        "output_dropout",
        "stochastic_depth",
        "initialisation",
        "stress",
        "forces",
    }
)


def initial_force_field(config: RunConfig, data: LoadedData, task: Task) -> tuple[ForceField, list[str]]:
    """A force field with weights from the seed or from ``training.init_from``, in the run's precision, on the CPU.

    Its scaling is fitted on the training split, on a sample of it where that is large.  Returns what was decided, too,
    for the log.
    """
    measured = evenly(data.train, SAMPLE)
    scale = config.training.scale
    scaling, messages = fit_scaling(
        (measured[index] for index in range(len(measured))),
        references=data.references,  # type: ignore[arg-type]
        scale=scale.model_dump() if isinstance(scale, FixedScale) else scale,
        gradient_forces=config.model.forces == "gradient",
        more_elements=_unseen(data, config) if len(measured) < len(data.train) else (),
    )
    if len(measured) < len(data.train):
        messages.append(f"the above is of {len(measured)} evenly spaced structures of {len(data.train)}")
    origin = config.training.init_from
    trained = None if origin is None else load_model(model_file(origin))
    if trained is not None:
        # its weights are only right in its own units (force encoding included); references stay those of the new data
        for name in ("energy_scale", "force_scale", "stress_scale"):
            getattr(scaling, name).copy_(getattr(trained.scaling, name))
    torch.manual_seed(config.seed)
    force_field = build_force_field(config.model, heads=task.heads, scaling=scaling)
    force_field.to(getattr(torch, config.training.dtype))
    if trained is not None:
        messages.append(_take_weights(force_field, trained, f"{origin}"))
    return force_field, messages


def evenly(source: Source, most: int | None) -> Source:
    """At most so many structures of a source, evenly spaced; None: all."""
    if most is None or len(source) <= most:
        return source
    return Subset(source, np.linspace(0, len(source) - 1, most).round().astype(np.int64), source.name)


def check_known_elements(force_field: ForceField, source: Source) -> None:
    """Raise ValueError naming the first structure, of a sample where there are many, with an element that the training
    data lack."""
    looked_at = evenly(source, SAMPLE)
    for index in range(len(looked_at)):
        system = looked_at[index]
        force_field.scaling.check_elements(system.atomic_numbers, f"{source.name}, frame {system.index},")


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
    """Elements to accept besides those of a sample: where references are given, or nothing of an element is fitted."""
    if isinstance(data.references, dict):
        return [atomic_numbers[symbol] for symbol in data.references]
    return range(1, config.model.num_elements) if data.references in ("none", "mean") else ()


def _take_weights(force_field: ForceField, trained: ForceField, origin: str) -> str:
    """Copy the weights of a trained model.

    Weights that only one of the two has are left as they are: heads for noise or direct forces, and the degrees above 0
    that the last block keeps for these.
    """
    there, here = trained.config.model_dump(), force_field.config.model_dump()
    changed = [name for name in here if name not in _FREE and there.get(name) != here[name]]
    if changed:
        listed = "; ".join(f"model.{name} is {there.get(name)} there, {here[name]} here" for name in changed)
        raise ValueError(f"training.init_from={origin}: the weights belong to another model: {listed}")
    own, other = _weights(force_field), _weights(trained)
    wrong = [f"{name} {list(other[name].shape)} there, {list(own[name].shape)} here"
             for name in own.keys() & other.keys() if own[name].shape != other[name].shape]  # fmt: skip
    if wrong:
        raise ValueError(f"training.init_from={origin}: weights of another architecture: {'; '.join(sorted(wrong))}")
    lost = sorted(
        name
        for name in own.keys() - other.keys()
        if name.startswith("backbone.blocks.") and name.endswith((".weights.0", ".bias"))
    )
    if lost:
        raise ValueError(
            f"training.init_from={origin}: it has no {lost[0]}, which would start random; train with the task that it "
            "was trained with, or choose feature_channels unlike channels in both"
        )
    for name in own.keys() & other.keys():
        own[name].copy_(other[name])
    fresh, unused = len(own.keys() - other.keys()), len(other.keys() - own.keys())
    return f"initial weights from {origin} ({fresh} tensors keep their fresh values, {unused} of the file are not used)"


def _weights(force_field: ForceField) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in force_field.named_parameters()}
