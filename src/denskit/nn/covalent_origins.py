"""Where the radial functions of a pair of atoms begin."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# pm, single bonds, from H on: Pyykkö and Atsumi, Chem. Eur. J. 15 (2009) 186, table 2.  Nearest neighbours in metals
# are about as far apart as their sums; those of Cordero (Dalton Trans. 2008, 2832) are 0.4 Å longer there.
RADII = (
    32, 46,
    133, 102, 85, 75, 71, 63, 64, 67,
    155, 139, 126, 116, 111, 103, 99, 96,
    196, 171, 148, 136, 134, 122, 119, 116, 111, 110, 112, 118, 124, 121, 121, 116, 114, 117,
    210, 185, 163, 154, 147, 138, 128, 125, 125, 120, 128, 136, 142, 140, 140, 136, 133, 131,
    232, 196, 180, 163, 176, 174, 173, 172, 168, 169, 168, 167, 166, 165, 164, 170, 162,
    152, 146, 137, 131, 129, 122, 123, 124, 133, 144, 144, 151, 145, 147, 142,
    223, 201, 186, 175, 169, 170, 171, 172, 166, 166, 168, 168, 165, 167, 173, 176, 161,
    157, 149, 143, 141, 134, 129, 128, 121, 122, 136, 143, 162, 175, 165, 157,
)  # fmt: skip
BEFORE_BOND = 1.07  # Å, the length of C-H: its functions begin at 0, as those of all pairs do as published


class CovalentOrigins(nn.Module):
    """``BEFORE_BOND`` less than the length of a single bond, the sum of the covalent radii of both atoms.

    The functions of :class:`denskit.nn.radial.ExponentialNormalBasis` are narrow from their origin to about 2 Å beyond.
    With one origin for all pairs that is right for the bonds of hydrogen alone: all neighbours in a metal, from 2.5 Å
    on, lie within the width of one function.
    """

    radii: Tensor  # [num_elements] Å

    def __init__(self, num_elements: int) -> None:
        super().__init__()
        radii = torch.tensor((0, *RADII)[:num_elements], dtype=torch.get_default_dtype()) / 100
        self.register_buffer("radii", radii, persistent=False)

    def forward(self, atomic_numbers: Tensor, edge_index: Tensor) -> Tensor:
        """Atomic numbers [N] and the ends of edges [2, E] to origins [E] (Å), negative for H-H."""
        of_atoms = self.radii[atomic_numbers] - 0.5 * BEFORE_BOND
        return of_atoms.index_select(0, edge_index[0]) + of_atoms.index_select(0, edge_index[1])
