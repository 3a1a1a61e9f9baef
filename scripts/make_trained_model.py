"""Write tests/fixtures/trained.safetensors: a very small Equiformer, trained until it is a sane potential.

    python scripts/make_trained_model.py [FILE]        needs tblite: pip install 'denskit[xtb]'

Tests that move atoms (relaxation, dynamics, vibrations) take it, because in the landscape of random weights the last
bits of a processor decide where atoms go.  It knows water, methane and ethanol near their minima (GFN2-xTB), and copper
with and without CO on it (EMT of ASE); energies are relative to those of the relaxed structures.  tests/test_trained.py
says what it is good for.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ase
import ase.io
import numpy as np
import torch
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.calculators.calculator import Calculator
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.optimize import BFGS
from tblite.ase import TBLite

from denskit.models.model_file import load_model, save_model
from denskit.training.load_config import load_config
from denskit.training.run import train

OUTPUT = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "trained.safetensors"
FRAMES = {False: 160, True: 60}  # of each structure, without and with a cell
SETTINGS = [
    "model={name: equiformer, cutoff: 4.0, norm: merged, envelope: true, stress: strain, num_elements: 30}",
    "model.parity=false", "model.num_layers=2", "model.num_heads=2", "model.num_basis=10", "model.radial_hidden=[16]",
    "model.channels=[12,6,4]", "model.feature_channels=[12,6,4]", "model.head_channels=[6,3,2]",
    "model.ffn_channels=[12,6,4]", "data.references=none", "data.missing=mask",
    "data.split={mode: random, train: 0.9, valid: 0.1, test: 0}", "training.scale=force_rms", "task.stress_weight=10",
    "training.batch_size=20", "training.max_steps=2000", "training.lr=1e-2", "training.ema_decay=0.99",
    "training.evaluate_every=500 steps", "training.log_every=250",
]  # fmt: skip


def structures() -> Iterator[tuple[ase.Atoms, Calculator]]:
    """What the model is to know, with the method that labels it."""
    for name in ("H2O", "CH4", "CH3CH2OH"):
        yield molecule(name), TBLite(method="GFN2-xTB", verbosity=0, accuracy=0.01)
    yield bulk("Cu", cubic=True), EMT()
    slab = fcc111("Cu", size=(2, 2, 2), vacuum=6.0)
    add_adsorbate(slab, ase.Atoms("CO", positions=[[0, 0, 0], [0, 0, 1.15]]), height=1.9, position="ontop")
    slab.pbc, slab.info = [True, True, False], {}
    yield slab, EMT()


def frames_of(atoms: ase.Atoms, calculator: Calculator, generator: np.random.Generator) -> Iterator[ase.Atoms]:
    """Structures around the minimum: atoms moved by 0 to 0.12 Å (one deviation), cells strained by some percent."""
    relaxed = atoms.copy()
    relaxed.calc = calculator
    BFGS(relaxed, logfile=None).run(fmax=0.005, steps=500)
    lowest = relaxed.get_potential_energy()
    for spread in np.linspace(0.0, 0.12, FRAMES[bool(atoms.pbc.any())]):
        frame = relaxed.copy()
        if frame.pbc.all():
            strain = generator.normal(scale=spread / 5, size=(3, 3))
            frame.set_cell(frame.cell @ (np.eye(3) + strain + strain.T), scale_atoms=True)
        frame.positions += generator.normal(scale=spread, size=frame.positions.shape)
        frame.calc = calculator
        labels = {"energy": frame.get_potential_energy() - lowest, "forces": frame.get_forces()}
        if frame.pbc.all():
            labels["stress"] = frame.get_stress()
        frame.calc = SinglePointCalculator(frame, **labels)
        yield frame


def main(path: Path = OUTPUT) -> None:
    """Label, train, write; a minute or two on one thread."""
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    frames = [frame for atoms, method in structures() for frame in frames_of(atoms, method, generator)]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "frames.extxyz"
        ase.io.write(data, frames)
        run = train(load_config("equiformer", [*SETTINGS, f"data.path={data}", f"output={folder}/run", "device=cpu"]))
        model = load_model(run / "model.safetensors")
    path.parent.mkdir(exist_ok=True)
    save_model(path, model, {"made by": f"scripts/{Path(__file__).name}"})
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
