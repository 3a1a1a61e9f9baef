"""Energies of elements from energies of structures: ridge regression per atom, its strength by leave-one-out.

    E_b / n_b = sum_z x_bz r_z + residual        x_bz: share of element z among the n_b atoms of structure b
    r = argmin sum_b residual_b^2 + strength sum_z (r_z - c)^2        over r and c

All structures have the same weight, whatever their size.  c is a free common value: the mean energy per atom is not
shrunk, and an element that the compositions do not determine gets c.  Shares add up to 1, so c is an intercept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from denskit.runtime.progress import counted

STRENGTHS = 10.0 ** np.arange(-16, 2.01, 0.25)  # relative to the largest variance of the shares
NOTHING = 1e-10  # share below which a variance or a leverage is rounding


@dataclass(frozen=True, kw_only=True)
class ReferenceFit:
    """Energies of K elements and their errors, root mean squares in eV per atom."""

    references: np.ndarray  # [K] eV
    determined: np.ndarray  # [K] bool: the compositions determine it without the ridge
    strength: float  # of the ridge, relative to the largest variance of the shares; 0 where nothing is penalised
    compositions: int  # different ones
    error: float  # of the structures that were fitted
    error_left_out: float  # of each structure from the others; NaN where there are no others
    error_new_composition: float  # of each structure from other compositions, where these have its elements; else NaN

    def messages(self, table: Mapping[str, float], *, from_atoms: bool = False) -> list[str]:
        """Messages about the fit of ``table``, K symbols with eV; a warning names undetermined elements.

        ``from_atoms``: energies of isolated atoms were subtracted, so the fit is of their binding.
        """
        error = f"rms error {1000 * self.error:.4g} meV an atom"
        for left_out, value in (("structure", self.error_left_out), ("composition", self.error_new_composition)):
            if np.isfinite(value):
                error += f", {1000 * value:.4g} on a {left_out} left out"
        if self.compositions > 1 and not np.isfinite(self.error_new_composition):
            error += "; on other compositions unknown, and probably larger, as each of these has an element of its own"
        ridge = f", ridge {self.strength:.2g} by leave-one-out" if self.strength > STRENGTHS[0] else ""
        messages = [f"references: fitted per atom to {counted(self.compositions, 'composition')}{ridge}; {error}"]
        free = [symbol for symbol, known in zip(table, self.determined, strict=True) if not known]
        if free and from_atoms:
            messages.append(
                f"warning: the compositions tell how strongly {' '.join(free)} are bound only together, so each gets "
                f"the common {self.references[~self.determined].mean():.2f} eV beside its isolated atom. Energies of "
                "other compositions will be wrong by as much as theirs differ"
            )
        elif free:
            example = ", ".join(f"{symbol}: {energy:.1f}" for symbol, energy in list(table.items())[:2])
            example += ", ..." if len(table) > 2 else ""
            messages.append(
                f"warning: the compositions do not determine the references of {' '.join(free)}, which get the common "
                "value of the elements. Energies of other compositions will be wrong by a constant. Where you know "
                f"the energies of the elements, give all in eV: 'data.references={{{example}}}', or a .json file"
            )
        return messages


def fit_references(counts: np.ndarray, energies: np.ndarray) -> ReferenceFit:
    """Energies of elements that predict energies per atom of structures left out of the fit.

    ``counts`` [B, K]: atoms of each element, at least one in each structure; ``energies`` [B]: eV.  Structures of one
    composition are one row with their number as its weight, so the cost is that of the different compositions.
    """
    atoms = counts.sum(axis=1)
    shares, row, weight = np.unique(counts / atoms[:, None], axis=0, return_inverse=True, return_counts=True)
    row, root = row.ravel(), np.sqrt(weight)
    energy = np.bincount(row, energies / atoms) / weight  # [C] mean of each composition
    scatter = np.bincount(row, (energies / atoms - energy[row]) ** 2) / weight
    mean_share, mean_energy = weight @ shares / weight.sum(), weight @ energy / weight.sum()
    left, values, right = np.linalg.svd(root[:, None] * (shares - mean_share), full_matrices=False)
    kept = values > NOTHING * np.sqrt(weight.sum())
    left, values, right = left[:, kept], values[kept], right[kept]

    # Residuals and 1 - leverage are sums of a part that no strength changes and parts that the ridge leaves over: no
    # small difference of large numbers, however weak the ridge
    deviation = root * (energy - mean_energy)
    parts = left.T @ deviation
    outside, free = deviation - left @ parts, 1 - weight / weight.sum() - (left**2).sum(axis=1)
    outside, free = np.where(free > NOTHING, (outside, free), 0.0)
    strengths = STRENGTHS * values[0] ** 2 if len(values) else np.zeros(1)
    over = strengths / (values[:, None] ** 2 + strengths)  # [rank, S]
    residual = (outside[:, None] + left @ (over * parts[:, None])) / root[:, None]  # [C, S]
    slack = free[:, None] + left**2 @ over  # [C, S] 1 - leverage of all structures of a composition

    def rms(squares: np.ndarray) -> np.ndarray:
        """Root mean square [S] over structures, of squares [C, S]."""
        return np.sqrt(weight @ squares / weight.sum())

    squares = residual**2 + scatter[:, None]
    with np.errstate(invalid="ignore"):  # 0 / 0 where there is only one structure, or one composition
        left_out = rms(squares / ((weight[:, None] - 1 + slack) / weight[:, None]) ** 2)
        elsewhere = ((shares > 0).sum(axis=0) > 1)[None, :] | (shares <= 0)  # [C, K]
        fair = elsewhere.all(axis=1)  # compositions whose elements the others have
        squares_new = ((residual / slack) ** 2 + scatter[:, None])[fair]
        new_composition = np.sqrt(weight[fair] @ squares_new / weight[fair].sum())
    best = int((left_out <= 1.000001 * left_out.min()).argmax())  # the weakest of equals
    slope = right.T @ (values / (values**2 + strengths[best]) * parts)
    rest = mean_share - right.T @ (right @ mean_share)  # with ``right`` it spans all shares
    return ReferenceFit(
        references=mean_energy + slope - mean_share @ slope,
        determined=(right**2).sum(axis=0) + rest**2 / (rest @ rest) > 1 - 1e-6,
        strength=float(strengths[best] / values[0] ** 2) if len(values) else 0.0,
        compositions=len(weight),
        error=float(rms(squares)[best]),
        error_left_out=float(left_out[best]),
        error_new_composition=float(new_composition[best]),
    )
