"""Trained models that ship with Denskit, taken by name (``zoo:ethanol-xtb``) wherever a model file is."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from denskit.files import sha256_of

PREFIX = "zoo:"
FOLDER = Path(__file__).parent
CARDS = FOLDER / "cards.json"  # scripts/make_zoo.py writes it, and the models beside it


@dataclass(frozen=True, kw_only=True)
class Card:
    """A shipped model: origin, training and errors."""

    name: str
    purpose: str
    method: str  # of the labels
    data: str  # structures, and who made them
    licence: str  # of the data and the model
    split: dict[str, int]  # structures in train, valid and test
    test: str  # the structures of the errors
    errors: dict[str, float]  # on them, by name with units
    command: str  # that trained it
    steps: int  # of the weights, the best on validation
    note: str
    commit: str  # of Denskit at the training
    versions: dict[str, str]
    parameters: int
    sha256: str  # of the file

    @property
    def path(self) -> Path:
        """The model file."""
        return FOLDER / f"{self.name}.safetensors"


def cards() -> dict[str, Card]:
    """All shipped models by name."""
    listed: dict[str, dict[str, Any]] = json.loads(CARDS.read_text("utf-8"))
    return {name: Card(name=name, **fields) for name, fields in listed.items()}


def card_of(name: str) -> Card:
    """The card of a model, with or without ``zoo:``.  Raises ValueError for an unknown name."""
    known, wanted = cards(), name.removeprefix(PREFIX)
    if wanted not in known:
        near = get_close_matches(wanted, known, 1)
        meant = f"; did you mean {PREFIX}{near[0]}?" if near else ""
        raise ValueError(f"no shipped model {PREFIX}{wanted}{meant}; there are {', '.join(known)} (denskit models)")
    return known[wanted]


def file_of(path: str | os.PathLike[str]) -> Path:
    """The path itself, or the file that ``zoo:NAME`` names, its checksum verified.

    Raises ValueError for an unknown name, and for a file that has changed.
    """
    if not os.fspath(path).startswith(PREFIX):
        return Path(path)
    card = card_of(os.fspath(path))
    if not card.path.is_file() or sha256_of(card.path) != card.sha256:
        raise ValueError(f"{card.path} is absent or has changed since it was shipped: install Denskit again")
    return card.path
