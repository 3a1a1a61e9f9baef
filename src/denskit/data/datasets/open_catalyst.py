"""The datasets ``oc20`` and ``oc22``: their energies, references and origins.

OC20 models are trained and scored on adsorption energies (each frame's energy less its reference: mean -0.755 eV,
standard deviation 2.887 eV); OC22 models on total energies less linear references.  The frames of OC20's MD set are
never corrupted by DeNS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from denskit.data.base import Source, evenly
from denskit.data.config import DataConfig
from denskit.data.loading import SAMPLE, WEIGHTED, LoadedData, load_files
from denskit.data.readers.formats import path_of, reading_of_index

TOTAL = 20.0  # eV: adsorption energies are within some eV of 0, total energies of slabs hundreds below


def load_oc20(config: DataConfig, seed: int, required: Sequence[str] = WEIGHTED) -> LoadedData:
    """OC20 from its LMDB shards, raw downloads or any file, divided by system.

    Warns where energies look like totals.  ``data.references=None`` means ``mean`` for adsorption energies and ``fit``
    for totals.
    """
    data = load_files(config, seed, required)
    typical = _typical_energy(data.train)
    total = typical is not None and typical > TOTAL
    references = data.references
    if config.references is None and not total:
        references = "mean"
    messages = [*data.messages, *_origins(config)]
    if total and config.oc20_ref is None and config.energies != "total":
        elements = "references of the elements are taken off instead"
        if references in ("none", "mean"):
            elements = "data.references=fit takes references of the elements off instead"
        messages.append(
            f"WARNING: the energies (typically {typical:.0f} eV) look like raw DFT totals, not OC20's adsorption "
            "energies. Published models and all of OC20's scores use energies less each system's reference, which "
            f"is also far easier to learn; {elements}"
        )
    messages += _other_energies(data)
    return replace(data, references=references, messages=messages)


def load_oc22(config: DataConfig, seed: int, required: Sequence[str] = WEIGHTED) -> LoadedData:
    """OC22 from its LMDB shards or lists of objects: total energies, divided by system.

    ``data.references`` may name the published file of linear references.
    """
    data = load_files(config, seed, required)
    typical = _typical_energy(data.train)
    messages = list(data.messages)
    if typical is not None and typical < TOTAL:
        messages.append(
            f"WARNING: the energies (typically {typical:.1f} eV) look like adsorption energies; OC22's are totals. "
            "Frames of OC20 become totals with data.oc20_ref=FILE"
        )
    return replace(data, messages=messages + _other_energies(data))


def _other_energies(data: LoadedData) -> list[str]:
    """A warning where training and validation structures have different kinds of energies."""
    train, valid = (None if part is None else _typical_energy(part) for part in (data.train, data.valid))
    if train is None or valid is None or (train > TOTAL) == (valid > TOTAL):
        return []
    return [
        f"WARNING: energies of the validation structures (typically {valid:.1f} eV) and of the training structures "
        f"({train:.1f} eV) are of different kinds: totals and adsorption energies? Their errors would mean nothing"
    ]


def _typical_energy(source: Source) -> float | None:
    """Median size of the energies of a few structures, in eV."""
    energies = [abs(system.energy) for system in evenly(source, SAMPLE) if system.energy is not None]
    return float(np.median(energies)) if energies else None


def _origins(config: DataConfig) -> list[str]:
    unsaid = [
        part.path
        for part in config.parts
        if part.origin is None and "origin" not in reading_of_index(path_of(part.path))
    ]
    if not unsaid:
        return []
    return [
        f"{', '.join(unsaid)}: taken for relaxations, which DeNS may corrupt. If MD frames are among them, say so with "
        "data.origin=md, or for each part in data.train=[{path: ..., origin: md}]: neither the published files nor "
        "their logs tell which frames are MD"
    ]
