"""Settings that the training data decide: sizes of model and batch, averages of degree and atoms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import ValidationError

from denskit.data import LoadedData
from denskit.data.base import Source, collate, spaced
from denskit.models.config import MEASURED, ModelConfig
from denskit.models.model_file import read_header
from denskit.runtime.progress import counted
from denskit.settings import problems_in
from denskit.training.run_folder import model_file
from denskit.training.settings import RunConfig, SizeRow, TrainingConfig

SAMPLE = 64  # training structures that are measured
_UNITS = {"average_degree": "neighbours an atom", "average_atoms": "atoms a structure"}


def fit_model_to_data(config: RunConfig, data: LoadedData) -> tuple[RunConfig, list[str]]:
    """The run with all settings of the model set, and those of the training by its size; and messages for the log.

    ``sizes`` gives settings by the number of training structures; those of ``MEASURED`` that are null are measured on
    evenly spaced training structures.  With ``training.init_from`` they are the trained model's.
    Raises ValueError where settings do not go together.
    """
    messages: list[str] = []
    settings = config.model.model_dump()
    unknown = [name for name in MEASURED if settings.get(name, 0) is None]
    if config.training.init_from is not None and unknown:  # asked for; load_config takes all others
        trained = read_header(model_file(config.training.init_from))["model"]
        settings |= {name: trained[name] for name in unknown if name in trained}
        messages.append(f"averages of the training structures as in {config.training.init_from}")
    elif config.sizes:
        row = rows_for(config.sizes, len(data.train))[0]
        settings |= row.model
        chosen = row.model | {f"training.{key}": value for key, value in _of_the_training(config, row).items()}
        if chosen:  # all of it may have been given
            listed = ", ".join(f"{key}={value}" for key, value in chosen.items())
            messages.append(f"model sized for {counted(len(data.train), 'training structure')}: {listed}")
        config = config.model_copy(update={"training": training_for(config, len(data.train))})
    unknown = [name for name in unknown if settings[name] is None]
    if unknown:
        measured = _averages(data.train, config.model)
        settings |= {name: measured[name] for name in unknown}
        listed = ", ".join(f"{measured[name]:.1f} {_UNITS[name]}" for name in unknown)
        messages.append(f"measured on the training structures: {listed}")
    if not messages:
        return config, messages
    try:
        model = type(config.model).model_validate(settings)
    except ValidationError as error:
        raise ValueError(f"the model sized for {len(data.train)} training structures: {problems_in(error)}") from None
    return config.model_copy(update={"model": model, "sizes": ()}), messages


def training_for(config: RunConfig, structures: int) -> TrainingConfig:
    """Settings of a training on so many structures, with those that ``sizes`` gives.

    Raises ValueError where they do not go together.
    """
    rows = rows_for(config.sizes, structures)
    own = _of_the_training(config, rows[0]) if rows else {}
    if not own:
        return config.training
    try:
        return TrainingConfig.model_validate(config.training.model_dump() | own)
    except ValidationError as error:
        sized = ", ".join(f"training.{key}={value}" for key, value in own.items())
        raise ValueError(
            f"the training sized for {structures} structures, {sized}: {problems_in(error)}; what is given stays"
        ) from None


def _of_the_training(config: RunConfig, row: SizeRow) -> dict[str, Any]:
    """Settings of the training by a row; with a budget, which is a length, without epochs."""
    return {key: value for key, value in row.training.items() if key != "epochs" or config.training.budget is None}


def rows_for(rows: Sequence[SizeRow], structures: int) -> list[SizeRow]:
    """The first row meant for so many structures, else the last; then those above while each wants ``min_steps``."""
    meant = (place for place, row in enumerate(rows) if row.up_to is None or structures <= row.up_to)
    place = next(meant, len(rows) - 1)
    found = list(rows[place : place + 1])
    while found and found[-1].min_steps is not None and place > 0:
        place -= 1
        found.append(rows[place])
    return found


def _averages(source: Source, model: ModelConfig) -> dict[str, float]:
    chosen = spaced(len(source), SAMPLE)
    atoms = edges = 0
    for index in chosen:  # one at a time: a few large cells must not fill the memory
        batch, _ = collate([source[int(index)]], torch.float64)
        atoms += batch.num_atoms
        edges += model.with_neighbors(batch).num_edges
    if not edges:
        raise ValueError(
            f"no atom of {len(chosen)} training structures of {source.name} has another one within "
            f"model.cutoff={model.cutoff:g} Å; usual are 4 to 6 Å (lengths of the file are taken to be in Å)"
        )
    return {"average_degree": max(edges / atoms, 1.0), "average_atoms": atoms / len(chosen)}
