"""Shared by tasks that corrupt positions: random noise, the corrupted batch, the settings and loss of the noise."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Annotated, Literal, Self

import torch
from ase.data import chemical_symbols
from pydantic import AfterValidator, Field
from torch import Tensor

from denskit.batch import Batch, Prepared
from denskit.random import Use, normal
from denskit.tasks.base import Term
from denskit.tasks.energy_forces import LossConfig

AUTO = ("auto", "auto_by_element")  # values of sigma that a training replaces by what it measures


def _sigma(value: float | str | dict[str, float]) -> float | str | dict[str, float]:
    """One of ``AUTO``, a number above 0, or such numbers by element."""
    table = value if isinstance(value, dict) else {}
    unknown = [symbol for symbol in table if symbol not in chemical_symbols[1:]]
    if unknown:
        raise ValueError(f"no element {', '.join(unknown)}; write symbols like H or O")
    numbers = list(table.values()) if isinstance(value, dict) else [value]
    if value in AUTO or (numbers and all(not isinstance(number, str) and number > 0 for number in numbers)):
        return value
    raise ValueError(f"write a number above 0 (Å), a table of them {{H: 0.06, C: 0.03}}, {' or '.join(AUTO)}")


Sigma = Annotated[float | str | dict[str, float], AfterValidator(_sigma)]


class DenoisingConfig(LossConfig):
    """Settings of the noise of every task that denoises."""

    sigma: Sigma = 0.05
    """Standard deviation of the noise in each direction, in Å: a number, or a table by element, {H: 0.06, C: 0.03};
    "auto": a number from the distances between training atoms; "auto_by_element": a table from their forces, too."""
    coefficient: float = Field(default=5.0, ge=0)
    """Weight of the noise term (the paper's lambda_DeNS)."""
    coefficient_decay: Literal["linear", "none"] = "linear"
    """Whether the weight of the noise term falls linearly to 0 over the training, or stays."""

    def sigma_at(self, progress: float) -> float:
        """Standard deviation of the noise, Å, when the share ``progress`` of the training is over.

        Of a table by element: the mean over its elements.  Raises ValueError for what a training replaces before it
        begins.
        """
        if isinstance(self.sigma, str):
            raise ValueError(
                f"task.sigma={self.sigma} is measured on training structures; outside a training, give it in Å"
            )
        return fmean(self.sigma.values()) if isinstance(self.sigma, dict) else self.sigma

    def sigma_of(self, batch: Batch, progress: float) -> Tensor:
        """Standard deviation of the noise of each atom [N, 1], Å.

        Raises ValueError where the table has no number for the element of a free atom.
        """
        mean = self.sigma_at(progress)
        if not isinstance(self.sigma, dict):
            return batch.positions.new_full((batch.num_atoms, 1), mean)
        scale = mean / fmean(self.sigma.values())
        table = batch.positions.new_tensor([scale * self.sigma.get(symbol, 0.0) for symbol in chemical_symbols])
        found = table[batch.atomic_numbers]
        missing = batch.atomic_numbers[batch.free_atoms & (found == 0)].unique().tolist()
        if missing:
            names = " ".join(chemical_symbols[number] for number in missing)
            raise ValueError(f"task.sigma gives no noise for {names}; add a number for each of them")
        return found[:, None]

    def with_sigma(self, sigma: float) -> Self:
        """These settings with a constant noise of this standard deviation, Å; a table is scaled to this mean."""
        if isinstance(self.sigma, dict):
            factor = sigma / fmean(self.sigma.values())
            return self.model_copy(update={"sigma": {symbol: factor * own for symbol, own in self.sigma.items()}})
        return self.model_copy(update={"sigma": sigma})

    def coefficient_at(self, progress: float) -> float:
        """Weight of the noise term when the share ``progress`` of the training is over."""
        return self.coefficient * self.share_at(progress)

    def share_at(self, progress: float) -> float:
        """The weight of the noise term, relative to the first one."""
        return 1.0 - progress if self.coefficient_decay == "linear" else 1.0


def draw_noise(batch: Batch, keys: Tensor, noise_mask: Tensor) -> Tensor:
    """Three standard normal numbers [N, 3] for each atom in ``noise_mask`` [N], zero for the others."""
    components = torch.arange(3, device=keys.device)
    atom_keys, atom_number = keys[batch.system_index, None], batch.number_in_system[:, None]
    drawn = normal(atom_keys, Use.NOISE, atom_number, components, dtype=batch.positions.dtype)
    return torch.where(noise_mask[:, None], drawn, torch.zeros_like(drawn))


def displaced(batch: Batch, displacement: Tensor) -> Batch:
    """The batch with atoms moved by ``displacement`` [N, 3] Å, without edges, which belong to the old positions."""
    return replace(batch, positions=batch.positions + displacement, edges=None)


def noise_term(config: DenoisingConfig, noise: Tensor, prepared: Prepared, progress: float) -> Term:
    """Loss of predicted ``noise`` [N, 3], in units of sigma, on the corrupted atoms."""
    batch = prepared.batch
    sums = config.form.over_atoms(
        noise - prepared.noise,
        scored=prepared.noise_mask,
        existing=prepared.noise_mask | (batch.free_atoms & prepared.targets.forces_mask),
        batch=batch,
    )
    return Term(*sums, config.coefficient_at(progress))
