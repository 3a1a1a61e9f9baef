"""Steps of molecular dynamics in ASE's velocity Verlet: Denskit, MACE and NequIP with equal L and channels, in turn.

    python -m venv mace && mace/bin/pip install torch==2.13.0 mace-torch
    python -m venv nequip && nequip/bin/pip install torch==2.13.0 nequip
    python benchmarks/md_against_peers.py --mace mace/bin/python --nequip nequip/bin/python --json FILE

Each is a process of its own with random weights, L = 2, 64 channels (Denskit 64, 32, 16 by degree, as its small preset
has them, and 64 of each in "denskit wide"), cutoff 5 Å, float32.  MACE has two layers and correlation order 3 as usual,
the others three layers.  MACE and NequIP run eagerly, as their calculators do by default when given a model; the same
loop and positions for all.  Figures: processor time of a step, one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sides import Side, serve

CUTOFF = 5.0  # Å
ELEMENTS = {"H": 1, "C": 6, "O": 8}
CELL = 4.6  # Å, of one ethanol molecule in the periodic systems: the density of the liquid


def structure(name: str) -> Any:
    """ethanol, aspirin, or liquid-N: about N atoms of ethanol in a periodic cell."""
    import ase
    from ase.build import molecule

    if name == "aspirin":
        saved = json.loads(os.environ["ASPIRIN"])
        return ase.Atoms(numbers=saved["numbers"], positions=saved["positions"])
    atoms = molecule("CH3CH2OH")
    if name == "ethanol":
        return atoms
    atoms.set_cell([CELL, CELL, CELL])
    atoms.pbc = True
    return atoms.repeat(max(2, round((int(name.removeprefix("liquid-")) / len(atoms)) ** (1 / 3))))


def denskit(channels: tuple[int, ...]) -> Any:
    """Our calculator on an Equiformer of three layers."""
    import torch

    from denskit.models import build_force_field
    from denskit.models.equiformer import EquiformerConfig
    from denskit.models.scaling import Scaling
    from denskit.simulation.calculator import DenskitCalculator

    torch.manual_seed(0)
    config = EquiformerConfig(
        num_layers=3, channels=channels, feature_channels=tuple(2 * c for c in channels),
        head_channels=tuple(c // 4 for c in channels), ffn_channels=tuple(2 * c for c in channels),
        cutoff=CUTOFF, envelope=True, average_degree=8.0, average_atoms=9.0,
    )  # fmt: skip
    return DenskitCalculator(build_force_field(config, heads={}, scaling=Scaling(elements=list(ELEMENTS.values()))))


def mace() -> Any:
    """MACE's calculator."""
    import torch
    from e3nn import o3
    from mace import modules
    from mace.calculators import MACECalculator

    torch.manual_seed(0)
    model = modules.ScaleShiftMACE(
        r_max=CUTOFF, num_bessel=8, num_polynomial_cutoff=5, max_ell=3, num_interactions=2, num_elements=len(ELEMENTS),
        interaction_cls=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
        interaction_cls_first=modules.interaction_classes["RealAgnosticInteractionBlock"],
        hidden_irreps=o3.Irreps("64x0e + 64x1o + 64x2e"), MLP_irreps=o3.Irreps("16x0e"), correlation=3,
        atomic_energies=np.zeros(len(ELEMENTS)), avg_num_neighbors=8.0, atomic_numbers=list(ELEMENTS.values()),
        gate=torch.nn.functional.silu, atomic_inter_scale=1.0, atomic_inter_shift=0.0,
    )  # fmt: skip
    return MACECalculator(models=[model.float()], device="cpu", default_dtype="float32")


def nequip() -> Any:
    """NequIP's calculator."""
    from nequip.data.transforms import ChemicalSpeciesToAtomTypeMapper, NeighborListTransform
    from nequip.integrations.ase import NequIPCalculator
    from nequip.model import NequIPGNNModel
    from nequip.utils.global_state import set_global_state

    set_global_state()
    model = NequIPGNNModel(
        seed=0, model_dtype="float32", type_names=list(ELEMENTS), r_max=CUTOFF, num_layers=3, l_max=2, parity=True,
        num_features=64, avg_num_neighbors=8.0,
    )  # fmt: skip
    transforms = [ChemicalSpeciesToAtomTypeMapper(list(ELEMENTS)), NeighborListTransform(r_max=CUTOFF)]
    return NequIPCalculator(model.eval(), device="cpu", transforms=transforms)


SIDES = {
    "denskit": lambda: denskit((64, 32, 16)),
    "denskit wide": lambda: denskit((64, 64, 64)),
    "mace": mace,
    "nequip": nequip,
}


def run_side(name: str, system: str) -> None:
    """A side's process: one step of velocity Verlet for each line of standard input."""
    import ase.units
    import torch
    from ase.md.verlet import VelocityVerlet

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    atoms = structure(system)
    atoms.calc = SIDES[name]()
    verlet = VelocityVerlet(atoms, 0.1 * ase.units.fs)  # so short that random forces leave the structure as it is

    def step() -> dict[str, Any]:
        verlet.run(1)
        return {}

    serve(step)


def main() -> None:
    """Let the sides step in turn, system by system."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mace", help="the Python that has mace-torch")
    parser.add_argument("--nequip", help="the Python that has nequip")
    parser.add_argument("--systems", default="ethanol,aspirin,liquid-500")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmups", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        return run_side(arguments.side, arguments.systems)
    rows = [compare(system, arguments) for system in arguments.systems.split(",")]
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return None


def compare(system: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a step of each side, median and minimum."""
    from denskit.bench.systems import ASPIRIN

    saved = {"numbers": ASPIRIN.numbers.tolist(), "positions": ASPIRIN.positions.tolist()}
    # e3nn 0.4.4, which MACE pins, reads its own constants in a way that a current torch refuses unless told
    environment = {**os.environ, "ASPIRIN": json.dumps(saved), "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    pythons = {"denskit": sys.executable, "denskit wide": sys.executable}
    pythons |= {name: getattr(arguments, name) for name in ("mace", "nequip") if getattr(arguments, name)}
    sides = {
        name: Side([python, __file__, "--side", name, "--systems", system], environment)
        for name, python in pythons.items()
    }
    for _ in range(arguments.warmups + arguments.steps):
        for side in sides.values():
            side.step()
    times = {name: [1000 * t for t in side.times("cpu", arguments.warmups)] for name, side in sides.items()}
    for side in sides.values():
        side.close()
    row = {
        "system": system,
        "median_ms": {name: statistics.median(values) for name, values in times.items()},
        "min_ms": {name: min(values) for name, values in times.items()},
    }
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    main()
