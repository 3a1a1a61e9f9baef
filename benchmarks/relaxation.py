"""How much faster are many structures relaxed in a batch than one after the other with ASE's optimizer?

    python benchmarks/relaxation.py MODEL FILE [--count 50] [--batch-atoms 9 300] [--fmax 0.02] [--device cpu]

The same model, the same L-BFGS with ASE's parameters: in ASE with the calculator, whose neighbours have the same skin,
and batched.  Both must end at the same energies.  Processor time of this process is the robust figure where the
machine is busy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import torch
from ase.optimize import LBFGS as AseLBFGS

from denskit.data.base import collate
from denskit.data.config import DataConfig
from denskit.data.readers.formats import open_unchecked
from denskit.runtime.device import choose_device
from denskit.simulation.calculator import DenskitCalculator
from denskit.simulation.potential import Potential
from denskit.simulation.relaxation import RelaxationSettings, relax
from denskit.simulation.structures import atoms_of
from denskit.training.run_folder import model_file


def timed(work: Callable[[], Any], device: torch.device) -> tuple[Any, float, float]:
    """The result, wall seconds, processor seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - wall, time.process_time() - processor


def one_by_one(structures: list[ase.Atoms], calculator: DenskitCalculator, fmax: float, steps: int) -> list[float]:
    """Final energies with ASE's optimizer."""
    energies = []
    for atoms in structures:
        atoms.calc = calculator
        AseLBFGS(atoms, logfile=None).run(fmax=fmax, steps=steps)
        energies.append(float(atoms.get_potential_energy()))
    return energies


def main() -> None:
    """Read, relax both ways, print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--batch-atoms", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--fmax", type=float, default=0.02)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = choose_device(arguments.device)
    source = open_unchecked(arguments.file, DataConfig())[0]
    systems = [source[index] for index in range(min(arguments.count, len(source)))]
    weights = model_file(arguments.model)

    calculator = DenskitCalculator(weights, device=device)
    structures = [atoms_of(collate([system], torch.float64)[0])[0] for system in systems]
    one_by_one([structures[0].copy()], calculator, arguments.fmax, 3)  # warm up
    work = lambda: one_by_one(structures, calculator, arguments.fmax, arguments.steps)  # noqa: E731
    expected, wall, processor = timed(work, device)
    print(f"{len(systems)} structures, {sum(map(len, systems))} atoms, {arguments.threads} threads, {device}")
    print(f"ASE, one by one          {wall:8.1f} s wall {processor:8.1f} s processor {len(systems) / wall:8.2f} a s")
    settings = RelaxationSettings(fmax=arguments.fmax, steps=arguments.steps)
    for batch_atoms in arguments.batch_atoms:
        potential = Potential(weights, device=device)
        found, wall_batched, batched = timed(
            lambda p=potential, n=batch_atoms: relax(p, systems, settings, batch_atoms=n), device
        )
        apart = np.abs(np.array([result.energy for result in found]) - expected)
        print(
            f"batched, {batch_atoms:6d} atoms    {wall_batched:8.1f} s wall {batched:8.1f} s processor "
            f"{len(systems) / wall_batched:8.2f} a s, {wall / wall_batched:.1f} times faster by wall, "
            f"{processor / batched:.1f} by processor; energies differ by {1000 * np.median(apart):.3f} meV "
            f"(median), {1000 * apart.max():.1f} (largest)"
        )


if __name__ == "__main__":
    main()
