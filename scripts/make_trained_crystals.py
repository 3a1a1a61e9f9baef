"""Write tests/fixtures/copper_MODEL.safetensors: very small models of copper, for tests of perfect crystals.

    python scripts/make_trained_crystals.py [FOLDER]

Every architecture that is offered for crystals beside Equiformer (whose model is examples/data/tungsten) learns fcc
copper (EMT of ASE): cells of 4 and 8 atoms, strained by some percent, atoms moved by 0 to 0.12 Å.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import ase
import ase.io
import numpy as np
import torch
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.models.model_file import load_model, save_model
from denskit.training.load_config import load_config
from denskit.training.run import train

OUTPUT = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
FRAMES = 80  # of each cell
SMALL = ["model.stress=strain", "model.cutoff=4.5", "model.num_layers=2", "model.l_max=2", "model.num_elements=30"]
SIZES = {
    "equiformer_v2": ["m_max=2", "hidden_channels=8", "num_heads=2", "alpha_channels=8", "value_channels=4",
                      "ffn_channels=16", "edge_channels=8", "num_basis=16", "channels=8"],
    "equiformer_v3": ["m_max=2", "hidden_channels=8", "num_heads=2", "alpha_channels=8", "value_channels=4",
                      "ffn_channels=16", "edge_channels=8", "num_basis=10", "channels=8"],
    "esen": ["m_max=2", "hidden_channels=8", "edge_channels=8", "num_basis=10", "channels=8"],
}  # fmt: skip
TRAINING = [
    "data.references=mean", "data.split={mode: random, train: 0.9, valid: 0.1, test: 0}", "training.scale=force_rms",
    "task.stress_weight=10", "training.batch_size=8", "training.max_steps=1500", "training.lr=5e-3",
    "training.ema_decay=0.99", "training.evaluate_every=300 steps", "training.log_every=300", "device=cpu",
]  # fmt: skip


def frames() -> list[ase.Atoms]:
    """Copper with the labels of EMT; energies relative to the perfect crystal."""
    generator = np.random.default_rng(0)
    found = []
    perfect = bulk("Cu", cubic=True, a=3.59)
    perfect.calc = EMT()
    lowest = perfect.get_potential_energy() / len(perfect)
    for repeats in ((1, 1, 1), (2, 1, 1)):
        for spread in np.linspace(0.0, 0.12, FRAMES):
            frame = bulk("Cu", cubic=True, a=3.59).repeat(repeats)
            strain = generator.normal(scale=spread / 5, size=(3, 3))
            frame.set_cell(frame.cell @ (np.eye(3) + strain + strain.T), scale_atoms=True)
            frame.positions += generator.normal(scale=spread, size=frame.positions.shape)
            frame.calc = EMT()
            energy = frame.get_potential_energy() - lowest * len(frame)
            labels = {"energy": energy, "forces": frame.get_forces(), "stress": frame.get_stress()}
            frame.calc = SinglePointCalculator(frame, **labels)
            found.append(frame)
    return found


def main(folder: Path = OUTPUT) -> None:
    """Label, train, write; some minutes on one thread."""
    torch.set_num_threads(1)
    for name, sizes in SIZES.items():
        with tempfile.TemporaryDirectory() as temporary:
            data = Path(temporary, "frames.extxyz")
            ase.io.write(data, frames())
            model = [*SMALL, *(f"model.{size}" for size in sizes)]
            given = [*model, *TRAINING, f"data.path={data}", f"output={temporary}/run"]
            force_field = load_model(train(load_config(name, given)) / "model.safetensors")
        path = folder / f"copper_{name}.safetensors"
        save_model(path, force_field, {"made by": f"scripts/{Path(__file__).name}"})
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
