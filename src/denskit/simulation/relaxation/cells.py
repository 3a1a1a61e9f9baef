"""Relaxation of cells together with their atoms: the Frechet cell filter of ASE, for many systems at once.

The coordinates of a system of n atoms are its atoms' positions in the undeformed cell and n U, where F = exp(U) is the
deformation gradient: cell = cell_0 F^T, positions = x F^T.  Their forces are f F for the atoms, and
-(1/n) dH/dU for the cell, with the enthalpy H = E + p V; they vanish exactly where the forces on atoms and the
stress vanish (coordinates of Tadmor et al., Phys. Rev. B 59, 235 (1999); the logarithm makes moves independent of the
present strain).
"""

from __future__ import annotations

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from denskit.settings import Settings

VOIGT = ("xx", "yy", "zz", "yz", "xz", "xy")
_PLACES = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))


class CellRelaxation(Settings):
    """The strains of a cell that relax, and the pressure on it.

    Raises ValueError for an unknown strain, for none at all, and for some strains of a hydrostatic relaxation.
    """

    strains: tuple[str, ...] = Field(default=VOIGT, min_length=1)
    """Free components of the strain, of xx yy zz yz xz xy."""
    hydrostatic: bool = False
    """The volume relaxes, the shape does not."""
    pressure: float = 0.0
    """External pressure (eV/Å^3); positive compresses."""

    @field_validator("strains")
    @classmethod
    def _are_known(cls, strains: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [strain for strain in strains if strain not in VOIGT]:
            raise ValueError(f"no strain is called {_quoted(unknown)}; give components of {','.join(VOIGT)}")
        return strains

    @model_validator(mode="after")
    def _keeps_its_shape(self) -> CellRelaxation:
        if self.hydrostatic and set(self.strains) != set(VOIGT):
            raise ValueError(
                f"hydrostatic relaxes the volume alone, not the strains {','.join(self.strains)}; give one of both"
            )
        return self

    @classmethod
    def from_name(cls, name: str, pressure: float = 0.0) -> CellRelaxation:
        """From "full", "hydrostatic", or components joined by commas, as "xx,yy,xy".  Raises ValueError."""
        if name in ("full", "hydrostatic"):
            return cls(hydrostatic=name == "hydrostatic", pressure=pressure)
        strains = tuple(name.split(","))
        unknown = [strain for strain in strains if strain not in VOIGT]
        if unknown:
            raise ValueError(
                f"cell={name}: no strain is called {_quoted(unknown)}; "
                f"give full, hydrostatic, or components of {','.join(VOIGT)}"
            )
        return cls(strains=strains, pressure=pressure)

    def mask(self, like: Tensor) -> Tensor:
        """Mask [3, 3] of the free components of the strain, in the dtype and on the device of ``like``."""
        mask = like.new_zeros(3, 3)
        for strain, (i, j) in zip(VOIGT, _PLACES, strict=True):
            if strain in self.strains:
                mask[i, j] = mask[j, i] = 1
        return mask

    def forces(self, scaled: Tensor, stress: Tensor, cell: Tensor, n_atoms: Tensor) -> Tensor:
        """Forces [B, 3, 3] (eV/Å) on the coordinates n U, ``scaled`` [B, 3, 3], from the stress [B, 3, 3] (eV/Å^3).

        cell: [B, 3, 3] Å, deformed.  n_atoms: [B].
        """
        identity = torch.eye(3, dtype=stress.dtype, device=stress.device)
        virial = -torch.linalg.det(cell).abs()[:, None, None] * (stress + self.pressure * identity)
        if self.hydrostatic:
            virial = virial.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * identity
        virial = virial * self.mask(virial)
        n = n_atoms.to(scaled.dtype)[:, None, None]
        with torch.enable_grad():
            log = (scaled / n).detach().requires_grad_()
            deformation = torch.linalg.matrix_exp(log)
            # dE = -sum virial_ij d(strain)_ij with d(strain) = dF F^-1
            towards = virial @ torch.linalg.inv(deformation.detach()).mT
            (gradient,) = torch.autograd.grad(deformation, log, towards)
        return gradient * self.mask(gradient) / n


def _quoted(strains: list[str]) -> str:
    return ", ".join(map(repr, strains))


def deformation(scaled: Tensor, n_atoms: Tensor) -> Tensor:
    """Deformation gradients F [B, 3, 3] from the coordinates n U [B, 3, 3]."""
    return torch.linalg.matrix_exp(scaled / n_atoms.to(scaled.dtype)[:, None, None])
