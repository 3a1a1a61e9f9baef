"""What DeNS costs: parameters, and processor time of a training step's forward and backward, with and without it.

    python benchmarks/dens_cost.py oc20/equiformer_v2_2m [--layers 12] [--turns 3] [--json FILE]

The model of PRESET and that of PRESET_dens, random weights, one slab of 82 atoms (ethanol, eight times, for presets of
MD17), steps in turn on one thread.  The paper's figures for the time: +10.5 % (Equiformer), +7.4 % (EquiformerV2),
+1.5 % (eSCN).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from against_fairchem import slabs
from ase.build import molecule

from denskit.models import build_force_field
from denskit.models.scaling import Scaling
from denskit.simulation.structures import batch_of
from denskit.tasks import build_task
from denskit.training.config import load_config


def stepper(preset: str, layers: int | None) -> tuple[Callable[[], None], int]:
    """A function that takes one forward and backward pass, and the number of parameters."""
    settings = ["data.path=unused", "output=unused"] + ([f"model.num_layers={layers}"] if layers else [])
    if preset.startswith("md17"):
        settings[0] = "data.molecule=ethanol"
    config = load_config(preset, settings)
    torch.manual_seed(0)
    heads = dict(build_task(config.task).heads) | ({"forces": "1"} if config.model.forces == "direct" else {})
    model = build_force_field(config.model, heads=heads, scaling=Scaling(elements=[1, 6, 8, 29])).train()
    structures = [molecule("CH3CH2OH")] * 8 if preset.startswith("md17") else slabs(1)
    batch = config.model.with_neighbors(batch_of(structures).to(dtype=torch.float32))
    half = torch.arange(batch.num_atoms) % 2 == 0
    force_input = torch.where(half[:, None], torch.randn_like(batch.positions), 0.0) if "noise" in heads else None

    def step() -> None:
        model.zero_grad(set_to_none=True)
        out = model(batch, force_input)
        sum(value.square().sum() for value in out.values()).backward()

    return step, sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    steps = {name: stepper(name, arguments.layers) for name in (arguments.preset, f"{arguments.preset}_dens")}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(1 + arguments.turns):
        for name, (step, _) in steps.items():
            start = time.process_time()
            step()
            if turn:  # the first warms up
                times[name].append(time.process_time() - start)
    plain, dens = steps
    result = {
        "parameters": {name: count for name, (_, count) in steps.items()},
        "median_s": {name: statistics.median(values) for name, values in times.items()},
        "min_s": {name: min(values) for name, values in times.items()},
        "extra_time_percent": 100 * (statistics.median(times[dens]) / statistics.median(times[plain]) - 1),
        "extra_time_percent_by_minima": 100 * (min(times[dens]) / min(times[plain]) - 1),
        "extra_parameters_percent": 100 * (steps[dens][1] / steps[plain][1] - 1),
    }
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
