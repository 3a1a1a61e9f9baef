"""Several force fields in the place of one: the mean of their predictions, and how far these spread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from ase.data import atomic_numbers
from ase.formula import Formula
from torch import Tensor, nn

from denskit.batch import Batch
from denskit.models.base import ForceField
from denskit.models.scaling import Scaling
from denskit.runtime.warning import warn

OTHER_REFERENCES = 1.0  # eV, of an element; fits to different structures of one method differ by less
_SPREADS = 5.0  # energy scales: means over different structures of one method differ by less
_NEIGHBOURS = ("cutoff", "max_neighbors", "strict_neighbors")


def warn_of_references(members: Sequence[ForceField]) -> None:
    """Warn where the energies of members have other zeros, as of labels of different methods.

    The zeros are compared at the composition that members were trained on, where it is one (whatever the kinds of their
    references, their means agree there), else by element and, without references, by the constants of structures.
    """
    first, *others = (member.scaling for member in members)
    found = [apart for other in others if (apart := _apart(first, other)) is not None]
    if found:
        warn(
            f"members of the committee {found[0]}: perhaps they were trained on labels of different methods, whose "
            "mean and spread mean nothing",
        )


def _apart(first: Scaling, other: Scaling) -> str | None:
    """How the energies of two members are counted from different zeros, in words; None where they are not."""
    spread = max(OTHER_REFERENCES, _SPREADS * max(float(first.energy_scale), float(other.energy_scale)))
    if (composition := _composition_of_both(first, other)) is not None:
        here, there = (scaling.zero_of(composition) for scaling in (first, other))
        if abs(here - there) <= spread:
            return None
        formula = Formula.from_dict(composition).format("hill")
        return f"count energies of {formula} from {here:.2f} and {there:.2f} eV"
    both = (first.references != 0) & (other.references != 0)
    gap = float(((first.references - other.references) * both).abs().max())
    shift = float((first.energy_shift - other.energy_shift).abs())
    if not (first.references.any() or other.references.any()) and shift > spread:
        gap = shift
    if gap <= OTHER_REFERENCES:
        return None
    return f"have energies of elements or mean energies that differ by up to {gap:.3g} eV"


def _composition_of_both(first: Scaling, other: Scaling) -> dict[str, int] | None:
    """The composition for which the zeros of both are known to be right, if there is one."""
    trained = [scaling.composition for scaling in (first, other) if scaling.composition is not None]
    if not trained or trained[0] != trained[-1]:
        return None
    numbers = [atomic_numbers[symbol] for symbol in trained[0]]
    fitted = all(scaling.composition is not None or scaling.references[numbers].all() for scaling in (first, other))
    return trained[0] if fitted else None


class Committee:
    """Predicts the mean over force fields with the same neighbours, which differ in their weights.

    For simulations :class:`denskit.Potential` does the same, with a neighbour list that is kept.

    Raises ValueError for fewer than two members, members of two dtypes or devices, and other neighbours.
    """

    def __init__(self, members: Sequence[ForceField]) -> None:
        if len(members) < 2:
            raise ValueError(f"a committee has two members or more; found {len(members)}")
        kinds = {(parameter.dtype, parameter.device) for member in members for parameter in member.parameters()}
        if len(kinds) > 1:
            raise ValueError(f"members must share one dtype and one device; found {sorted(map(str, kinds))}")
        neighbours = {", ".join(f"{name} {getattr(member.config, name)}" for name in _NEIGHBOURS) for member in members}
        if len(neighbours) > 1:
            raise ValueError(f"members must have the same neighbours; found {'; '.join(sorted(neighbours))}")
        warn_of_references(members)
        self.members = tuple(members)
        self.config = members[0].config
        self.scaling = members[0].scaling

    def parameters(self) -> Iterator[nn.Parameter]:
        """The weights of all members."""
        return (parameter for member in self.members for parameter in member.parameters())

    def physical_outputs(self) -> tuple[str, ...]:
        """Names of the outputs of :meth:`predict`: those that all members have."""
        first, *others = (member.physical_outputs() for member in self.members)
        return tuple(name for name in first if all(name in other for other in others))

    def predict(self, batch: Batch, outputs: tuple[str, ...] | None = None) -> dict[str, Tensor]:
        """As :meth:`ForceField.predict`; without ``outputs`` also standard deviations over the members (n - 1).

        These are "energy_std" [B] and "forces_std" [N, 3], as of :class:`denskit.Potential`.
        """
        wanted = outputs or self.physical_outputs()
        if batch.edges is None:
            batch = self.config.with_neighbors(batch)
        each = [member.predict(batch, outputs=wanted) for member in self.members]
        stacked = {name: torch.stack([found[name] for found in each]) for name in wanted}
        found = {name: values.mean(0) for name, values in stacked.items()}
        if outputs is None:
            found |= {f"{name}_std": stacked[name].std(0) for name in ("energy", "forces")}
        return found
