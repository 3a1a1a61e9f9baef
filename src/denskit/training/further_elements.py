"""Elements that a run meets after its references were fitted to a sample: their references are given on resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from ase.data import atomic_numbers, chemical_symbols

from denskit.models.scaling import Scaling
from denskit.training import starting_model
from denskit.training.checkpoint import Checkpoint
from denskit.training.settings import RunConfig

_AS_SHOWN = 1e-4  # eV: the log shows references with four digits


def with_further_elements(
    checkpoint: Checkpoint, config: RunConfig, structures: int
) -> tuple[Checkpoint, RunConfig, dict[str, float]]:
    """A checkpoint that has the elements of ``data.references`` that it lacks, its settings, and the new energies (eV).

    ``data.references`` may leave out the other elements, or repeat their energies; the settings get those of all.
    Nothing changes unless a sample of the training ``structures`` was measured, nor for other energies or a file of
    references, which the comparison of settings refuses.
    Raises ValueError for an element without an embedding, or one that ``training.frozen`` may keep untrained.
    """
    given, before = config.data.references, checkpoint.config["data"].get("references")
    of_file = isinstance(before, str) and bool(Path(before).suffix)
    sampled = structures > starting_model.SAMPLE and bool(checkpoint.scaling)
    if of_file or not (isinstance(given, dict) and sampled):
        return checkpoint, config, {}
    scaling = Scaling.from_dict(checkpoint.scaling)
    known = {chemical_symbols[z]: float(scaling.references[z]) for z in scaling.elements}
    own = before if isinstance(before, dict) else known
    if any(abs(own[symbol] - given[symbol]) > _AS_SHOWN for symbol in own.keys() & given.keys()):
        return checkpoint, config, {}
    further = {symbol: energy for symbol, energy in given.items() if symbol not in known}
    if further and config.training.frozen:
        raise ValueError(
            f"training.frozen={', '.join(config.training.frozen)}: the model was frozen without {' '.join(further)}, "
            "whose embedding this run cannot train; begin a new run, on shards (denskit data convert) or with all "
            "energies in data.references"
        )
    starting_model.require_embeddings([atomic_numbers[symbol] for symbol in further], config.model.num_elements)
    data_now = config.data.model_copy(update={"references": {**own, **further} if further else before})
    config = config.model_copy(update={"data": data_now})
    if not further:
        return checkpoint, config, {}
    centre = float(np.mean([known[symbol] - own[symbol] for symbol in own.keys() & known.keys()]))  # of given energies
    scaling = Scaling(
        **{
            **scaling.to_dict(),
            "elements": [*scaling.elements, *(atomic_numbers[symbol] for symbol in further)],
            "references": known | {symbol: energy + centre for symbol, energy in further.items()},
            "compositions": (),  # there are others
        }
    )
    checkpoint = replace(
        checkpoint,
        scaling=scaling.to_dict(),
        weights={**checkpoint.weights, "scaling.references": scaling.references},
        config={**checkpoint.config, "data": {**checkpoint.config["data"], "references": data_now.references}},
    )
    return checkpoint, config, further
