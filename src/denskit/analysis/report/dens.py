"""The section of DeNS: its terms over the training, recovered noise, corrupted and denoised structures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from denskit.analysis.denoising_plot import denoising_figure, terms_figure
from denskit.analysis.report.page import Part, Picture, Section, folded, paragraph, table
from denskit.analysis.run_results import RunResults
from denskit.analysis.scenes import MOST_ATOMS, NOISE, Arrows, Frame, Scene, cell_of
from denskit.batch import System
from denskit.evaluation.denoising import Corrupted, Recovery


def dens(run: RunResults) -> Section:
    """What the denoising task learnt; without parts for other runs."""
    parts: list[Part] = []
    if not run.denoises:
        return Section("Denoising", parts)
    if np.isfinite(run.columns.get("train_loss_noise", np.nan)).any():
        caption = (
            "Left: noise in units of sigma (predicting no noise gives about 1.6), energy and forces in units of the "
            "scales of the training data. Right: in training some structures are corrupted, and the energy of the "
            "original is predicted for them too; validation structures are never corrupted."
        )
        parts.append(Picture("dens_terms", terms_figure(run.columns), caption))
    if run.recovered:
        parts += [paragraph(recovered_in_words(run.recovered)), folded("Numbers", _table(run.recovered))]
        caption = (
            "Noise error on unseen structures. Force labels are inputs here: this does not measure the force field."
        )
        parts.append(Picture("noise_recovered", denoising_figure(run.recovered), caption))
    if run.corrupted and run.unseen is not None:
        parts += scenes(run.unseen[0], run.corrupted)
    return Section("Denoising", parts)


def recovered_in_words(found: Sequence[Recovery]) -> str:
    """The share of the noise that is removed at the middle sigma of the smallest corruption ratio."""
    ratio = min(cell.corruption_ratio for cell in found)
    row = sorted((cell for cell in found if cell.corruption_ratio == ratio), key=lambda cell: cell.sigma)
    cell = row[len(row) // 2]
    told = f"Noise of sigma {cell.sigma:g} Å on {ratio:.0%} of the atoms"
    if cell.with_forces is None:
        return f"{told}: {_removed(cell.without_forces)}."
    return (
        f"{told}: with the original forces {_removed(cell.with_forces)}; without them {_removed(cell.without_forces)}."
    )


def _removed(error: float) -> str:
    if error < 1:
        return f"the model removes {100 * (1 - error):.0f} % of it"
    return f"the model cannot find it (error {error:.2f} times that of predicting no noise)"


def _table(found: Sequence[Recovery]) -> str:
    header = ["sigma (Å)", "corrupted atoms (%)", "noise error with forces", "without forces", "atoms"]
    rows = []
    for cell in found:
        informed = "" if cell.with_forces is None else f"{cell.with_forces:.2f}"
        noise = [f"{cell.sigma:.3g}", f"{100 * cell.corruption_ratio:.0f}"]
        rows.append([*noise, informed, f"{cell.without_forces:.2f}", f"{cell.atoms:,}"])
    return table(header, rows)


def scenes(system: System, found: Sequence[Corrupted]) -> list[Scene]:
    """The structure corrupted at each sigma, and denoised, each with the original as a ghost; none for large ones."""
    if len(system) > MOST_ATOMS:
        return []

    def scene(name: str, title: str, caption: str) -> Scene:
        return Scene(
            name=name, title=f"Structure {system.index}{title}", caption=caption, first=len(found) - 1,
            frames=[_frame(system, cell, getattr(cell, name), name) for cell in found],
            legend={"#bbbbbb": "original", NOISE: "from the original to here"},
        )  # fmt: skip

    return [
        scene("corrupted", ", corrupted at growing sigma", "Drag to rotate."),
        scene("denoised", " after the predicted noise is subtracted", "The original forces are inputs."),
    ]


def _frame(system: System, cell: Corrupted, positions: np.ndarray, name: str) -> Frame:
    distance = np.linalg.norm(positions - system.positions, axis=-1)[cell.noisy]
    return Frame(
        label=f"sigma {cell.sigma:.3g} Å: {cell.noisy.sum()} of {len(system)} atoms {name}; "
        f"on average {distance.mean():.3f} Å from the original",
        numbers=system.atomic_numbers,
        positions=positions,
        cell=cell_of(system.cell, system.pbc),
        ghost=system.positions,
        arrows=(Arrows(NOISE, system.positions, positions - system.positions),),
    )
