"""How soft potentials are: force errors and slopes by the size of the reference force, and the stiffness of an atom.

    python benchmarks/softness.py runs/plain runs/dens --test 3bpa_test_300K.extxyz --test 3bpa_test_600K.extxyz \\
        --displaced 3bpa_train_300K.extxyz

The slope is that of predicted against reference forces through zero: below 1 the potential is too soft.  The stiffness
is the second difference of the energy when one atom moves by d in a random direction, (E(d) + E(-d) - 2 E(0)) / d^2,
the mean over all atoms of the first structures: potentials that agree within the training structures may differ
beyond.  Tables in Markdown.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import ase
import ase.io
import numpy as np

from denskit import Potential
from denskit.evaluation.evaluate import predict
from denskit.simulation.structures import batch_of

BINS = (0.0, 1.5, 2.5, 4.0, np.inf)  # eV/Å, of the reference force on an atom
DISTANCES = (0.02, 0.05, 0.1, 0.15)  # Å
STRUCTURES = 4  # whose atoms are displaced


def table(title: str, head: list[str], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def errors(run: str, frames: list[ase.Atoms], reference: np.ndarray) -> list[str]:
    """Errors (meV/Å) of all atoms, then error and slope in each bin."""
    forces = np.concatenate(predict(run, frames).forces)
    size = np.linalg.norm(reference, axis=1)
    cells = [f"{1000 * np.abs(forces - reference).mean():.1f}"]
    for low, high in pairwise(BINS):
        inside = (size >= low) & (size < high)
        if not inside.any():
            cells.append("-")
            continue
        found, wanted = forces[inside], reference[inside]
        slope = (found * wanted).sum() / (wanted**2).sum()
        cells.append(f"{1000 * np.abs(found - wanted).mean():.1f}, {slope:.3f}")
    return cells


def stiffness(run: str, frames: list[ase.Atoms], distance: float) -> str:
    """Mean second difference of the energy, eV/Å^2; the directions are the same for all runs and distances."""
    potential, random = Potential(run, dtype=None), np.random.default_rng(0)
    found = []
    for atoms in frames:
        moved = []
        for place in range(len(atoms)):
            direction = random.normal(size=3)
            for sign in (1, -1):
                copy = atoms.copy()
                copy.positions[place] += sign * distance * direction / np.linalg.norm(direction)
                moved.append(copy)
        energy = potential(batch_of([atoms, *moved])).energy.double().numpy()
        found.append((energy[1::2] + energy[2::2] - 2 * energy[0]) / distance**2)
    return f"{np.mean(found):.2f}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", help="run folders or model files")
    parser.add_argument("--test", action="append", default=[], help="labelled structures; may be given again")
    parser.add_argument("--displaced", help="structures of which an atom is displaced")
    asked = parser.parse_args()
    sizes = [f"{low:g} to {high:g} eV/Å" for low, high in pairwise(BINS)]
    for file in asked.test:
        frames = ase.io.read(file, ":")
        reference = np.concatenate([atoms.get_forces() for atoms in frames])
        shares = [np.histogram(np.linalg.norm(reference, axis=1), BINS)[0] / len(reference)][0]
        head = ["", "all", *(f"{size} ({share:.1%} of atoms)" for size, share in zip(sizes, shares, strict=True))]
        rows = [[Path(run).name, *errors(run, frames, reference)] for run in asked.runs]
        table(f"{Path(file).name}: force error (meV/Å), slope", head, rows)
    if asked.displaced:
        frames = ase.io.read(asked.displaced, f":{STRUCTURES}")
        rows = [[Path(run).name, *(stiffness(run, frames, d) for d in DISTANCES)] for run in asked.runs]
        table("stiffness (eV/Å²) of an atom displaced by", ["", *(f"{d:g} Å" for d in DISTANCES)], rows)


if __name__ == "__main__":
    main()
