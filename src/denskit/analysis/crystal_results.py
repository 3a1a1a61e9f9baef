"""Properties of crystals as a table and in words, for the program and for reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

ROUGH = 0.1  # of the bulk modulus, between energies and stresses
DERIVATIVES = (0.0, 12.0)  # of bulk moduli by the pressure that are believed
# column, key, format; z: nothing has no sign
COLUMNS = (
    ("index", "index", "{}"),
    ("name", "name", "{}"),
    ("formula", "formula", "{}"),
    ("energy\n(eV/atom)", "energy_eV_per_atom", "{:z.4f}"),
    ("volume\n(Å³/atom)", "volume_A3_per_atom", "{:z.3f}"),
    ("bulk\n(GPa)", "bulk_modulus_GPa", "{:z.1f}"),
    ("shear\n(GPa)", "shear_modulus_GPa", "{:z.1f}"),
    ("Poisson", "poisson_ratio", "{:z.3f}"),
    ("phonons\n(THz)", "phonon_largest_THz", "{:z.2f}"),
    ("lowest\n(THz)", "phonon_smallest_THz", "{:z.2f}"),
    ("conduc-\ntivity\n(W/m/K)", "conductivity_300K_W_per_m_K", "{:.3g}"),
    ("kappa\nSRME", "kappa_SRME", "{:z.3f}"),
)


def is_measured(crystal: Mapping[str, Any]) -> bool:
    """Whether the crystal relaxed."""
    return "energy_eV_per_atom" in crystal


def name_in_words(crystal: Mapping[str, Any]) -> str:
    """Name and formula; the formula alone where the file gives no name."""
    return " ".join(filter(None, (crystal.get("name"), crystal["formula"])))


def crystal_table(crystals: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the measured crystals of ``measure_into``; columns that none has are left out."""
    shown = [column for column in COLUMNS if any(column[1] in crystal for crystal in crystals)]
    shown = shown if len(crystals) > 1 else [column for column in shown if column[1] != "index"]
    rows = [
        ["-" if crystal.get(key) is None else form.format(crystal[key]) for _, key, form in shown]
        for crystal in crystals
        if is_measured(crystal)
    ]
    return [name for name, _, _ in shown], rows


def remarks(crystal: Mapping[str, Any]) -> Iterator[str]:
    """What the table does not say: errors, cubic constants, doubts, instabilities."""
    place = f"crystal {crystal['index']} ({name_in_words(crystal)})"
    if "error" in crystal:
        yield f"{place}: {crystal['error']}"
    if not is_measured(crystal):
        return
    if crystal.get("cubic_C11_GPa") is not None:
        c11, c12, c44 = (f"{name} {crystal[f'cubic_{name}_GPa']:.1f}" for name in ("C11", "C12", "C44"))
        yield f"{place}: {c11}, {c12}, {c44} GPa in the axes of the conventional cell"
    if groups := crystal.get("nearly_cubic"):
        yield (
            f"{place}: no C11, C12, C44 of a cubic crystal, since its space group is {groups}: relax it "
            "further (--fmax 1e-6), and if it keeps that of lower symmetry, it is distorted"
        )
    if told := _rough(crystal):
        yield f"{place}: {told}"
    if crystal.get("elastically_stable") is False:
        yield (
            f"{place}: a strain lowers its energy (an eigenvalue of the elastic constants is negative), so there are "
            "no Hill averages of them"
        )
    elif "conductivity_300K_W_per_m_K" in crystal and crystal["conductivity_300K_W_per_m_K"] is None:
        lowest = crystal["phonon_smallest_of_mesh_THz"]
        yield f"{place}: no thermal conductivity: imaginary phonons down to {lowest:.2f} THz"
    elif crystal.get("dynamically_stable") is False:
        yield f"{place}: imaginary phonons down to {crystal['phonon_smallest_THz']:.2f} THz"


def _rough(crystal: Mapping[str, Any]) -> str:
    """A warning where two bulk moduli, or the curvature of the equation of state, show noise; else empty."""
    if "bulk_modulus_GPa" not in crystal:
        return ""
    energies, constants = crystal["bulk_modulus_GPa"], crystal.get("elastic_constants_GPa")
    stresses = None if constants is None else float(np.mean(np.array(constants)[:3, :3]))  # of uniform strains (Voigt)
    derivative = crystal["bulk_modulus_derivative"]
    if stresses is not None and abs(stresses - energies) > ROUGH * abs(energies):
        return (
            f"the bulk modulus is {energies:.1f} GPa by the equation of state and {stresses:.1f} GPa by the elastic "
            "constants (Voigt): the model does not know these volumes and strains (train longer, and on compressed, "
            "expanded and sheared cells), or its energy is not smooth there, or the stress is that of a head and not "
            "its derivative"
        )
    if not DERIVATIVES[0] <= derivative <= DERIVATIVES[1]:
        return (
            f"the derivative of its bulk modulus by the pressure is {derivative:.1f} (2 to 8 in most crystals): the "
            "model does not know these volumes (train longer, and on compressed and expanded cells), or its energy is "
            "not smooth there"
        )
    return ""
