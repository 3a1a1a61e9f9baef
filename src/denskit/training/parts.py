"""Parts of a model by name: some may be frozen, or learn more slowly than others."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from torch import nn


def parts_of(force_field: nn.Module) -> dict[str, str]:
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


def freeze(force_field: nn.Module, frozen: Sequence[str], untrained: Collection[str] = ()) -> str:
    """Exclude parts from training; a message for the log.

    ``frozen``: names of parts, or their beginnings: "blocks" means all blocks.  ``untrained``: parameters with random
    numbers, as of new heads and new elements.
    Raises ValueError for a name that fits no part, for untrained parameters, and where nothing is left to train.
    """
    parts = parts_of(force_field)
    known = list(dict.fromkeys(parts.values()))
    for wanted in frozen:
        if not any(_fits(part, wanted) for part in known):
            near = difflib.get_close_matches(wanted, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; this model has {', '.join(known)}"
            raise ValueError(f"training.frozen: no part {wanted!r}{hint}")
    numbers = {True: 0, False: 0}
    for name, parameter in force_field.named_parameters():
        held = any(_fits(parts[name], wanted) for wanted in frozen)
        if held and name in untrained:
            raise ValueError(f"training.frozen: {parts[name]} has untrained weights ({name}); let it be trained")
        parameter.requires_grad_(not held)
        numbers[held] += parameter.numel()
    if not numbers[False]:
        raise ValueError(f"training.frozen={', '.join(frozen)} leaves no weights to train; leave out some parts")
    return f"frozen: {', '.join(frozen)}; {numbers[False]:,} of {sum(numbers.values()):,} weights are trained"


def _fits(part: str, wanted: str) -> bool:
    return part == wanted or part.startswith(f"{wanted}.")


def depths(force_field: nn.Module) -> dict[str, int]:
    """Distance of each parameter's part from the heads: 0 for heads and ``norm``, then 1 for the last block, ..."""
    parts = parts_of(force_field)
    number = {part: int(part[7:]) for part in parts.values() if part.startswith("blocks.")}
    deepest = max(number.values(), default=-1) + 2

    def depth(part: str) -> int:
        if part in number:
            return deepest - 1 - number[part]
        return 0 if part in ("norm", "companion") or part.startswith("heads.") else deepest

    return {name: depth(part) for name, part in parts.items()}
