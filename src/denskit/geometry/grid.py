"""Grids on the sphere: from coefficients of spherical harmonics to values at points and back.

A function f on the sphere with coefficients x_lm is sampled at a product grid of latitudes and longitudes,
f(p) = sum_lm A[p, lm] x_lm, and read back by quadrature, x_lm = sum_p B[p, lm] f(p) (Driscoll and Healy 1994; weights
as in Kostelec and Rockmore 2008).  Pointwise nonlinearities go between the two.  Coordinates and normalisations are
those of e3nn's ``ToS2Grid`` and ``FromS2Grid``, which the published EquiformerV2 and eSCN use: the pole is +y,
longitude 0 is +z, and x lies at longitude 90 degrees.
"""

from __future__ import annotations

from functools import cache
from math import pi
from typing import Literal

import torch
from torch import Tensor

from denskit.geometry.harmonics import spherical_harmonics

Normalisation = Literal["component", "integral"]


def grid_points(resolution: tuple[int, int]) -> Tensor:
    """Unit vectors [latitudes, longitudes, 3] (float64) of the grid; no point lies on a pole."""
    latitudes, longitudes = resolution
    beta = (torch.arange(latitudes, dtype=torch.float64) + 0.5) * (pi / latitudes)
    alpha = torch.arange(longitudes, dtype=torch.float64) * (2 * pi / longitudes)
    across, along = torch.sin(beta)[:, None], torch.cos(beta)[:, None]
    return torch.stack((across * torch.sin(alpha), along.expand(-1, longitudes), across * torch.cos(alpha)), -1)


def quadrature_weights(resolution: tuple[int, int]) -> Tensor:
    """Weight [latitudes] of the points of each latitude; the weights of all points sum to 1: a mean over the sphere.

    With b = latitudes / 2: w_k ∝ sin β_k sum_{j < b} sin((2j + 1) β_k) / (2j + 1); exact for polynomials below
    degree 2b.
    """
    latitudes, longitudes = resolution
    beta = (torch.arange(latitudes, dtype=torch.float64) + 0.5) * (pi / latitudes)
    odd = 2 * torch.arange(latitudes // 2, dtype=torch.float64) + 1
    weights = torch.sin(beta) * (torch.sin(beta[:, None] * odd) / odd).sum(1)
    return weights / (weights.sum() * longitudes)


@cache
def s2_grid(l_max: int, m_max: int, resolution: tuple[int, int], normalisation: Normalisation) -> tuple[Tensor, Tensor]:
    """Matrices to the grid and back, each [latitudes, longitudes, K] (float64, CPU); do not change them in place.

    Args:
        l_max: highest degree.
        m_max: only coefficients with |m| <= m_max are kept, degree by degree with m ascending.
        resolution: numbers of latitudes (even) and longitudes.
        normalisation: of the coefficients.  "integral": f = sum x_lm Y_lm with Y of unit norm on the sphere.
            "component": e3nn's, where coefficients of variance 1 give values of variance 1.  Degrees l > m_max, which
            have only 2 m_max + 1 orders left, are multiplied by sqrt((2l + 1) / (2 m_max + 1)) as in EquiformerV2,
            there **and back**: with m_max < l_max the matrices are not inverse to each other, in its weights too.

    Raises:
        ValueError: An odd number of latitudes: the quadrature is undefined.
    """
    if resolution[0] % 2 or min(resolution) < 1:
        raise ValueError(f"a grid of {resolution[0]} latitudes and {resolution[1]} longitudes: latitudes must be even")
    # a cached inference tensor could not be differentiated in a later training step
    with torch.inference_mode(False), torch.no_grad():
        points = grid_points(resolution).reshape(-1, 3)
        harmonics = spherical_harmonics(points, l_max)
        weights = quadrature_weights(resolution).repeat_interleave(resolution[1])[:, None]
        to_grid, from_grid = [], []
        for l, values in enumerate(harmonics):
            kept = values[:, l - min(l, m_max) : l + min(l, m_max) + 1]
            scale = (4 * pi) ** 0.5 if normalisation == "integral" else ((2 * l + 1) * (l_max + 1)) ** 0.5
            truncated = normalisation == "component" and l > m_max
            rescale = ((2 * l + 1) / (2 * m_max + 1)) ** 0.5 if truncated else 1.0
            to_grid.append(kept * (rescale / scale))
            from_grid.append(kept * weights * (rescale * scale))
        shape = (*resolution, -1)
        return torch.cat(to_grid, 1).reshape(shape), torch.cat(from_grid, 1).reshape(shape)
