"""Cells that relax together with their atoms: what ASE calls a Frechet cell filter, for many systems at once.

The coordinates of a system of n atoms are its atoms' positions in the undeformed cell and n U, where F = exp(U) is the
deformation gradient: cell = cell_0 F^T, positions = x F^T.  Their forces are f F for the atoms, and
-(1/n) dH/dU for the cell, with the enthalpy H = E + p V; they vanish exactly where the atoms' forces and the stress do
(Tadmor et al., Phys. Rev. B 59, 235 (1999), for the coordinates; the logarithm makes moves independent of the strain
already there).
"""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

VOIGT = ("xx", "yy", "zz", "yz", "xz", "xy")
_PLACES = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))


class CellRelaxation(BaseModel):
    """Which deformations of a cell relax, and against which pressure."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strains: tuple[str, ...] = Field(
        VOIGT, description="components of the strain that may change, of xx yy zz yz xz xy"
    )
    hydrostatic: bool = Field(False, description="only the volume changes, not the shape")
    pressure: float = Field(0.0, description="eV/Å^3, outside the cell; positive presses it together")

    @classmethod
    def from_name(cls, name: str, pressure: float = 0.0) -> CellRelaxation:
        """From "full", "hydrostatic", or components joined by commas, as "xx,yy,xy".  Raises ValueError."""
        if name in ("full", "hydrostatic"):
            return cls(hydrostatic=name == "hydrostatic", pressure=pressure)
        strains = tuple(name.split(","))
        unknown = [strain for strain in strains if strain not in VOIGT]
        if unknown:
            raise ValueError(
                f"cell={name}: no strain is called {', '.join(unknown) or name!r}; "
                f"give full, hydrostatic, or components of {','.join(VOIGT)}"
            )
        return cls(strains=strains, pressure=pressure)

    def mask(self, like: Tensor) -> Tensor:
        """1 where a component of the strain is free, else 0: [3, 3], in the dtype and on the device of ``like``."""
        mask = like.new_zeros(3, 3)
        for strain, (i, j) in zip(VOIGT, _PLACES, strict=True):
            if strain in self.strains:
                mask[i, j] = mask[j, i] = 1
        return mask

    def forces(self, scaled: Tensor, stress: Tensor, cell: Tensor, n_atoms: Tensor) -> Tensor:
        """Forces [B, 3, 3] (eV/Å) on the coordinates n U, ``scaled`` [B, 3, 3], from stresses [B, 3, 3] in cells.

        cell: [B, 3, 3] Å, the deformed cells.  n_atoms: [B].
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


def deformation(scaled: Tensor, n_atoms: Tensor) -> Tensor:
    """Deformation gradients F [B, 3, 3] from the coordinates n U [B, 3, 3]."""
    return torch.linalg.matrix_exp(scaled / n_atoms.to(scaled.dtype)[:, None, None])
