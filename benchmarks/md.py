"""Steps of molecular dynamics: Denskit's loop beside a plain one of ASE with the same model and weights.

The plain loop is what one would write first: a calculator of ASE that makes a batch, looks for neighbours and calls
``ForceField.predict`` at every step.  Both run velocity Verlet from the same state, in turn, on one thread; the
processor time of a step is what counts on a machine that does other things, too.

    python benchmarks/md.py --systems ethanol,aspirin --replicas 1,16 --json md.json
    python benchmarks/md.py --model runs/mine/model.safetensors --compile
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import ase
import ase.units
import numpy as np
import torch
from ase.build import molecule
from ase.calculators.calculator import Calculator, all_changes
from ase.md.verlet import VelocityVerlet

from denskit.bench.systems import ASPIRIN
from denskit.geometry.neighbors import build_neighbors
from denskit.models import ForceField, build_force_field
from denskit.models.equiformer import EquiformerConfig
from denskit.models.model_file import load_model
from denskit.models.scaling import Scaling
from denskit.simulation.dynamics import Dynamics, DynamicsSettings
from denskit.simulation.potential import Potential
from denskit.simulation.structures import batch_of
from denskit.units import AMU

TIMESTEP = 0.5  # fs
CELL = 4.6  # Å, of one ethanol molecule in the periodic systems: the density of the liquid
MODELS = {
    "small": EquiformerConfig(
        num_layers=3, channels=(64, 32, 16), feature_channels=(128, 64, 32), head_channels=(16, 8, 4),
        ffn_channels=(128, 64, 32), envelope=True,
    ),
    "l2": EquiformerConfig(envelope=True),
}  # fmt: skip


class PlainCalculator(Calculator):
    """A batch, its neighbours and a prediction, at every step anew."""

    implemented_properties = ["energy", "forces"]  # noqa: RUF012 (as in ASE)

    def __init__(self, model: ForceField) -> None:
        super().__init__()
        self.model = model
        self.dtype = next(model.parameters()).dtype

    def calculate(self, atoms=None, properties=("energy",), system_changes=tuple(all_changes)) -> None:
        """Predict."""
        super().calculate(atoms, properties, system_changes)
        batch = build_neighbors(batch_of([self.atoms]).to(dtype=self.dtype), self.model.cutoff)
        found = self.model.predict(batch)
        self.results = {"energy": float(found["energy"]), "forces": found["forces"].numpy()}


def structure(name: str) -> ase.Atoms:
    """ethanol, aspirin, or liquid-N: about N atoms of ethanol in a periodic cell."""
    if name in ("ethanol", "aspirin"):
        return molecule("CH3CH2OH") if name == "ethanol" else ASPIRIN.copy()
    edge = max(2, round((int(name.removeprefix("liquid-")) / 9) ** (1 / 3)))
    atoms = molecule("CH3CH2OH")
    atoms.set_cell([CELL, CELL, CELL])
    atoms.pbc = True
    return atoms.repeat(edge)


def loops(model: ForceField, name: str, replicas: int, compile: bool) -> dict[str, Callable[[], None]]:
    """One step of each loop; the plain one steps one replica."""
    atoms = structure(name)
    dynamics = Dynamics(
        Potential(model, compile=compile), DynamicsSettings(ensemble="nve", temperature=300, timestep=TIMESTEP)
    )
    state = dynamics.start(batch_of([atoms] * replicas))
    atoms.calc = PlainCalculator(model)
    atoms.set_momenta((state.momenta[: len(atoms)] / AMU / ase.units.fs).numpy())
    verlet = VelocityVerlet(atoms, TIMESTEP * ase.units.fs)

    def ours() -> None:
        nonlocal state
        state = dynamics.step(state)

    return {"plain ASE loop": lambda: verlet.run(1), "denskit": ours}


def measure(model: ForceField, name: str, replicas: int, steps: int, compile: bool) -> dict[str, object]:
    """Milliseconds of processor time a step and replica: medians, and minima, of loops run in turn."""
    chosen = loops(model, name, replicas, compile)
    times: dict[str, list[float]] = {label: [] for label in chosen}
    for _ in range(3):
        for step in chosen.values():
            step()
    for _ in range(steps):
        for label, step in chosen.items():
            start = time.process_time()
            step()
            times[label].append(1000 * (time.process_time() - start))
    per_replica = {"plain ASE loop": 1, "denskit": replicas}
    medians = {label: statistics.median(values) / per_replica[label] for label, values in times.items()}
    minima = {label: min(values) / per_replica[label] for label, values in times.items()}
    ratios = np.array(times["plain ASE loop"]) / np.array(times["denskit"]) * replicas
    return {
        "system": name, "atoms": len(structure(name)), "replicas": replicas, "compiled": compile,
        "median_ms": medians, "min_ms": minima, "ratio_of_medians": medians["plain ASE loop"] / medians["denskit"],
        "ratio_quartiles": np.percentile(ratios, [25, 50, 75]).tolist(),
    }  # fmt: skip


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="small", help="small or l2 (random weights), or a model file")
    parser.add_argument("--systems", default="ethanol,aspirin", help="also liquid-500, liquid-5000")
    parser.add_argument("--replicas", default="1,16")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.model in MODELS:
        model = build_force_field(MODELS[options.model], heads={}, scaling=Scaling(elements=[1, 6, 8])).eval()
    else:
        model = load_model(options.model)
    rows = []
    for name in options.systems.split(","):
        for replicas in map(int, options.replicas.split(",")):
            row = measure(model, name, replicas, options.steps, options.compile)
            rows.append(row)
            print(json.dumps(row), flush=True)
    if options.json:
        document = {"model": options.model, "torch": torch.__version__, "threads": 1, "rows": rows}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
