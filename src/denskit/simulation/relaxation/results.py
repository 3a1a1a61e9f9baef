"""Results of a relaxation, structure by structure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

import ase
import numpy as np
from ase.calculators.singlepoint import SinglePointCalculator
from torch import Tensor

from denskit.batch import System
from denskit.data.writing import relaxed_at
from denskit.simulation.relaxation.running import Running

Status = Literal["converged", "not_converged", "exploded", "refused", "unknown_element", "out_of_memory"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Relaxed:
    """The result of one structure (numpy, float64)."""

    index: int  # in the source
    status: Status
    message: str = ""  # the reason of any status but "converged" and "not_converged"
    moves: int
    energy: float | None = None  # eV, at these positions; None: never evaluated
    fmax: float | None = None  # eV/Å, longest force on a free atom or (per atom) on the cell
    positions: np.ndarray  # [n, 3] Å; of the last sound evaluation, if the structure exploded
    cell: np.ndarray  # [3, 3] Å
    forces: np.ndarray | None = None  # [n, 3] eV/Å, on fixed atoms too
    stress: np.ndarray | None = None  # [3, 3] eV/Å^3
    moved: float = 0.0  # Å, largest distance of an atom from its start, which a relaxing cell takes along

    @property
    def sound(self) -> bool:
        """Whether it ended regularly: converged, or after the last allowed move."""
        return self.status in ("converged", "not_converged")

    def atoms(self, given: ase.Atoms) -> ase.Atoms:
        """A copy of the structure that was ``given``, where it ended, with its energy, forces and (crystals) stress.

        ``info`` has ``status`` and ``moves``; labels of the start become ``input_`` fields, momenta are dropped.
        Raises ValueError for a structure with another number of atoms.
        """
        if len(given) != len(self.positions):
            raise ValueError(f"{len(given)} atoms are given, and {len(self.positions)} were relaxed as {self.index}")
        stress = self.stress if given.pbc.all() else None
        results = {"energy": self.energy, "forces": self.forces, "stress": stress}
        atoms = relaxed_at(given, self.positions, self.cell, results)
        assert atoms.calc is not None, "it has the results"
        atoms.calc = SinglePointCalculator(atoms, **atoms.calc.results)  # of these positions, else ASE refuses them
        atoms.calc.of_model = True  # no labels
        atoms.info |= {"status": self.status, "moves": self.moves}
        return atoms

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; floats round-trip exactly."""
        return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """From :meth:`to_dict`."""
        shapes = {"positions": (-1, 3), "cell": (3, 3), "forces": (-1, 3), "stress": (3, 3)}
        arrays = {n: np.array(values[n], dtype=float).reshape(s) for n, s in shapes.items() if values[n] is not None}
        return cls(**{**values, **arrays})


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """One evaluated geometry of a trajectory."""

    index: int
    moves: int
    energy: float  # eV
    forces: np.ndarray  # [n, 3] eV/Å
    positions: np.ndarray  # [n, 3] Å
    cell: np.ndarray  # [3, 3] Å


def refused(index: int, system: System | None, status: Status, message: str) -> Relaxed:
    """The result of a structure that was not begun; ``system`` None: it could not be read."""
    return Relaxed(
        index=index,
        status=status,
        message=message,
        moves=0,
        positions=np.zeros((0, 3)) if system is None else system.positions,
        cell=np.zeros((3, 3)) if system is None else system.cell,
    )


def exploded(running: Running, reason: str) -> Relaxed:
    """The result of the one structure in ``running``, whose present coordinates cannot be evaluated."""
    moves, energy = int(running.moves[0]), float(running.energy[0])
    status: Status = "exploded" if moves else "refused"
    message = f"after {moves} moves {reason}" if moves else f"as given, {reason}"
    result = unevaluated(replace(running, coordinates=running.previous), status, message)
    return replace(result, energy=energy if np.isfinite(energy) else None)


def unevaluated(running: Running, status: Status, message: str) -> Relaxed:
    """The result of the one structure in ``running`` at its present coordinates, without an energy."""
    positions, cell = running.positions_and_cell(running.coordinates)
    return Relaxed(
        index=int(running.index[0]),
        status=status,
        message=message,
        moves=int(running.moves[0]),
        positions=to_numpy(positions),
        cell=to_numpy(cell[0]),
        moved=float(running.farthest()[0]),
    )


def to_numpy(values: Tensor) -> np.ndarray:
    """A float64 copy on the CPU."""
    return values.detach().double().cpu().numpy()
