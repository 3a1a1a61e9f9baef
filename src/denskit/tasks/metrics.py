"""Errors in physical units, as sums and counts that add up over batches and processes.

Force errors are per Cartesian component over free atoms, as the field reports them.  Cosine, magnitude, EFwT and EwT
are those of the Open Catalyst Project's evaluation (Chanussot et al. 2021) over the atoms or structures of a whole
split.  The slope is that of the line through zero and the force components: below 1 the potential is too soft (Deng et
al., npj Comput. Mater. 11, 9 (2025)).  All sums are float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from denskit.batch import Batch, Prepared, Targets
from denskit.data.base import Source
from denskit.models.prediction import Predictor, batches
from denskit.runtime.memory import memory_named
from denskit.runtime.processes import Processes
from denskit.runtime.progress import Report, unreported
from denskit.tasks.energy_shift import EnergyShift

MILLI = 1000.0  # meV in one eV
ROUNDING = 1e-6  # eV a structure: what references of the elements leave of energies that they explain
WITHIN_ENERGY, WITHIN_FORCE = 0.02, 0.03  # eV, eV/Å: thresholds of EwT and EFwT, both strict
_COSINE_EPS = 1e-8  # eV/Å, as published: shorter vectors have no direction and a cosine of 0

# Sums and their counts, in the order of the state.
_SLOTS = (
    "energy_count",  # structures
    "energy_absolute",  # eV
    "energy_square",  # eV^2
    "energy_absolute_per_atom",  # eV
    "energy_square_per_atom",  # eV^2
    "energy_absolute_label",  # eV, error of the reference energy as prediction
    "forces_count",  # components
    "forces_absolute",  # eV/Å
    "forces_square",  # eV^2/Å^2
    "forces_absolute_label",  # eV/Å, error of zero as prediction
    "atoms_count",  # atoms
    "cosine",
    "magnitude_absolute",  # eV/Å
    "energy_within",  # structures
    "both_count",  # structures with an energy and at least one force on a free atom
    "both_within",  # structures
    "stress_count",  # components
    "stress_absolute",  # eV/Å^3
    "noise_absolute",  # in units of sigma
    "noise_absolute_label",  # in units of sigma, error of zero as prediction
    "forces_product",  # eV^2/Å^2, of prediction and label
    "forces_square_label",  # eV^2/Å^2
    "stress_product",  # eV^2/Å^6, of prediction and label
    "stress_square_label",  # eV^2/Å^6
    "stress_square_predicted",  # eV^2/Å^6
)  # new ones last: checkpoints hold the sums since the last row


class Metrics:
    """Sums of errors.  ``state`` [25] float64 holds them all: adding the states of several processes merges them."""

    def __init__(self, device: torch.device | str = "cpu", *, state: Tensor | None = None) -> None:
        self.state = torch.zeros(len(_SLOTS), dtype=torch.float64, device=device) if state is None else state

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics(state=self.state + other.state)

    @torch.no_grad()
    def update(
        self, prediction: Mapping[str, Tensor], batch: Batch, targets: Targets, mean_energy: Tensor | None = None
    ) -> None:
        """Add a batch.  ``prediction`` and ``targets`` in eV, eV/Å, eV/Å^3; missing predictions are not counted.

        ``mean_energy`` [B] eV: the reference energy of the elements, a prediction that ignores the structure.
        """
        if "energy" in prediction:
            self._add_energy(prediction["energy"], batch, targets)
            if mean_energy is not None:
                label = _select(targets.energy, targets.energy_mask) - _select(mean_energy, targets.energy_mask)
                self._add(energy_absolute_label=label.abs().sum())
        if "forces" in prediction:
            self._add_forces(prediction["forces"], batch, targets)
        if "energy" in prediction and "forces" in prediction:
            self._add_both(prediction, batch, targets)
        if "stress" in prediction:
            mask = targets.stress_mask[:, None, None].expand_as(targets.stress)
            predicted, label = _select(prediction["stress"], mask), _select(targets.stress, mask)
            self._add(
                stress_count=mask.sum(),
                stress_absolute=(predicted - label).abs().sum(),
                stress_product=(predicted * label).sum(),
                stress_square_label=label.square().sum(),
                stress_square_predicted=predicted.square().sum(),
            )

    @torch.no_grad()
    def update_noise(self, noise: Tensor, prepared: Prepared) -> None:
        """Add predicted noise [N, 3], in units of sigma, of a corrupted batch: a diagnostic of DeNS.

        The prediction used the force labels as input: on a test split it does not measure the force field.
        """
        mask = prepared.noise_mask[:, None].expand_as(prepared.noise)
        label = _select(prepared.noise, mask)
        error = _select(noise, mask) - label
        self._add(noise_absolute=error.abs().sum(), noise_absolute_label=label.abs().sum())

    def summary(self) -> dict[str, float]:
        """All metrics with a count above 0, named with their units."""
        sums = dict(zip(_SLOTS, self.state.tolist(), strict=True))
        found = {}
        if (count := sums["energy_count"]) > 0:
            found["energy_mae_meV"] = MILLI * sums["energy_absolute"] / count
            found["energy_rmse_meV"] = MILLI * math.sqrt(sums["energy_square"] / count)
            found["energy_mae_meV_per_atom"] = MILLI * sums["energy_absolute_per_atom"] / count
            found["energy_rmse_meV_per_atom"] = MILLI * math.sqrt(sums["energy_square_per_atom"] / count)
            if sums["energy_absolute_label"] > ROUNDING * count:
                found["energy_mae_relative_to_mean"] = sums["energy_absolute"] / sums["energy_absolute_label"]
        if (count := sums["forces_count"]) > 0:
            found["forces_mae_meV_per_A"] = MILLI * sums["forces_absolute"] / count
            found["forces_rmse_meV_per_A"] = MILLI * math.sqrt(sums["forces_square"] / count)
            found["forces_cosine"] = sums["cosine"] / sums["atoms_count"]
            found["forces_magnitude_mae_meV_per_A"] = MILLI * sums["magnitude_absolute"] / sums["atoms_count"]
            if sums["forces_square_label"] > 0:
                found["forces_slope"] = sums["forces_product"] / sums["forces_square_label"]
            if sums["forces_absolute_label"] > 0:
                found["forces_mae_relative_to_zero"] = sums["forces_absolute"] / sums["forces_absolute_label"]
        if (count := sums["energy_count"]) > 0:
            found["ewt_percent"] = 100 * sums["energy_within"] / count
        if (count := sums["both_count"]) > 0:
            found["efwt_percent"] = 100 * sums["both_within"] / count
        if (count := sums["stress_count"]) > 0:
            found["stress_mae_meV_per_A3"] = MILLI * sums["stress_absolute"] / count
            if sums["stress_square_label"] > 0 and sums["stress_square_predicted"] > 0:
                found["stress_slope"] = sums["stress_product"] / sums["stress_square_label"]
                lengths = math.sqrt(sums["stress_square_label"] * sums["stress_square_predicted"])
                found["stress_cosine"] = sums["stress_product"] / lengths
        if (label := sums["noise_absolute_label"]) != 0:
            found["noise_error_relative_to_zero"] = sums["noise_absolute"] / label
        return found

    def _add_energy(self, energy: Tensor, batch: Batch, targets: Targets) -> None:
        mask = targets.energy_mask
        error = _select(energy, mask) - _select(targets.energy, mask)
        per_atom = error / batch.n_atoms
        self._add(
            energy_count=mask.sum(),
            energy_absolute=error.abs().sum(),
            energy_square=error.square().sum(),
            energy_absolute_per_atom=per_atom.abs().sum(),
            energy_square_per_atom=per_atom.square().sum(),
            energy_within=(mask & (error.abs() < WITHIN_ENERGY)).sum(),
        )

    def _add_forces(self, forces: Tensor, batch: Batch, targets: Targets) -> None:
        atoms = targets.forces_mask & batch.free_atoms
        mask = atoms[:, None].expand_as(forces)
        predicted, label = _select(forces, mask), _select(targets.forces, mask)
        error = predicted - label
        cosine = torch.nn.functional.cosine_similarity(predicted, label, dim=-1, eps=_COSINE_EPS)
        magnitude = torch.linalg.vector_norm(predicted, dim=-1) - torch.linalg.vector_norm(label, dim=-1)
        self._add(
            forces_count=mask.sum(),
            forces_absolute=error.abs().sum(),
            forces_square=error.square().sum(),
            forces_absolute_label=label.abs().sum(),
            atoms_count=atoms.sum(),
            cosine=cosine.sum(),
            magnitude_absolute=magnitude.abs().sum(),
            forces_product=(predicted * label).sum(),
            forces_square_label=label.square().sum(),
        )

    def _add_both(self, prediction: Mapping[str, Tensor], batch: Batch, targets: Targets) -> None:
        """EFwT: the energy and every force component of the structure are within their thresholds."""
        atoms = targets.forces_mask & batch.free_atoms
        mask = atoms[:, None].expand_as(targets.forces)
        error = (_select(prediction["forces"], mask) - _select(targets.forces, mask)).abs()
        near = (error < WITHIN_FORCE).all(dim=-1)  # a NaN is not near
        every_force = batch.count_atoms(atoms & ~near) == 0
        energy = _select(prediction["energy"], targets.energy_mask) - _select(targets.energy, targets.energy_mask)
        judged = targets.energy_mask & (batch.count_atoms(atoms) > 0)
        within = judged & every_force & (energy.abs() < WITHIN_ENERGY)
        self._add(both_count=judged.sum(), both_within=within.sum())

    def _add(self, **sums: Tensor) -> None:
        for name, value in sums.items():
            self.state[_SLOTS.index(name)] += value


def measure(
    force_field: Predictor,
    source: Source,
    *,
    batch_size: int,
    processes: Processes | None = None,
    advice: str = "lower the batch size",
    shift: EnergyShift | None = None,
    progress: Report = unreported,
) -> Metrics:
    """Errors of the predictions for all structures of a source, divided among the processes.

    ``shift`` gets the energy errors of this process; ``progress``: as of :func:`batches`.
    Raises ValueError where a batch does not fit into memory, with ``advice``.
    """
    rank, count = (processes.rank, processes.count) if processes else (0, 1)
    metrics = Metrics(next(force_field.parameters()).device)
    with torch.no_grad():
        for _, batch, targets in batches(force_field, source, batch_size, first=rank, step=count, progress=progress):
            with memory_named(batch, advice):
                mean = force_field.scaling.reference_energy(batch)
                prediction = force_field.predict(batch)
                metrics.update(prediction, batch, targets, mean)
                if shift is not None:
                    shift.update(prediction["energy"], batch, targets)
    if processes:
        processes.add(metrics.state)
    return metrics


def _select(value: Tensor, mask: Tensor) -> Tensor:
    """``value`` in float64, zero where the mask is False, even if it is NaN there."""
    return torch.where(mask, value.detach().double(), 0.0)
