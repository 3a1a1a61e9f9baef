"""What it means where energies and other labels differ by a factor: the units that users mix."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from denskit.units import BOHR, GPA, HARTREE, KCAL_PER_MOL, KJ_PER_MOL

_WITHIN = np.log(1.15)  # of a known factor
_CLOSE_CALL = 0.05  # another known factor that is nearly as near is named, too

_ENERGY_OF = {"Hartree": HARTREE, "Rydberg": HARTREE / 2, "kcal/mol": KCAL_PER_MOL, "kJ/mol": KJ_PER_MOL}
_FORCE_OF = {
    "kcal/mol/Å": KCAL_PER_MOL,
    "kJ/mol/Å": KJ_PER_MOL,
    "Hartree/Bohr": HARTREE / BOHR,
    "Rydberg/Bohr": HARTREE / BOHR / 2,
    "Hartree/Å": HARTREE,
}
_STRESS_OF = {"GPa": GPA, "kbar": GPA / 10, "Hartree/Bohr^3": HARTREE / BOHR**3}
# What the energy should change by, over what it does: what that means, and what to do.
Meanings = Mapping[float, tuple[str, str]]
_ENERGY_MEANS = {
    unit: (f"the energies are in {name}, not in eV", f"Multiply the energies of the file by {unit:.7g}")
    for name, unit in _ENERGY_OF.items()
}
FORCES_MEAN: Meanings = {
    **_ENERGY_MEANS,
    **{
        1 / unit: (f"the forces are in {name}, not in eV/Å", f"Multiply the forces of the file by {unit:.7g}")
        for name, unit in _FORCE_OF.items()
    },
    BOHR: (
        "the forces are per Bohr, not per Å",
        f"Multiply the forces of the file by {1 / BOHR:.7g}; with energies in Hartree say data.units=Hartree, too",
    ),
    1 / BOHR: ("the positions are in Bohr, not in Å", f"Multiply positions and cells of the file by {BOHR:.7g}"),
}
STRESS_MEANS: Meanings = {
    **_ENERGY_MEANS,
    **{
        1 / unit: (f"the stress is in {name}, not in eV/Å^3", f"Multiply the stress of the file by {unit:.7g}")
        for name, unit in _STRESS_OF.items()
    },
}


def meaning(factor: float, meanings: Meanings) -> tuple[str, str]:
    """What a factor most likely means, and what to do: the nearest one that is known, if it is near."""
    known = {**meanings, 1.0: ("", "")}
    far = {value: abs(np.log(abs(factor) / value)) for value in known}
    likely = sorted((value for value in known if far[value] < _WITHIN), key=far.__getitem__)
    if not likely:
        return "energies and these labels are of different units or methods", "Compare them with the calculations"
    named = [known[value][0] for value in likely if far[value] < far[likely[0]] + _CLOSE_CALL and known[value][0]]
    return ", or ".join(named), known[likely[0]][1]


def reversed_in_sign(advice: str, label: str) -> str:
    """The advice, and to change the sign of a label as well."""
    multiply = f"Multiply the {label} of the file by "
    if advice.startswith(multiply):
        return advice.replace(multiply, f"{multiply}-")
    return f"{multiply}-1" + (f". {advice}" if advice else "")
