"""Edge frames: the rotation of each edge onto the polar (y) axis, and its Wigner-D matrices.

In this frame a spherical harmonic of the edge is non-zero at order m = 0 only, so tensor products with it are diagonal
in |m| (Passaro and Zitnick 2023, "Reducing SO(3) convolutions to SO(2)").  All models of Denskit use edge frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from denskit.geometry.operations import reordered
from denskit.geometry.wigner_3j import wigner_3j


@dataclass(frozen=True, kw_only=True)
class EdgeFrames:
    """Lengths of edges, and the matrices that rotate node features into the edge frames."""

    length: Tensor  # [E] Å
    direction: Tensor  # [E, 3] unit vectors from target to source
    wigner: tuple[Tensor, ...]  # [l] -> [E, 2l+1, 2l+1], rows m-major (0, +1, -1, +2, ...), columns m = -l..l


def edge_rotation(direction: Tensor) -> Tensor:
    """Rotation matrices [E, 3, 3] that map unit vectors [E, 3] to +y.

    With s = sign(y): the smallest rotation onto s y, then, where s < 0, half a turn about x.  The only denominator is
    1 + |y| >= 1: there is no pole, and all derivatives are finite.  At y = 0 the gauge (the rotation about the edge)
    jumps; gauge-exact layers do not depend on it.
    """
    x, y, z = direction.unbind(-1)
    sign = torch.where(y >= 0, 1.0, -1.0).to(direction.dtype)
    h = 1 / (1 + sign * y)
    xzh = x * z * h
    rows = (
        torch.stack((1 - x * x * h, -sign * x, -xzh), -1),
        direction,
        torch.stack((-sign * xzh, -z, sign * (1 - z * z * h)), -1),
    )
    return torch.stack(rows, -2)


@cache
def _coupling(degree: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Isometry [3 (2l-1), 2l+1] that embeds degree l in the product of degrees l - 1 and 1."""
    # a cached inference tensor could not be differentiated in a later training step
    with torch.inference_mode(False):
        coupling = wigner_3j(degree - 1, 1, degree) * (2 * degree + 1) ** 0.5
        return coupling.reshape(3 * (2 * degree - 1), 2 * degree + 1).to(device=device, dtype=dtype)


@cache
def m_major(degree: int) -> tuple[int, ...]:
    """Positions of the orders 0, +1, -1, +2, -2, ... among m = -l..l."""
    return (degree, *(degree + sign * m for m in range(1, degree + 1) for sign in (1, -1)))


def wigner_d(rotation: Tensor, l_max: int) -> tuple[Tensor, ...]:
    """Wigner-D matrices of rotations [E, 3, 3] for l = 0..l_max, each [E, 2l+1, 2l+1] in the order m = -l..l.

    D_l is the part of degree l of D_{l-1} x D_1, and D_1 is the rotation itself (real basis, x y z order, as in e3nn).
    All are polynomials in the matrix elements, without angles and hence without poles.
    """
    edges = rotation.shape[0]
    blocks = [rotation.new_ones(edges, 1, 1), rotation]
    for degree in range(2, l_max + 1):
        coupling = _coupling(degree, rotation.device, rotation.dtype)
        size = 3 * (2 * degree - 1)
        product = blocks[-1][:, :, None, :, None] * rotation[:, None, :, None, :]
        blocks.append(coupling.T @ (product.reshape(edges, size, size) @ coupling))
    return tuple(blocks[: l_max + 1])


def edge_frames(vectors: Tensor, l_max: int) -> EdgeFrames:
    """Frames of edge vectors [E, 3] (Å, non-zero)."""
    length = vectors.square().sum(-1).sqrt()
    direction = vectors / length[:, None]
    blocks = wigner_d(edge_rotation(direction), l_max)
    ordered = tuple(reordered(block, 1, m_major(l)) if l else block for l, block in enumerate(blocks))
    return EdgeFrames(length=length, direction=direction, wigner=ordered)
