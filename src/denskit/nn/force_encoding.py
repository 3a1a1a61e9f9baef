"""Force encoding: forces of corrupted atoms as equivariant features (the paper's equation 5 and algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from denskit.geometry.harmonics import spherical_harmonics
from denskit.nn.so3_linear import Initialisation, SO3Linear


class ForceEncoding(nn.Module):
    """x_f = SO3_Linear(s |f| / sqrt(3) Y(f / |f|)), without a bias.

    With component-normalised harmonics the part of degree 1 is s f itself.  Where f = 0, as on all uncorrupted atoms,
    the embedding is exactly zero with finite gradients.  The published embedding has a bias on its scalars that acts on
    all atoms, also at inference; here the encoding has no effect at inference.

    With ``stress``, six more numbers an atom are encoded: its share of a virial as coefficients of degrees 0 and 2
    (:mod:`denskit.geometry.symmetric_matrices`), mapped to the features of these degrees.

    Args:
        channels: channels of each degree of the node features.
        scale: s, in Å/eV; also of virials, per Å.
        bias: a bias on the scalars of atoms with a force (EquiformerV3).
        mark: this bias, random at first instead of zero.  Encoded forces alone fade into the zero of ordinary atoms,
            which may learn from corrupted atoms with small forces that a displacement costs nothing; the bias keeps
            both apart.  An atom whose force is exactly zero has none.
        stress: encode virials, too; the features must have degree 2.
    """

    def __init__(
        self,
        channels: Sequence[int],
        scale: float,
        init: Initialisation = "normal",
        *,
        bias: bool = False,
        mark: bool = False,
        stress: bool = False,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.l_max = len(channels) - 1
        self.linear = SO3Linear([1] * len(channels), channels, bias=bias or mark, init=init)
        if mark and self.linear.bias is not None:
            nn.init.normal_(self.linear.bias)
        assert len(channels) > 2 or not stress, "ModelConfig.require_degrees checks this"
        self.stress = nn.ModuleDict({str(l): nn.Linear(1, channels[l], bias=False) for l in (0, 2)}) if stress else None

    def forward(self, encoded: Tensor) -> list[Tensor]:
        """Forces [N, 3] in eV/Å, or forces and virials [N, 9] in eV, to features x[l] [N, 2l+1, C_l]."""
        features = self._of_forces(encoded[:, :3])
        if self.stress is not None and encoded.shape[1] > 3:
            virial = self.scale * encoded[:, 3:, None]
            for l, part in ((0, virial[:, :1]), (2, virial[:, 1:])):
                features[l] = features[l] + self.stress[str(l)](part)
        return features

    def _of_forces(self, forces: Tensor) -> list[Tensor]:
        zero = forces.square().sum(-1, keepdim=True) == 0  # also where the square of a tiny force vanishes
        # zero forces get a direction, to avoid division by zero; their length is set to 0 afterwards
        safe = torch.where(zero, torch.eye(3, dtype=forces.dtype, device=forces.device)[1], forces)
        length = safe.square().sum(-1, keepdim=True).sqrt()
        magnitude = torch.where(zero, torch.zeros_like(length), length) * (self.scale / 3**0.5)
        harmonics = spherical_harmonics(safe / length, self.l_max)
        encoded = self.linear([(magnitude * y)[:, :, None] for y in harmonics])
        if self.linear.bias is None:
            return encoded
        return [torch.where(zero[..., None], 0, part) for part in encoded]
