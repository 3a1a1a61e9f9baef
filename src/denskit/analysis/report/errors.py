"""Sections of the errors: parity, by element and group, against force size and novelty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from denskit.analysis.error_plots import histogram_figure, trend_figure
from denskit.analysis.judged import Judged, Pair
from denskit.analysis.plots import MEV, parity_figure, relative
from denskit.analysis.report.elements import Share, by_element, by_group
from denskit.analysis.report.page import Part, Picture, Section, folded, paragraph, table

_MOST_ROWS = 12  # of a table that is not folded
_MOST_LINES = 8  # in one panel of a figure


def parity(judged: Judged) -> Section:
    """Predicted against reference values of energy, forces and stress."""
    panels = parity_panels(judged)
    if not panels:
        return Section("Predicted against reference", [paragraph("The structures have no labels to compare with.")])
    caption = (
        "A point is a structure (energy), a force component or a stress component. Energies are per "
        "atom, less the energies of the elements, and less the mean reference."
    )
    return Section("Predicted against reference", [Picture("parity", parity_figure(panels), caption)])


def parity_panels(judged: Judged) -> dict[str, Mapping[str, Pair]]:
    """Panels of :func:`denskit.analysis.plots.parity_figure` for all labels."""
    panels: dict[str, Mapping[str, Pair]] = {}
    if judged.energy is not None:
        panels["energy per atom,\nless elements and mean (meV)"] = {"": relative(_energies_per_atom(judged))}
    if judged.forces is not None:
        panels["force (meV/Å)"] = {"": judged.forces}
    if judged.stress is not None:
        panels["stress (meV/Å³)"] = {"": judged.stress}
    return panels


def _energies_per_atom(judged: Judged) -> Pair:
    there = np.isfinite(judged.energies).all(0)
    reference, predicted = (judged.energies - judged.baseline)[:, there] / judged.n_atoms[there]
    return reference, predicted


def shares(judged: Judged, groups: Mapping[str, np.ndarray]) -> Section:
    """Tables and distributions of the errors by element and by group."""
    if judged.forces is None:
        return Section("Errors by element and group", [])
    energies = np.abs(np.subtract(*_energies_per_atom(judged)))
    parts: list[Part] = []
    shares_by = {"element": by_element(judged)} | {key: by_group(judged, own) for key, own in groups.items()}
    for name, found in shares_by.items():
        rows = _table(name, found)
        parts.append(rows if len(found) <= _MOST_ROWS else folded(f"Errors by {name} ({len(found)})", rows))
        panels = {"force error of an atom (meV/Å)": _lines(found)}
        caption = f"Distribution of the length of the force error by {name}"
        if name == "element" and energies.any():
            panels["energy error per atom (meV)"] = {"": energies[energies > 0]}
            caption += ", and of the energy error"
        panels = {panel: lines for panel, lines in panels.items() if lines}
        if panels:
            parts.append(Picture(f"errors_by_{name}", histogram_figure(panels), f"{caption}."))
    return Section("Errors by element and group", parts)


def _lines(found: Sequence[Share]) -> dict[str, np.ndarray]:
    """Errors above zero by label; all together where there are too many labels for one figure."""
    lines = {share.label: share.lengths[share.lengths > 0] for share in found}
    if len(lines) > _MOST_LINES:
        lines = {"all": np.concatenate(list(lines.values()))}
    return {label: lengths for label, lengths in lines.items() if len(lengths)}


def _table(name: str, found: Sequence[Share]) -> str:
    energies = any(np.isfinite(share.energy) for share in found)
    header = [name, "frames", "atoms", "force error (meV/Å)", "mean force (meV/Å)", "relative (%)"]
    rows = [
        [
            share.label, f"{share.frames:,}", f"{share.atoms:,}",
            f"{MEV * share.error:.1f}", f"{MEV * share.scale:.0f}",
            f"{100 * share.error / share.scale:.1f}" if share.scale else "",
            *([f"{MEV * share.energy:.2f}"] if energies else []),
        ]
        for share in found
    ]  # fmt: skip
    return table([*header, *(["energy error per atom (meV)"] if energies else [])], rows)


def trends(judged: Judged) -> Section:
    """Force errors against the size of the force, and against novelty."""
    size = np.linalg.norm(judged.all_forces[0], axis=-1)
    panels = {}
    for name, quantity in {
        "reference force on the atom (eV/Å)": size,
        "novelty of the atom's surroundings": judged.novelty,
    }.items():
        shown = judged.scored & (quantity > 0) & np.isfinite(quantity) & (judged.force_error > 0)
        if shown.sum() > 1:
            panels[name] = quantity[shown], judged.force_error[shown]
    if not panels:
        return Section("Where the errors are", [])
    caption = (
        "A point is an atom; the line is the mean in bins with equal numbers of atoms. Novelty is the distance to the "
        "nearest training atom of the same element, in a fingerprint of distances to neighbours within 5 Å (Gaussian "
        "shells by element, no angles); 1 is the usual distance from one training structure to the others. If errors "
        "grow with novelty, more training frames of the new kind will help."
    )
    return Section("Where the errors are", [Picture("trends", trend_figure(panels), caption)])
