"""Forces of trained models at and near sites on which symmetry allows none.

    python benchmarks/symmetric_sites.py MODEL [MODEL ...]

Each model (a run folder or a model file) meets those of the structures below of which it knows the elements: at the
perfect geometry, and with all atoms displaced at random.  A sound model has no force at the first and forces that grow
with the displacement; the published layer norm has neither.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import ase
import numpy as np
import torch
from ase.build import bulk, molecule
from rich.console import Console
from rich.table import Table

from denskit.models.base import ForceField
from denskit.models.model_file import load_model
from denskit.simulation.structures import batch_of
from denskit.training.run_folder import model_file

DISPLACEMENTS = (0.0, 1e-4, 1e-3, 1e-2, 3e-2)  # Å, the length of each atom's
DRAWS = 10
STRUCTURES: dict[str, ase.Atoms] = {
    "CH4": molecule("CH4"),
    "CO2": molecule("CO2"),
    "C2H6": molecule("C2H6"),
    "diamond": bulk("C", "diamond", 3.57, cubic=True),
    **{metal: bulk(metal, "bcc", cubic=True) for metal in ("V", "Nb", "Mo", "Ta", "W")},
}


def largest_force(force_field: ForceField, atoms: ase.Atoms, size: float, seed: int) -> float:
    """eV/Å, with every atom displaced by ``size`` (Å) in a direction of its own."""
    moved = atoms.copy()
    directions = np.random.default_rng(seed).normal(size=(len(atoms), 3))
    moved.positions += size * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    batch = force_field.config.with_neighbors(batch_of([moved], "cpu").to(dtype=torch.float64))
    return float(force_field.predict(batch)["forces"].norm(dim=1).max())


def main() -> None:
    """Print a row for each model and structure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    table = Table(
        "model", "structure", *(f"{size:g} Å" for size in DISPLACEMENTS), title="largest force, eV/Å (median)"
    )
    for path in parser.parse_args().models:
        with warnings.catch_warnings(action="ignore"):
            force_field = load_model(model_file(path), dtype=torch.float64)
        for name, atoms in STRUCTURES.items():
            if set(atoms.numbers) <= set(force_field.scaling.elements):
                found = [
                    np.median([largest_force(force_field, atoms, size, seed) for seed in range(DRAWS)])
                    for size in DISPLACEMENTS
                ]
                table.add_row(path.name, name, *(f"{force:.3g}" for force in found))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
