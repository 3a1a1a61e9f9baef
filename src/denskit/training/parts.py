"""Parts of a model by name: some may be frozen, or learn more slowly than others."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

import torch
from ase.data import chemical_symbols
from torch import Tensor

from denskit.models.base import ForceField


def parts_of(force_field: ForceField) -> dict[str, str]:
    """The part of each parameter, by the parameter's name.

    These are ``embedding`` (of atoms and edge degree), ``force_encoding``, ``blocks.0``, ..., ``norm`` (after the last
    block), ``heads.energy``, ..., ``companion`` (the network of a task).
    """
    return {name: _part(name.split(".")) for name, _ in force_field.named_parameters()}


def _part(path: list[str]) -> str:
    if path[0] == "heads":
        return f"heads.{path[1]}"
    if path[0] == "companion":
        return "companion"
    if path[1] in ("blocks", "layers"):
        return f"blocks.{path[2]}"
    return path[1] if path[1] in ("norm", "force_encoding") else "embedding"


def freeze(force_field: ForceField, frozen: Sequence[str], untrained: Collection[str] = ()) -> str:
    """Exclude parts from training; a message for the log.

    Of their tables of elements the rows of ``force_field.new_elements`` are trained all the same.  ``frozen``: names of
    parts, or their beginnings, as "blocks".  ``untrained``: parameters with random numbers, as of new heads.
    Raises ValueError for a name that fits no part, for untrained parameters, and where nothing is left to train.
    """
    parts = parts_of(force_field)
    known = list(dict.fromkeys(parts.values()))
    for wanted in frozen:
        if not any(is_frozen(part, [wanted]) for part in known):
            near = difflib.get_close_matches(wanted, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; this model has {', '.join(known)}"
            raise ValueError(f"training.frozen: no part {wanted!r}{hint}")
    new, rows, others, total = force_field.new_elements, 0, 0, 0  # weights: of rows, of all that is trained else
    tables = force_field.element_tables() if new else set()
    for name, parameter in force_field.named_parameters():
        held = is_frozen(parts[name], frozen)
        if held and name in untrained:
            raise ValueError(f"training.frozen: {parts[name]} has untrained weights ({name}); let it be trained")
        parameter.requires_grad_(not held or name in tables)
        total += parameter.numel()
        if not held:
            others += parameter.numel()
        elif name in tables:
            parameter.register_hook(lambda gradient: _of_rows(gradient, new))
            rows += len(new) * parameter[0].numel()
    if not others + rows:
        raise ValueError(f"training.frozen={', '.join(frozen)} leaves no weights to train; leave out some parts")
    said = f"frozen: {', '.join(frozen)}; {others + rows:,} of {total:,} weights are trained"
    symbols = " ".join(chemical_symbols[z] for z in new)
    return f"{said}, {rows:,} of them in the rows of {symbols} in frozen tables of elements" if rows else said


def _of_rows(gradient: Tensor, rows: Sequence[int]) -> Tensor:
    """The gradient of a table, zero but for some rows: AdamW leaves the others as they are to the bit."""
    kept = torch.zeros_like(gradient)
    for row in rows:
        kept[row] = gradient[row]
    return kept


def is_frozen(part: str, frozen: Sequence[str]) -> bool:
    """Whether ``training.frozen`` names a part, or its beginning."""
    return any(part == wanted or part.startswith(f"{wanted}.") for wanted in frozen)


def depths(force_field: ForceField) -> dict[str, int]:
    """Distance of each parameter's part from the heads: 0 for heads and ``norm``, then 1 for the last block, ..."""
    parts = parts_of(force_field)
    number = {part: int(part[7:]) for part in parts.values() if part.startswith("blocks.")}
    deepest = max(number.values(), default=-1) + 2

    def depth(part: str) -> int:
        if part in number:
            return deepest - 1 - number[part]
        return 0 if part in ("norm", "companion") or part.startswith("heads.") else deepest

    return {name: depth(part) for name, part in parts.items()}
