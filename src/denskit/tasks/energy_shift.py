"""Energy errors up to a shift: data computed with other reference energies differ by a constant for each element.

    e_b = predicted - reference energy of structure b        n_bz: its atoms of element z
    c = argmin sum_b (e_b - c_0 - sum_z n_bz c_z)^2          of least norm

The errors left over are those of a model whose references were fitted to the data it is judged on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from denskit.batch import MAX_ATOMIC_NUMBER, Batch, Targets
from denskit.runtime.processes import Processes

FEWEST = 5  # structures for each number that is fitted; of fewer the shift would explain everything
LEFT = 0.2  # share of the energy error that is left without the shift, below which users are told
ONE_SIDED, FAR = 0.95, 500.0  # share of the energy error that is of one sign, and its size in meV an atom, likewise
_NOTHING = 1e-10  # eigenvalue, relative to the largest, of a combination that the compositions do not determine


def mostly_shift(errors: Mapping[str, float]) -> tuple[float, float] | None:
    """Energy errors with and without the shift, meV an atom, where nearly all of the error is the shift; else None."""
    whole, shifted = (errors.get(f"energy_mae_{kind}meV_per_atom", math.nan) for kind in ("", "shifted_"))
    return (whole, shifted) if shifted < LEFT * whole else None


def one_sided(errors: Mapping[str, float]) -> float | None:
    """The mean energy error (predicted - reference, meV) where all energies are far off to one side; else None.

    As of models of OC20's adsorption energies on raw totals: no constants for the elements are needed to tell.
    """
    mean, whole = (errors.get(f"energy_{kind}_meV", 0.0) for kind in ("mean_error", "mae"))
    far = errors.get("energy_mae_meV_per_atom", 0.0) >= FAR
    return mean if far and abs(mean) >= ONE_SIDED * whole else None


def in_words(mean: float) -> str:
    """The meaning of a mean error of :func:`one_sided`."""
    return (
        f"predicted energies are far {'above' if mean > 0 else 'below'} those of the file, by "
        f"{abs(mean) / 1000:,.0f} eV on average: are these other energies than the model has learned, such as raw "
        "totals beside adsorption energies (OC20) or energies of formation?"
    )


class EnergyShift:
    """Energy errors and compositions of structures, held on the CPU."""

    def __init__(self) -> None:
        self._errors: list[Tensor] = []
        self._counts: list[Tensor] = []

    def update(self, energy: Tensor, batch: Batch, targets: Targets) -> None:
        """Add the structures of a batch that have an energy; ``energy`` [B]: predicted, eV."""
        has = targets.energy_mask
        self._errors.append((energy.double() - targets.energy)[has].cpu())
        self._counts.append(batch.count_elements()[has].to(torch.int16).cpu())

    def summary(self, processes: Processes | None = None) -> dict[str, float]:
        """The mean error, and mean absolute errors without the shift where there are structures enough, over all
        processes; empty without structures."""

        def total(value: Tensor) -> Tensor:
            return value if processes is None else processes.add(value.to(processes.device)).cpu()

        errors = torch.cat([torch.zeros(0, dtype=torch.float64), *self._errors])
        counts = torch.cat([torch.zeros(0, MAX_ATOMIC_NUMBER + 1, dtype=torch.int16), *self._counts]).double()
        atoms = counts.sum(1)
        counts[:, 0] = 1  # no element has the number 0
        values, vectors = torch.linalg.eigh(total(counts.T @ counts))
        known = values > _NOTHING * values[-1]
        structures = float(total(torch.tensor([float(len(errors))], dtype=torch.float64)))
        if not structures:
            return {}
        found = {"energy_mean_error_meV": 1000 * float(total(errors.sum())) / structures}
        if structures < FEWEST * int(known.sum()):
            return found
        solve = vectors[:, known] / values[known] @ vectors[:, known].T
        for _ in range(2):  # the second pass removes the rounding of the first
            errors = errors - counts @ (solve @ total(counts.T @ errors))
        absolute = total(torch.stack([errors.abs().sum(), (errors.abs() / atoms).sum()])) / structures
        return found | {
            "energy_mae_shifted_meV": 1000 * float(absolute[0]),
            "energy_mae_shifted_meV_per_atom": 1000 * float(absolute[1]),
        }
