"""Where do models end that relax systems they have not seen?  After benchmarks/oc20_folds.py, on its runs.

    python benchmarks/oc20_relaxations.py RUNS [--protocol oc20-2024] [--steps 100] [--folds 0 1 2 3 4] [--seed 0]

For each fold's two models (with and without DeNS), each held-out system is relaxed from its first frame and compared
with the last frame of its DFT relaxation: energy, energy gained on the way, mean distance of the free atoms.  Systems
with an element that the fold has not trained on are left out.  Not moving at all, with the model's energy of the first
frame, is the baseline of both.  Results stay in RUNS/<run>/relaxed; a run that is there is gone on with or left alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from denskit.batch import System
from denskit.evaluation.judged_structures import source_of
from denskit.runtime.device import choose_device
from denskit.simulation.potential import Potential
from denskit.simulation.relaxation import PROTOCOLS, RelaxationSettings, relax
from denskit.simulation.relaxation.folder import RelaxationFolder, relax_into
from denskit.simulation.relaxation.is2re import errors, first_frames
from denskit.simulation.relaxation.results import Relaxed
from denskit.training.run_folder import model_file

TASKS = ("energy_forces", "dens")
QUANTITIES = {"energy_mae_meV": "energy (meV)", "gain_meV": "energy gained (meV)", "distance_mean_A": "distance (Å)"}


def relaxed_and_not(
    run: Path, settings: RelaxationSettings, device: torch.device
) -> tuple[list[System], list[Relaxed], list[Relaxed]]:
    """Held-out systems of a run, what its model makes of them, and the same without moving."""
    source = source_of(run, None, "test")
    systems = first_frames(source)
    potential = Potential(model_file(run), device=device)
    folder = RelaxationFolder(run / "relaxed")
    relax_into(folder, potential, systems, settings, origin={"systems": [s.sid for s in systems]}, resume=True)
    return systems, list(folder.results()), relax(potential, systems, settings.model_copy(update={"steps": 0}))


def by_system(systems: list[System], results: list[Relaxed], start: list[Relaxed]) -> dict[str, dict[str, float]]:
    """Errors of each system by its sid; systems with an element that the model does not know are left out.

    The energy gained on the way (``gain_meV``) is free of what element references miss in a composition never seen.
    """
    found = {}
    for result, first in zip(results, start, strict=True):
        system = systems[result.index]
        if result.energy is None or first.energy is None:
            continue
        assert system.energy is not None and system.relaxed_energy is not None
        gain, wanted = result.energy - first.energy, system.relaxed_energy - system.energy
        found[system.sid] = {**errors([result], systems), "gain_meV": 1000 * abs(gain - wanted)}
    return found


def main() -> None:
    """Relax and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--protocol", choices=PROTOCOLS, default="oc20-2024")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    settings = PROTOCOLS[arguments.protocol].model_copy(update={"steps": arguments.steps})
    device = choose_device(arguments.device)
    moved: dict[str, dict[str, dict[str, float]]] = {task: {} for task in TASKS}
    unmoved: dict[str, dict[str, dict[str, float]]] = {task: {} for task in TASKS}
    for fold in arguments.folds:
        runs = {task: arguments.runs / f"fold{fold}-{task}-seed{arguments.seed}" for task in TASKS}
        if not all((run / "model.safetensors").is_file() for run in runs.values()):
            print(f"fold {fold}: not both trained, left out")
            continue
        for task, run in runs.items():
            systems, relaxed, start = relaxed_and_not(run, settings, device)
            moved[task] |= by_system(systems, relaxed, start)
            unmoved[task] |= by_system(systems, start, start)
            print(f"fold {fold}, {task}: " + ", ".join(f"{r.status} after {r.moves}" for r in relaxed), flush=True)
    systems = sorted(moved["dens"].keys() & moved["energy_forces"].keys())
    columns = [f"{what}, {task}" for what in ("relaxed", "not moved") for task in TASKS]
    table = Table("mean error", *columns, "relaxed: dens - energy_forces", title=f"{len(systems)} held-out systems")
    for quantity, label in QUANTITIES.items():
        means = [
            np.mean([found[task][sid][quantity] for sid in systems]) for found in (moved, unmoved) for task in TASKS
        ]
        pairs = [moved["dens"][sid][quantity] - moved["energy_forces"][sid][quantity] for sid in systems]
        error = np.std(pairs, ddof=1) / np.sqrt(len(pairs)) if len(pairs) > 1 else np.nan
        table.add_row(label, *(f"{mean:.4g}" for mean in means), f"{np.mean(pairs):+.3g} ± {error:.2g}")
    Console(soft_wrap=True, width=150).print(table)


if __name__ == "__main__":
    main()
