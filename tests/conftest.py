"""Fixtures that all tests share: seeds, the process as it was, the folders of real data, a few small systems."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import ase
import numpy as np
import pytest
import torch
from ase.build import add_adsorbate, bulk, fcc111, molecule
from hypothesis import settings

from denskit.batch import System

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile("denskit", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("denskit")


# What the program prints is laid out for one terminal, wherever the tests run.
os.environ |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
for name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TERMINAL_WIDTH", "DENSKIT_DEBUG", "DENSKIT_CACHE"):
    os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def same_process() -> Iterator[None]:
    """The number of threads, which some verbs of the program set, is afterwards that of the environment again."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Every test starts from the same global random state, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def _folder(variable: str, default: Path, content: str) -> Path:
    folder = Path(os.environ.get(variable, default))
    if not folder.is_dir():
        pytest.skip(f"{content}: no folder {folder} (set {variable})")
    return folder


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of real DFT data, from $DENSKIT_DATA."""
    return _folder("DENSKIT_DATA", ROOT.parent / "shared" / "data", "real DFT data")


@pytest.fixture(scope="session")
def reference_dir() -> Path:
    """Folder of outputs of the published implementations, from $DENSKIT_REFERENCE."""
    return _folder("DENSKIT_REFERENCE", ROOT.parent / "shared" / "reference", "reference numbers")


def _system(atoms: ase.Atoms, index: int, rattle: float = 0.05, tags: bool = False) -> System:
    """The structure pushed off its symmetric geometry by ``rattle`` Å, with invented but definite labels."""
    generator = np.random.default_rng(index)
    n = len(atoms)
    fixed = np.zeros(n, dtype=bool)
    for constraint in atoms.constraints:
        fixed[constraint.index] = True
    stress = generator.normal(scale=0.01, size=(3, 3))
    return System(
        positions=atoms.get_positions() + generator.normal(scale=rattle, size=(n, 3)),
        atomic_numbers=atoms.get_atomic_numbers().astype(np.int64),
        cell=np.array(atoms.cell),
        pbc=np.array(atoms.pbc),
        fixed=fixed,
        tags=atoms.get_tags().astype(np.int64) if tags else np.zeros(n, dtype=np.int64),
        energy=float(generator.normal()) - 10.0 * n,
        forces=generator.normal(size=(n, 3)),
        stress=(stress + stress.T) / 2 if atoms.pbc.all() else None,
        index=index,
        group=atoms.get_chemical_formula(),
    )


def _slab() -> ase.Atoms:
    """CO on two layers of Cu(111), the lower layer fixed; tags as in OC20 (0 subsurface, 1 surface, 2 adsorbate)."""
    slab = fcc111("Cu", size=(2, 2, 2), vacuum=6.0, periodic=False)
    lower = slab.get_tags() == 2  # ASE counts layers from the top
    slab.set_tags(np.where(lower, 0, 1))
    add_adsorbate(slab, ase.Atoms("CO", positions=[[0, 0, 0], [0, 0, 1.15]], tags=[2, 2]), height=1.9, position="ontop")
    slab.pbc = [True, True, False]
    slab.set_constraint(ase.constraints.FixAtoms(indices=np.flatnonzero(lower)))
    return slab


@pytest.fixture(scope="session")
def systems() -> dict[str, System]:
    """Small systems by name: molecules, a bulk cell, a slab with fixed atoms, a cell much smaller than any cutoff."""
    triclinic = ase.Atoms(
        "NaCl", scaled_positions=[[0.1, 0.2, -0.3], [0.6, 1.4, 0.5]],  # partly outside the cell, on purpose
        cell=[[3.1, 0.0, 0.0], [0.9, 3.4, 0.0], [-0.7, 0.5, 2.9]], pbc=True,
    )  # fmt: skip
    return {
        "ethanol": _system(molecule("CH3CH2OH"), 0),
        "water": _system(molecule("H2O"), 1),
        "acetamide": _system(molecule("CH3CONH2"), 2),
        "copper": _system(bulk("Cu", cubic=True), 3),
        "slab": _system(_slab(), 4, tags=True),
        "triclinic": _system(triclinic, 5),
    }
