"""DeNS: denoising non-equilibrium structures as an auxiliary task (the paper's algorithm 2).

Some structures of a batch are corrupted: noise is added to some of their free atoms.  The model gets the true forces
of these atoms as input and predicts the noise.  For the other atoms it predicts the true forces, for the structure the
true energy.  "True" refers to the structure before the corruption.  docs/dens.md lists where the published code differs
from the paper, and why Denskit follows the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from denskit.batch import Batch, Prepared, Targets
from denskit.random import Use, uniform
from denskit.tasks.base import Term
from denskit.tasks.corruption import DenoisingConfig, displaced, draw_noise, noise_term
from denskit.tasks.energy_forces import label_terms

# for crystals instead of the defaults, which are for molecules: noise and limits as published with EquiformerV3
FOR_CRYSTALS = {
    "sigma": 0.025, "corruption_ratio": 0.5, "coefficient": 1.0, "max_force": 2.5, "max_corrupted_share": 0.75
}  # fmt: skip


class DeNSConfig(DenoisingConfig):
    """Settings of :class:`DeNS`.  The defaults are the paper's for MD17."""

    name: Literal["dens"] = "dens"
    """Name of the task."""
    probability: float = Field(default=0.25, ge=0, le=1)
    """Probability that a structure is corrupted (the paper's p_DeNS); 0 trains without DeNS."""
    sigma_end: float | None = Field(default=None, gt=0)
    """Standard deviation at the end of the training, in Å, reached linearly from sigma; default: sigma throughout.
    Of a table by element: the mean over its elements, in the same proportions."""
    corruption_ratio: float = Field(default=0.25, gt=0, le=1)
    """Probability that a free atom of a corrupted structure is corrupted (the paper's r_DeNS)."""
    coefficient: float = Field(default=5.0, ge=0)
    """Weight of the noise term (the paper's lambda_DeNS).  Where it is not given, or "auto", a training takes 1 for
    crystals, else the default."""
    force_encoding: bool = True
    """False: the model gets no forces of corrupted atoms (the paper's ablation)."""
    energy_on_corrupted: bool = True
    """False: the energy of corrupted structures is not scored (the paper's ablation)."""
    forces_on_corrupted: bool = True
    """False: no forces of corrupted structures are scored, as published for eSEN with gradient forces."""
    partial: bool = True
    """False: all free atoms of a chosen structure are corrupted, the ratio is ignored (the paper's ablation)."""
    min_atoms: int | None = Field(default=None, ge=1)
    """Structures with fewer atoms are never corrupted."""
    max_force: float | None = Field(default=None, gt=0)
    """Structures with a larger force on a free atom (norm, eV/Å) are never corrupted."""
    max_corrupted_share: float | None = Field(default=None, gt=0, lt=1)
    """Structures with more than this share of their free atoms drawn are left uncorrupted."""

    @model_validator(mode="before")
    @classmethod
    def _weight_left_open(cls, given: Any) -> Any:
        """``coefficient: auto`` undoes what a file gives; ``training/fitted_denoising.py`` has the rules."""
        if isinstance(given, dict) and given.get("coefficient") == "auto":
            return {name: value for name, value in given.items() if name != "coefficient"}
        return given

    @model_validator(mode="after")
    def _share_can_be_met(self) -> DeNSConfig:
        if self.max_corrupted_share is not None and not self.partial:
            raise ValueError(
                f"task: partial=false corrupts all atoms, but max_corrupted_share={self.max_corrupted_share} refuses "
                "that for every structure, so nothing would be denoised; set max_corrupted_share=null"
            )
        return self

    def sigma_at(self, progress: float) -> float:
        """The mean sigma, Å (see :class:`DenoisingConfig`), on its way to ``sigma_end``."""
        sigma = super().sigma_at(progress)
        return sigma if self.sigma_end is None else (1.0 - progress) * sigma + progress * self.sigma_end

    def with_sigma(self, sigma: float) -> Self:
        """These settings with a constant noise (see :class:`DenoisingConfig`)."""
        return super().with_sigma(sigma).model_copy(update={"sigma_end": None})


class DeNS:
    """Train on energy, forces and stress while denoising some structures.

    The corruption of each structure and atom depends on the keys alone, see :mod:`denskit.random`.
    """

    def __init__(self, config: DeNSConfig) -> None:
        self.config = config

    @property
    def heads(self) -> dict[str, str]:
        """A noise vector for each atom."""
        return {"noise": "1"}

    def prepare(self, batch: Batch, targets: Targets, keys: Tensor, progress: float) -> Prepared:
        """Corrupt some structures (algorithm 2, lines 7 to 22; see :class:`denskit.tasks.base.Task`).

        Targets stay those of the original structures.  The result has no edges: neighbours are built from the corrupted
        positions.
        """
        noise_mask = self.drawn_atoms(batch, targets, keys)
        noise = draw_noise(batch, keys, noise_mask)  # [N, 3], in units of sigma
        displacement = self.config.sigma_of(batch, progress) * noise  # [N, 3] Å
        encoded = noise_mask[:, None] & self.config.force_encoding
        return Prepared(
            batch=displaced(batch, displacement),
            targets=targets,
            force_input=torch.where(encoded, targets.forces, torch.zeros_like(targets.forces)),
            noise=noise,
            noise_mask=noise_mask,
        )

    def losses(self, prediction: Mapping[str, Tensor], prepared: Prepared, progress: float) -> dict[str, Term]:
        """Terms of the ordinary task and "noise" (algorithm 2, lines 24 to 32; see :class:`denskit.tasks.base.Task`).

        Forces are scored on uncorrupted atoms, noise on corrupted atoms.  The stress of a corrupted structure is not
        scored: it has no label.
        """
        energy, forces = self.scored(prepared)
        terms = label_terms(
            self.config,
            prediction,
            prepared,
            energy_scored=energy,
            forces_scored=forces,
            stress_scored=self._untouched(prepared),
        )
        terms["noise"] = noise_term(self.config, prediction["noise"], prepared, progress)
        return terms

    def scored(self, prepared: Prepared) -> tuple[Tensor, Tensor]:
        """Structures [B] bool whose energy, and atoms [N] bool whose force is scored, where they have the label."""
        untouched = self._untouched(prepared)
        whole = (untouched | self.config.forces_on_corrupted)[prepared.batch.system_index]
        return untouched | self.config.energy_on_corrupted, ~prepared.noise_mask & whole

    def _untouched(self, prepared: Prepared) -> Tensor:
        """Structures [B] bool without any corruption."""
        return prepared.batch.count_atoms(prepared.noise_mask) == 0

    def drawn_atoms(self, batch: Batch, targets: Targets, keys: Tensor) -> Tensor:
        """Atoms [N] bool to corrupt."""
        drawn = batch.free_atoms
        if self.config.partial:
            lots = uniform(keys[batch.system_index], Use.CHOOSE_ATOM, batch.number_in_system)
            drawn = drawn & (lots < self.config.corruption_ratio)
        chosen = uniform(keys, Use.CHOOSE_SYSTEM) < self.config.probability  # [B]
        chosen = chosen & self._allowed(batch, targets, drawn)
        return drawn & chosen[batch.system_index]

    def _allowed(self, batch: Batch, targets: Targets, drawn: Tensor) -> Tensor:
        """Structures [B] bool that may be corrupted; ``drawn`` [N] are the atoms drawn for corruption.

        Excluded are structures with ``denoise`` False (OC20's MD split) and those where a free atom has no force label,
        which could not be encoded; then those that the settings exclude.
        """
        config, free = self.config, batch.free_atoms
        allowed = batch.denoise & (batch.count_atoms(free & ~targets.forces_mask) == 0)
        if config.min_atoms is not None:
            allowed = allowed & (batch.n_atoms >= config.min_atoms)
        if config.max_force is not None:
            too_large = torch.linalg.vector_norm(targets.forces, dim=-1) > config.max_force
            allowed = allowed & (batch.count_atoms(too_large & free & targets.forces_mask) == 0)
        if config.max_corrupted_share is not None:
            allowed = allowed & (
                batch.count_atoms(drawn) <= config.max_corrupted_share * batch.count_atoms(free).double()
            )
        return allowed
