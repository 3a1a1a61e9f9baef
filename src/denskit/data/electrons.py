"""Total charge and spin of a structure, as fields of its file name them, for the calculators that label it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ase
import numpy as np

from denskit.data.base import electrons_in

_CHARGE = ("charge", "total_charge")
_MULTIPLICITY = ("multiplicity", "spin_multiplicity")
_SETTINGS = {"charge": ("charge",), "multiplicity": ("multiplicity", "mult")}  # names of calculators' parameters
_WHOLE = 1e-3  # a number as near to a whole one is it
_APART = 0.5  # sums over atoms, whose charges and moments are often rounded, contradict the total beyond this


def charge_and_multiplicity(atoms: ase.Atoms, usual: float | None = None) -> tuple[int | None, int | None]:
    """Total charge (e) and spin multiplicity by the fields ``ELECTRONS`` of ``atoms.info``; None where none says.

    ``usual``: the charge (e) of a structure that does not say; None: the sum of its initial charges.

    ``spin`` and ``total_spin`` are the multiplicity, as in OMol25, where the number of electrons allows it, else the
    number of unpaired electrons (it never allows both); half numbers are the spin S.

    Raises ValueError for values that cannot be, and where fields contradict each other, the initial charges or the
    initial magnetic moments.
    """
    fields = dict(electrons_in(atoms.info))
    charges = {name: value for name, value in fields.items() if name in _CHARGE}
    spins = {name: value for name, value in fields.items() if name not in _CHARGE}
    charge = _one(charges, {name: _whole(name, value) for name, value in charges.items()})
    initial = atoms.get_initial_charges()
    if charge is not None and initial.any() and abs(initial.sum() - charge) > _APART:
        raise ValueError(f"{_listed(charges)}, but the initial charges add up to {initial.sum():g}; correct one")
    silent = initial.sum() if initial.any() or usual is None else usual
    electrons = int(atoms.numbers.sum()) - (round(silent) if charge is None else charge)
    multiplicity = _one(spins, {name: _multiplicity(name, value, electrons) for name, value in spins.items()})
    moments = atoms.get_initial_magnetic_moments()
    unpaired = float(np.linalg.norm(np.atleast_1d(moments.sum(axis=0))))  # of vectors, too
    if multiplicity is not None and moments.any() and abs(unpaired - (multiplicity - 1)) > _APART:
        raise ValueError(
            f"{_listed(spins)} is {multiplicity - 1} unpaired electrons, but the initial magnetic moments add up to "
            f"{unpaired:g}; correct one"
        )
    return charge, multiplicity


def _one(fields: Mapping[str, float], meant: Mapping[str, int]) -> int | None:
    """The one value that all fields mean; None without fields."""
    if len(set(meant.values())) > 1:
        raise ValueError(f"{_listed(fields)} contradict each other; correct or remove one")
    return next(iter(meant.values()), None)


def _whole(name: str, value: float) -> int:
    if abs(value - round(value)) > _WHOLE:
        raise ValueError(f"{name}={value:g}, where a whole number is wanted")
    return round(value)


def _multiplicity(name: str, value: float, electrons: int) -> int:
    if name in _MULTIPLICITY:
        found = _whole(name, value)
    elif abs(2 * value - round(2 * value)) < _WHOLE and round(2 * value) % 2:
        found = round(2 * value) + 1
    else:
        spin = _whole(name, value)
        found = spin if spin > 0 and (spin - 1 - electrons) % 2 == 0 else spin + 1
        if (found - 1 - electrons) % 2:
            raise ValueError(f"{name}={value:g}, where {electrons} electrons, an odd number, cannot all be paired")
    if found < 1:
        raise ValueError(f"{name}={value:g}, where a number above 0 is wanted")
    return found


def _listed(fields: Mapping[str, float]) -> str:
    return " and ".join(f"{name}={value:g}" for name, value in fields.items())


class ElectronSettings:
    """The settings of a calculator of ASE for total charge and spin, which follow the structures.

    They are parameters that the calculator knows by their usual names (``charge``; ``multiplicity`` or ``mult``).  A
    structure that does not say gets what the calculator came with.
    """

    def __init__(self, calculator: Any) -> None:
        self.calculator = calculator
        defaults = getattr(calculator, "default_parameters", None) or {}
        known = {**defaults, **(getattr(calculator, "parameters", None) or {})} if hasattr(calculator, "set") else {}
        self.names = {what: next((name for name in names if name in known), "") for what, names in _SETTINGS.items()}
        self.own = {name: known[name] for name in self.names.values() if name}

    def set_for(self, atoms: ase.Atoms) -> list[str]:
        """Set the calculator for a structure that is charged or has a spin by its fields.

        Returns what the calculator cannot be told: "total charge", "spin".  Raises ValueError as
        :func:`charge_and_multiplicity`.
        """
        usual = self.own.get(self.names["charge"])
        charge, multiplicity = charge_and_multiplicity(atoms, usual if isinstance(usual, int | float) else None)
        untold = []
        for what, words, value, usual, of_atoms in (
            ("charge", "total charge", charge, 0, atoms.get_initial_charges()),
            ("multiplicity", "spin", multiplicity, 1, atoms.get_initial_magnetic_moments()),
        ):
            if name := self.names[what]:
                self._set(name, value)
            elif value not in (None, usual) and not of_atoms.any():  # those of the atoms say the same
                untold.append(words)
        return untold

    def _set(self, name: str, value: int | None) -> None:
        own = self.own[name]
        wanted = own if value is None else value
        if self.calculator.parameters.get(name, own) != wanted:
            self.calculator.set(**{name: wanted})
