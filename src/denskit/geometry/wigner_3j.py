"""Wigner 3j tensors in the real basis: the constants that couple two degrees to a third.

They ship with the package (``wigner_3j.npz``, written by ``scripts/generate_wigner_3j.py``): a model's function does
not depend on the installed e3nn.

Convention.  Basis, order and norm are e3nn's: component m = -l..l, (x, y, z) for l = 1, sum of squares 1.  The overall
signs are those of **e3nn 0.4.4**, with which the published weights were trained, for every triple up to degree 6.  e3nn
since 0.5 has the opposite sign for these triples and their permutations: (1, l, l) with l >= 2, (3, 4, 6), (4, 4, 5),
(4, 5, 6), (5, 5, 5), (5, 6, 6).
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

L_MAX = 6


@cache
def _sorted_tensors() -> dict[tuple[int, int, int], np.ndarray]:
    """All tensors with l1 <= l2 <= l3."""
    with files("denskit.geometry").joinpath("wigner_3j.npz").open("rb") as file:
        table = np.load(file, allow_pickle=False)
        degrees, elements, values = table["degrees"].tolist(), table["elements"], table["values"]
        stops = np.cumsum(table["counts"]).tolist()
    tensors, start = {}, 0
    for (l1, l2, l3), stop in zip(degrees, stops, strict=True):
        tensor = np.zeros((2 * l1 + 1, 2 * l2 + 1, 2 * l3 + 1))
        tensor.reshape(-1)[elements[start:stop]] = values[start:stop]
        tensors[l1, l2, l3] = tensor
        start = stop
    return tensors


def wigner_3j(l1: int, l2: int, l3: int) -> Tensor:
    """The tensor C [2l1+1, 2l2+1, 2l3+1] (float64, CPU) with C_ijk = D_ai D_bj D_ck C_abc for every rotation.

    Exchanging two degrees (and their axes) multiplies it by (-1)^(l1 + l2 + l3).  Each call returns a new tensor.

    Raises ValueError for degrees above 6 or degrees that do not couple (triangle inequality).
    """
    if not 0 <= min(l1, l2, l3) <= max(l1, l2, l3) <= L_MAX:
        raise ValueError(f"Wigner 3j of degrees {(l1, l2, l3)}: the shipped constants cover degrees 0 to {L_MAX}.")
    if not abs(l1 - l2) <= l3 <= l1 + l2:
        raise ValueError(f"Degrees {(l1, l2, l3)} do not couple: none may exceed the sum of the other two.")
    degrees = (l1, l2, l3)
    order = sorted(range(3), key=degrees.__getitem__)
    first, second, third = (degrees[axis] for axis in order)
    tensor = _sorted_tensors()[first, second, third].transpose(np.argsort(order))
    is_odd_permutation = order in ([1, 0, 2], [0, 2, 1], [2, 1, 0])
    sign = -1.0 if is_odd_permutation and sum(degrees) % 2 else 1.0
    return torch.from_numpy(sign * tensor).contiguous()
