"""Several force fields in the place of one: the mean of their predictions, and how far these spread."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from ase.data import atomic_numbers
from ase.formula import Formula
from torch import Tensor, nn

from denskit.batch import Batch
from denskit.models.base import ForceField
from denskit.models.composition_span import counts_of
from denskit.models.scaling import Scaling
from denskit.runtime.warning import warn

OTHER_REFERENCES = 1.0  # eV, of an element; fits to different structures of one method differ by less
_SPREADS = 5.0  # energy scales: means over different structures of one method differ by less


def united(members: Sequence[ForceField], given: Sequence[object] = ()) -> list[ForceField]:
    """The members in one precision, the highest among them; copies of those that have another.

    Warns of a change of precision and of :func:`warn_of_references`.  ``given``: how the user named them.
    Raises ValueError for members on several devices, and for the same model twice, which has no spread.
    """
    names = [_name(model, place) for place, model in enumerate(given or members)]
    kinds = [{(weights.dtype, weights.device) for weights in member.parameters()} for member in members]
    devices = {device for kind in kinds for _, device in kind}
    if len(devices) > 1:
        raise ValueError(f"models must be on one device; found {', '.join(sorted(map(str, devices)))}")
    dtypes = {dtype for kind in kinds for dtype, _ in kind}
    highest = max(dtypes, key=lambda dtype: dtype.itemsize)
    if len(dtypes) > 1:
        other = [place for place, kind in enumerate(kinds) if {dtype for dtype, _ in kind} != {highest}]
        listed = ", ".join(names[place] for place in other)
        warn(f"models of several precisions: {listed} computed in {str(highest).removeprefix('torch.')} as the others")
        members = [
            copy.deepcopy(member).to(highest) if place in other else member for place, member in enumerate(members)
        ]
    for place, member in enumerate(members):
        for before in range(place):
            if _same(member, members[before]):
                raise ValueError(
                    f"{names[before]} and {names[place]} are the same model, which agrees with itself: their spread "
                    "would say nothing. Give models of trainings with other seeds"
                )
    if len(members) > 1:
        warn_of_references(members)
    return list(members)


def _same(one: ForceField, other: ForceField) -> bool:
    here, there = one.state_dict(), other.state_dict()
    return (
        one.config == other.config
        and one.scaling.binding_energies == other.scaling.binding_energies
        and here.keys() == there.keys()
        and all(torch.equal(value, there[name]) for name, value in here.items())
    )


def _name(model: object, place: int) -> str:
    return os.fspath(model) if isinstance(model, str | os.PathLike) else f"member {place}"


def warn_of_references(members: Sequence[ForceField]) -> None:
    """Warn where the energies of members have other zeros, as of labels of different methods.

    The zeros are compared at a composition that members were trained on, where they name some (whatever the kinds of
    their references, their means agree there), else by element and, without references, by the constants of structures.
    """
    first, *others = (member.scaling for member in members)
    found = [apart for other in others if (apart := _apart(first, other)) is not None]
    if found:
        warn(
            f"members of the committee {found[0]}: perhaps they were trained on labels of different methods, whose "
            "mean and spread mean nothing"
        )


def _apart(first: Scaling, other: Scaling) -> str | None:
    """How the energies of two members are counted from different zeros, in words; None where they are not."""
    spread = max(OTHER_REFERENCES, _SPREADS * max(float(first.energy_scale), float(other.energy_scale)))
    for composition in (*first.compositions, *other.compositions):
        if _is_right(first, composition) and _is_right(other, composition):
            here, there = first.zero_of(composition), other.zero_of(composition)
            formula = Formula.from_dict(composition).format("hill")
            apart = f"count energies of {formula} from {here:.2f} and {there:.2f} eV"
            return apart if abs(here - there) > spread else None
    if first.references.any() or other.references.any():
        both = (first.references != 0) & (other.references != 0)
        gap, most = float(((first.references - other.references) * both).abs().max()), OTHER_REFERENCES
    else:
        gap, most = float((first.energy_shift - other.energy_shift).abs()), spread
    return f"have energies of elements or mean energies that differ by up to {gap:.3g} eV" if gap > most else None


def _is_right(scaling: Scaling, composition: dict[str, int]) -> bool:
    """Whether the zero of a composition is known to be right."""
    if scaling.compositions:
        return bool(scaling.covers(counts_of([composition]))[0])
    return bool(scaling.references[[atomic_numbers[symbol] for symbol in composition]].all())


class Committee:
    """Predicts the mean over force fields, each of which sees its own neighbours.

    For simulations :class:`denskit.Potential` does the same, with a neighbour list that is kept.  Warns where the
    stress of some members is lost, since others have none.  ``given``: how the user named the members.

    Raises ValueError for fewer than two members, and as :func:`united`.
    """

    def __init__(self, members: Sequence[ForceField], given: Sequence[object] = ()) -> None:
        if len(members) < 2:
            raise ValueError(f"a committee has two members or more; found {len(members)}")
        self.members = tuple(united(members, given))
        without = [
            _name(model, place)
            for place, (model, member) in enumerate(zip(given or members, members, strict=True))
            if "stress" not in member.physical_outputs()
        ]
        if 0 < len(without) < len(members):
            warn(f"{', '.join(without)}: trained without stress, so the mean of these models has none")
        self.config = self.members[0].config  # its neighbours are those of given edges
        self.scaling = self.members[0].scaling

    def parameters(self) -> Iterator[nn.Parameter]:
        """The weights of all members."""
        return (parameter for member in self.members for parameter in member.parameters())

    def physical_outputs(self) -> tuple[str, ...]:
        """Names of the outputs of :meth:`predict`: those that all members have."""
        first, *others = (member.physical_outputs() for member in self.members)
        return tuple(name for name in first if all(name in other for other in others))

    def predict(self, batch: Batch, outputs: tuple[str, ...] | None = None) -> dict[str, Tensor]:
        """As :meth:`ForceField.predict`; without ``outputs`` also standard deviations over the members (n - 1).

        These are "energy_std" [B] and "forces_std" [N, 3], as of :class:`denskit.Potential`.  Edges of the batch are
        those of the first member; members of other neighbours search for their own.
        """
        wanted = outputs or self.physical_outputs()
        seen = {} if batch.edges is None else {self.config.neighborhood: batch}
        each = []
        for member in self.members:
            if (kind := member.config.neighborhood) not in seen:
                seen[kind] = member.config.with_neighbors(replace(batch, edges=None))
            each.append(member.predict(seen[kind], outputs=wanted))
        stacked = {name: torch.stack([found[name] for found in each]) for name in wanted}
        found = {name: values.mean(0) for name, values in stacked.items()}
        if outputs is None:
            found |= {f"{name}_std": stacked[name].std(0) for name in ("energy", "forces")}
        return found
