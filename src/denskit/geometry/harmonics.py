"""Real spherical harmonics in the component normalisation and the order of e3nn (polar axis y, l = 1 is x, y, z)."""

from __future__ import annotations

from torch import Tensor

from denskit.geometry.edge_frame import edge_rotation, wigner_d


def spherical_harmonics(direction: Tensor, l_max: int) -> list[Tensor]:
    """Y_l of unit vectors [N, 3] for l = 0..l_max: a list of [N, 2l+1] with |Y_l|^2 = 2l + 1.

    Y_l(r) = D_l(R)^T Y_l(y) where R carries r onto y; Y_l(y) is sqrt(2l + 1) at m = 0 and zero elsewhere.
    """
    blocks = wigner_d(edge_rotation(direction), l_max)
    return [block[:, l] * (2 * l + 1) ** 0.5 for l, block in enumerate(blocks)]
