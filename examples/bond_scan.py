"""Stretch a bond of a molecule and print what a model says: the energy, and the force along the bond.

    python examples/bond_scan.py runs/example/dens molecule.xyz 2 8     atoms 2 and 8, counted from 0

The two columns must agree with each other: the force is minus the slope of the energy.  Far from the geometries of the
training data they may be wrong together.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import ase.io
import numpy as np

from denskit.evaluation.evaluate import predict_file


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model", help="run folder or model file")
    arguments.add_argument("structure", help="file that ASE reads")
    arguments.add_argument("first", type=int)
    arguments.add_argument("second", type=int)
    given = arguments.parse_args()

    atoms = ase.io.read(given.structure)
    first, second = given.first, given.second
    lengths = atoms.get_distance(first, second) + np.linspace(-0.1, 0.1, 9)
    scan = []
    for length in lengths:
        stretched = atoms.copy()
        stretched.calc = None
        stretched.set_distance(first, second, length, fix=0)  # the first atom stays
        scan.append(stretched)

    with tempfile.TemporaryDirectory() as folder:
        source, answer = Path(folder, "scan.extxyz"), Path(folder, "answer.extxyz")
        ase.io.write(source, scan)
        predict_file(given.model, source, answer)
        frames = ase.io.read(answer, index=":")

    print(f"{'length / Å':>12} {'energy / meV':>14} {'force / (meV/Å)':>16}   (energy relative to the lowest)")
    lowest = min(frame.get_potential_energy() for frame in frames)
    for length, frame in zip(lengths, frames, strict=True):
        along = frame.positions[second] - frame.positions[first]
        force = frame.get_forces()[second] @ along / np.linalg.norm(along)
        print(f"{length:12.4f} {1000 * (frame.get_potential_energy() - lowest):14.2f} {1000 * force:16.1f}")


if __name__ == "__main__":
    main()
