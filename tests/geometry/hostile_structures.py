"""Structures that hung or killed a neighbour search, and what is said of each; run as a script, it searches them all.

    python hostile_structures.py NAME ...

prints a line of JSON before and after each search, so that a crash or a hang is that of the structure named last:
the name, the edges or the error, and whether a simulation calls the structure broken.
"""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

SECONDS = 120  # of the processor: a search that hangs is ended


@dataclass(frozen=True)
class Hostile:
    """A structure of hydrogen."""

    positions: Any
    cell: Any
    pbc: tuple[bool, bool, bool] = (True, True, True)
    cutoff: float = 5.0
    edges: int | None = None  # how many there are
    error: str = ""  # or what is said, a regular expression


def _crowd(n: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(0, 1, size=(n, 3))


NAN, INF = float("nan"), float("inf")
PAIR = [[0, 0, 0], [0, 0, 1.0]]
ONE = [[0.0, 0.0, 0.0]]
OPEN = (False, False, False)
FLAT = [[2, 0, 0], [0, 2, 0], [2, 2, 1e-3]]
HOSTILE = {
    "flat and skewed": Hostile(ONE, FLAT, edges=139_426),
    "flat and skewed, many atoms": Hostile(2 * _crowd(40), FLAT, error="about 2.1e[+]08 neighbours within 5 Å"),
    "dependent rows": Hostile(PAIR, [[1, 1, 1], [2, 2, 2], [0, 0, 5]], error="no volume"),
    "dependent but for rounding": Hostile(PAIR, [[0.1, 0.2, 0.3], [0.3, 0.6, 0.9], [0, 0, 5]], error="no volume"),
    "all zero": Hostile(PAIR, np.zeros((3, 3)), error="no volume"),
    "left-handed": Hostile(PAIR, np.diag([5.0, 5, -5]), edges=4),
    "NaN position": Hostile([[0, 0, 0], [0, NAN, 1]], np.diag([5.0, 5, 5]), error="atom 1 is at"),
    "infinite position": Hostile([[0, 0, 0], [0, INF, 1]], np.zeros((3, 3)), OPEN, error="atom 1 is at"),
    "NaN cell": Hostile(PAIR, np.full((3, 3), NAN), error="its cell is .*nan"),
    "NaN cell of a molecule": Hostile(PAIR, np.full((3, 3), NAN), OPEN, error="its cell is .*nan"),
    "infinite cell": Hostile(PAIR, np.diag([INF, 5, 5]), error="its cell is .*inf"),
    "1e200 Å": Hostile(PAIR, np.diag([1e200, 5, 5]), error="its cell is"),
    "atom at 1e5 Å from a slab": Hostile(
        [*PAIR, [0, 0, 1e5]], np.diag([3.0, 3, 0]), (True, True, False), error="flown apart.*1e[+]05 Å"
    ),
    "atom far outside its cell": Hostile([[0, 0, 0], [9e7, 0, 1]], np.diag([0.5, 5, 5]), edges=96),
    "wide and thin": Hostile(ONE, np.diag([900.0, 900, 2e-4]), error="1e[+]10 steps"),
    "wide, thin and skewed": Hostile(ONE, [[900, 0, 0], [0, 900, 0], [900, 900, 2e-4]], error="1e[+]10 steps"),
    "tiny cell": Hostile(ONE, np.eye(3) * 0.02, error="about 6.5e[+]07 neighbours"),
    "tiny wire": Hostile(ONE, np.diag([1e-3, 0, 0]), (True, False, False), edges=9_998),
    "large cutoff": Hostile(PAIR, np.eye(3) * 2, cutoff=1000.0, error="about 2.1e[+]09 neighbours within 1e[+]03 Å"),
    "infinite cutoff": Hostile(PAIR, np.eye(3) * 2, cutoff=INF, error="the cutoff is inf"),
    "NaN cutoff": Hostile(PAIR, np.eye(3) * 2, cutoff=NAN, error="the cutoff is nan"),
    "crowd": Hostile(_crowd(9000), np.zeros((3, 3)), OPEN, error="about .* neighbours .* 9000 atoms"),
    "crowd in a large cell": Hostile(_crowd(9000), np.eye(3) * 30, error="about .* neighbours .* 9000 atoms"),
    "one place": Hostile([[0, 0, 0], [5, 0, 0]], np.eye(3) * 5, error="atoms 0 and 1 are at one place"),
    "sixty at one place": Hostile(np.zeros((60, 3)), np.eye(3) * 5, error="at one place"),
    "beyond rounding": Hostile(PAIR, [[3, 0, 0], [3e7, 3, 0], [0, 3e7, 3]], error="none beyond rounding"),
}


def main(names: list[str]) -> None:
    """Search the structures of these names."""
    import ase

    from contract.variants import build
    from denskit.geometry.neighbors import build_neighbors
    from denskit.simulation.potential import Potential
    from denskit.simulation.structures import batch_of

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    potential = Potential(build("linear", torch.float64))
    for name in names:
        print(json.dumps([name, "begins", None]), flush=True)
        case = HOSTILE[name]
        atoms = ase.Atoms(numbers=[1] * len(case.positions), positions=case.positions, cell=case.cell, pbc=case.pbc)
        batch = batch_of([atoms])
        try:
            found = build_neighbors(batch, case.cutoff)
            said: int | str = found.num_edges
        except ValueError as error:
            said = str(error)
        print(json.dumps([name, said, bool(potential.broken(batch))]), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main(sys.argv[1:])
