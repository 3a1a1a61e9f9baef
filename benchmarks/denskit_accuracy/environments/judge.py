"""Energies, forces and stresses of a trained model through its program's ASE calculator; runs in that program's Python.

python judge.py PROGRAM MODEL FRAMES.extxyz RESULT.npz
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import ase.io
import numpy as np
import torch


def mace(model: str) -> Any:
    """MACE's calculator, in the precision of the training."""
    from mace.calculators import MACECalculator

    return MACECalculator(model_paths=model, device="cpu", default_dtype="float32")


def nequip(model: str) -> Any:
    """NequIP's calculator on a checkpoint, whose running average of the weights it uses."""
    from nequip.integrations.ase import NequIPCalculator

    return NequIPCalculator._from_saved_model(model, device="cpu", chemical_species_to_atom_type_map=True)


def denskit(model: str) -> Any:
    """Denskit's calculator on a run folder."""
    from denskit.simulation.calculator import DenskitCalculator

    return DenskitCalculator(model)


def main(program: str, model: str, frames: str, result: str) -> None:
    """Write energies [frames] in eV, forces [all atoms, 3] in eV/Å, and for frames with a stress that, [frames, 6] in
    eV/Å^3.
    """
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    calculator = {"mace": mace, "nequip": nequip, "denskit": denskit}[program](model)
    energies, forces, stresses = [], [], []
    for atoms in ase.io.read(frames, ":"):
        strained = "stress" in atoms.calc.results
        atoms.calc = calculator
        energies.append(atoms.get_potential_energy())
        forces.append(atoms.get_forces())
        if strained:
            stresses.append(atoms.get_stress())
    np.savez(result, energies=np.array(energies), forces=np.concatenate(forces), stresses=np.array(stresses))


if __name__ == "__main__":
    main(*sys.argv[1:])
