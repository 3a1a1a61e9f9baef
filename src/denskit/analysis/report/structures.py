"""The section of the worst structures, with reference and predicted forces as arrows."""

from __future__ import annotations

import numpy as np
from ase.data import chemical_symbols

from denskit.analysis.judged import Judged
from denskit.analysis.plots import MEV
from denskit.analysis.report.page import Section, table
from denskit.analysis.scenes import MOST_ATOMS, PREDICTED, REFERENCE, Arrows, Frame, Scene, arrow_scale, cell_of

_WORST = 6


def worst(judged: Judged) -> Section:
    """The frames with the largest force errors: a table and a scene."""
    order = np.argsort(-judged.frame_error)
    places = [place for place in order[:_WORST] if np.isfinite(judged.frame_error[place])]
    if not places:
        return Section("The worst structures", [])
    header = ["frame", "formula", "force error (meV/Å)", "worst atom", "its error (meV/Å)", "energy error (meV)"]
    rows = table(header, [_row(judged, place) for place in places])
    small = [place for place in places if judged.n_atoms[place] <= MOST_ATOMS]
    return Section("The worst structures", [rows, *([_scene(judged, small)] if small else [])])


def _worst_atom(judged: Judged, place: int) -> tuple[int, str, float]:
    """Number, name (O5, counted from 0) and force error (eV/Å) of the worst atom."""
    errors = judged.force_error[judged.atoms_of(place)]
    atom = int(np.nanargmax(errors))
    return atom, f"{chemical_symbols[judged.numbers[judged.atoms_of(place)][atom]]}{atom}", float(errors[atom])


def _row(judged: Judged, place: int) -> list[str]:
    _, name, error = _worst_atom(judged, place)
    energy = MEV * (judged.energies[1] - judged.energies[0])[place]
    return [
        str(judged.index[place]), judged.formula(place), f"{MEV * judged.frame_error[place]:.1f}", name,
        f"{MEV * error:.0f}", f"{energy:+.1f}" if np.isfinite(energy) else "",
    ]  # fmt: skip


def _scene(judged: Judged, places: list[int]) -> Scene:
    shown = np.concatenate([judged.all_forces[:, judged.atoms_of(place)] for place in places], axis=1)
    scale = arrow_scale(np.nan_to_num(shown))
    return Scene(
        name="worst",
        title=f"Forces, 1 Å of arrow is {1 / scale:.2g} eV/Å",
        caption="Atoms are counted from 0. Drag to rotate, Ctrl and the wheel to zoom.",
        ranked=True,
        frames=[_frame(judged, place, scale) for place in places],
        legend={REFERENCE: "reference", PREDICTED: "predicted"},
    )


def _frame(judged: Judged, place: int, scale: float) -> Frame:
    atoms = judged.atoms_of(place)
    atom, name, error = _worst_atom(judged, place)
    start, vectors = judged.positions[atoms], scale * np.nan_to_num(judged.all_forces[:, atoms])
    arrows = Arrows(REFERENCE, start, vectors[0], radius=0.11, opacity=0.65), Arrows(PREDICTED, start, vectors[1])
    return Frame(
        label=f"frame {judged.index[place]}: mean force error {MEV * judged.frame_error[place]:.1f} meV/Å; "
        f"worst atom {name}, {MEV * error:.0f} meV/Å",
        numbers=judged.numbers[atoms],
        positions=judged.positions[atoms],
        cell=cell_of(judged.cell[place], judged.pbc[place]),
        arrows=arrows,
        marked=atom,
    )
