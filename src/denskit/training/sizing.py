"""What a model takes from the data before it is built: its size, and how many neighbours and atoms are usual."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import ValidationError

from denskit.data import LoadedData
from denskit.data.base import Source, collate, spaced
from denskit.models.config import ModelConfig
from denskit.models.model_file import read_header
from denskit.training.run_folder import model_file
from denskit.training.settings import RunConfig, SizeRow

SAMPLE = 64  # training structures whose neighbours are counted


def fit_model_to_data(config: RunConfig, data: LoadedData) -> tuple[RunConfig, list[str]]:
    """The run with every model setting known, and what was decided, for the log.

    ``sizes`` gives settings by the number of training structures; ``average_degree`` and ``average_atoms`` that are
    null are measured on evenly spaced training structures.  With ``training.init_from`` these are the trained model's.
    Raises ValueError where settings do not go together.
    """
    messages: list[str] = []
    settings = config.model.model_dump()
    unknown = [name for name in ("average_degree", "average_atoms") if settings.get(name, 0) is None]
    if config.training.init_from is not None and (config.sizes or unknown):
        trained = read_header(model_file(config.training.init_from))["model"]
        own = {*unknown, *(key for row in config.sizes for key in row.model)}
        settings |= {name: trained[name] for name in own if name in trained}
        messages.append(f"size of the model as in {config.training.init_from}")
    elif config.sizes:
        row = _row(config.sizes, len(data.train))
        settings |= row.model
        listed = ", ".join(f"{key}={value}" for key, value in row.model.items())
        messages.append(f"model sized for {len(data.train)} training structures: {listed}")
    unknown = [name for name in unknown if settings[name] is None]
    if unknown:
        measured = _averages(data.train, config.model)
        settings |= {name: measured[name] for name in unknown}
        messages.append(f"measured on the training structures: {_words(unknown, measured)}")
    if not messages:
        return config, messages
    try:
        model = type(config.model).model_validate(settings)
    except ValidationError as error:
        problems = "; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())
        raise ValueError(f"the model sized for {len(data.train)} training structures: {problems}") from None
    return config.model_copy(update={"model": model, "sizes": ()}), messages


def _row(rows: Sequence[SizeRow], structures: int) -> SizeRow:
    """The first row that is meant for so many structures, else the last."""
    return next((row for row in rows if row.up_to is None or structures <= row.up_to), rows[-1])


def _averages(source: Source, model: ModelConfig) -> dict[str, float]:
    chosen = spaced(len(source), SAMPLE)
    atoms = edges = 0
    for index in chosen:  # one at a time: a few large cells must not fill the memory
        batch, _ = collate([source[int(index)]], torch.float64)
        atoms += batch.num_atoms
        edges += model.with_neighbors(batch).num_edges
    return {"average_degree": max(edges / atoms, 1.0), "average_atoms": atoms / len(chosen)}


def _words(names: Sequence[str], measured: dict[str, float]) -> str:
    what = {"average_degree": "neighbours an atom", "average_atoms": "atoms a structure"}
    return ", ".join(f"{measured[name]:.1f} {what[name]}" for name in names)
