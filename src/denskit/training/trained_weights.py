"""Weights of a trained model, taken over into one for new data."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from ase.data import chemical_symbols
from torch import Tensor

from denskit.models.base import ForceField
from denskit.settings import ON_FINE_TUNING, marked

_PERIODS = (0, 2, 10, 18, 36, 54, 86, 118)  # atomic numbers at which periods end


def take_weights(force_field: ForceField, trained: ForceField, origin: str, fresh_heads: Sequence[str] = ()) -> str:
    """Copy the weights of a trained model; returns a message that lists the copied tensors.

    Weights that only one of the two models has are left alone: heads for noise or direct forces, and the degrees above
    0 that the last block keeps for these heads.  So are those of ``fresh_heads``.  Tables of elements may be longer
    than the trained ones.  Raises ValueError for weights of another model, which ``origin`` names, and for no head.
    """
    there, here = trained.config.model_dump(), force_field.config.model_dump()
    free = marked(type(force_field.config), ON_FINE_TUNING)
    free |= {"num_elements"} if here["num_elements"] > there["num_elements"] else frozenset()
    changed = [name for name in here if name not in free and there.get(name) != here[name]]
    if changed:
        listed = "; ".join(f"model.{name} is {there.get(name)} there, {here[name]} here" for name in changed)
        raise ValueError(f"training.init_from={origin}: the weights belong to another model: {listed}")
    own, other, tables = weights_of(force_field), weights_of(trained), element_tables(force_field)
    shared = own.keys() & other.keys()
    wrong = [f"{name} {list(other[name].shape)} there, {list(own[name].shape)} here"
             for name in shared - tables.keys() if own[name].shape != other[name].shape]  # fmt: skip
    if wrong:
        raise ValueError(f"training.init_from={origin}: weights of another architecture: {'; '.join(sorted(wrong))}")
    fresh, unused = own.keys() - other.keys(), other.keys() - own.keys()
    lost = sorted(n for n in fresh if n.startswith("backbone.blocks.") and n.endswith((".weights.0", ".bias")))
    if lost:
        raise ValueError(
            f"training.init_from={origin}: it has no {lost[0]}, which would start random; train with the task that it "
            "was trained with, or choose feature_channels unlike channels in both"
        )
    renewed = weights_of_heads(force_field, fresh_heads) & shared
    shared -= renewed
    for name in shared:
        own[name][: len(other[name])].copy_(other[name]) if name in tables else own[name].copy_(other[name])
    said = f"initial weights: {len(shared)} of {len(own)} tensors from {origin}; settings of the model as there, "
    said += "but for forces, stress, dropout, mark_corrupted and number of elements"
    if fresh:
        said += f"; fresh, since it has no such heads or degrees: {_summary(fresh)}"
    if renewed:
        said += f"; fresh by training.fresh_heads: {_summary(renewed)}"
    if unused:
        said += f"; of its own not used, since nothing here reads them: {_summary(unused)}"
    return said


def start_new_elements(force_field: ForceField, new: Iterable[int], known: Iterable[int]) -> list[str]:
    """Initialise the embeddings of new elements from known elements of their group; messages for the log.

    Other new elements keep their random embeddings: copies across groups did not lower the error.
    """
    tables, said = element_tables(force_field).values(), []
    for z in new:
        similar = similar_element(z, known)
        if similar is None:
            said.append(f"{chemical_symbols[z]} random")
            continue
        for table in tables:
            table[z] = table[similar]
        said.append(f"{chemical_symbols[z]} as a copy of {chemical_symbols[similar]}")
    return [f"elements new to the model, whose embeddings start untrained: {', '.join(said)}"] if said else []


def element_tables(force_field: ForceField) -> dict[str, Tensor]:
    """Weights with one row for each atomic number, by name."""
    names = force_field.element_tables()
    return {name: weight for name, weight in weights_of(force_field).items() if name in names}


def similar_element(z: int, known: Iterable[int]) -> int | None:
    """The known element of the same group that is nearest to ``z`` in atomic number, if there is one."""
    return min((other for other in known if _group(other) == _group(z)), key=lambda other: abs(other - z), default=None)


def _group(z: int) -> int:
    """Group in the table of the elements, 0 for hydrogen; lanthanides and actinides count as 3."""
    if z == 1:
        return 0
    period = bisect_left(_PERIODS, z)
    since, left = z - _PERIODS[period - 1], _PERIODS[period] - z
    return since if since <= 2 and left > 0 else max(3, 18 - left)


def _summary(names: Iterable[str]) -> str:
    """Tensors counted by module: "heads.noise (3), backbone.blocks.2 (4)"."""
    counts = Counter(".".join(name.split(".")[: 3 if ".blocks." in name else 2]) for name in sorted(names))
    return ", ".join(f"{module} ({count})" for module, count in counts.items())


def weights_of_heads(force_field: ForceField, heads: Sequence[str]) -> set[str]:
    """Names of the weights of some heads.  Raises ValueError for one that the model does not have."""
    if unknown := [name for name in heads if name not in force_field.heads]:
        known = ", ".join(force_field.heads)
        raise ValueError(f"training.fresh_heads: no head {unknown[0]!r}; this model has {known}")
    return {name for name in weights_of(force_field) if name.startswith(tuple(f"heads.{head}." for head in heads))}


def weights_of(force_field: ForceField) -> dict[str, Tensor]:
    """All parameters by name."""
    return {name: parameter.detach() for name, parameter in force_field.named_parameters()}
