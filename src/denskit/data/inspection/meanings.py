"""Meanings of a factor between energies and other labels: the units that users mix."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from denskit.data.config import FORCE_UNITS, STRESS_UNITS
from denskit.units import BOHR, GPA, HARTREE, KCAL_PER_MOL, KJ_PER_MOL

_WITHIN = np.log(1.15)  # of a known factor
_ABOUT = np.log(2.0)  # of a factor that is far from 1: of rough labels, or of structures far apart
_CLOSE_CALL = 0.05  # another known factor that is nearly as near is named, too

# Predicted over found change of the energy -> meaning, remedy.
Meanings = Mapping[float, tuple[str, str]]


def stress_in(unit: str) -> str:
    """Remedy for a stress in another unit."""
    return f"Say data.stress_unit={unit}"


def _wrong_unit(label: str, wanted: str, units: Mapping[str, float], power: int) -> Meanings:
    verb = "is" if label == "stress" else "are"
    return {
        unit**power: (
            f"the {label} {verb} in {name}, not in {wanted}",
            f"Multiply the {label} of the file by {unit:.7g}",
        )
        for name, unit in units.items()
    }


_ENERGIES_MEAN = _wrong_unit(
    "energies", "eV", {"Hartree": HARTREE, "Rydberg": HARTREE / 2, "kcal/mol": KCAL_PER_MOL, "kJ/mol": KJ_PER_MOL}, 1
)
_OTHER_FORCE_UNITS = {
    "kcal/mol/Å": KCAL_PER_MOL,
    "kJ/mol/Å": KJ_PER_MOL,
    "Hartree/Å": HARTREE,
}
_OTHER_STRESS_UNITS = {"Hartree/Bohr^3": HARTREE / BOHR**3, "MPa": GPA / 1e3, "bar": GPA / 1e4, "Pa": GPA / 1e9}
_STRESS_MEANS: Meanings = {
    **{1 / size: (f"the stress is in {name}, not in eV/Å^3", stress_in(name)) for name, size in STRESS_UNITS.items()},
    **_wrong_unit("stress", "eV/Å^3", _OTHER_STRESS_UNITS, -1),
}
FORCES_MEAN: Meanings = {
    **_ENERGIES_MEAN,
    **_wrong_unit("forces", "eV/Å", _OTHER_FORCE_UNITS, -1),
    **{
        1 / size: (f"the forces are in {name}, not in eV/Å", f"Say data.forces_unit={name}")
        for name, size in FORCE_UNITS.items()
    },
    BOHR: (
        "the forces are per Bohr, not per Å",
        "With energies in Hartree say data.units=Hartree data.forces_unit=Hartree/Bohr, in Rydberg data.units=Ry "
        f"data.forces_unit=Ry/Bohr; else multiply the forces of the file by {1 / BOHR:.7g}",
    ),
    1 / BOHR: ("the positions are in Bohr, not in Å", f"Multiply positions and cells of the file by {BOHR:.7g}"),
}
STRESS_MEANS: Meanings = {**_ENERGIES_MEAN, **_STRESS_MEANS}


def meaning(factor: float, meanings: Meanings, label: str, wrong_sign: str) -> tuple[str, str]:
    """Meaning and remedy of the nearest known factor, if one is near; ``wrong_sign``: of the label, if negative."""
    means, advice = _of_size(factor, meanings)
    if factor < 0 and "virial" not in means:
        means = wrong_sign + (f", and {means}" if means else "")
        advice = _reversed_in_sign(advice, label)
    return means, advice


def _of_size(factor: float, meanings: Meanings) -> tuple[str, str]:
    known = {**meanings, 1.0: ("", "")}
    far = {value: abs(np.log(abs(factor) / value)) for value in known}
    likely = sorted((value for value in known if far[value] < _WITHIN), key=far.__getitem__)
    nearest = min(known, key=far.__getitem__)
    if not likely and far[nearest] < _ABOUT and far[1.0] > 3 * _ABOUT:
        means, advice = known[nearest]
        return f"probably {means}", advice
    if not likely:
        return "energies and these labels are of different units or methods", "Compare them with the calculations"
    named = [known[value][0] for value in likely if far[value] < far[likely[0]] + _CLOSE_CALL and known[value][0]]
    return ", or ".join(named), known[likely[0]][1]


def _reversed_in_sign(advice: str, label: str) -> str:
    """The advice, with a change of the sign of a label."""
    multiply = f"Multiply the {label} of the file by "
    if advice.startswith(multiply):
        return advice.replace(multiply, f"{multiply}-")
    if label == "stress":
        sign = "Say data.stress_sign=compression"
        return sign + (f" {advice[4:]}" if advice.startswith("Say ") else f". {advice}" if advice else "")
    return f"{multiply}-1" + (f". {advice}" if advice else "")
