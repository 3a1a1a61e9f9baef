"""Are the forecasts of ``train --dry-run`` and ``md --dry-run`` true?  Each is followed by what it forecasts.

    python benchmarks/forecasts.py [--data 1000_FRAMES.extxyz] [--clock wall] [--only demo]

Time is that of the training or simulation itself, without the start of the program.  By default every clock of the
program runs in processor time, for a busy machine: a forecast then is one of processor time.  Every forecast and every
run has a process of its own, whose peak memory is compared.  A table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Found = dict[str, float]  # seconds, and MiB of memory
DENS = ("task=dens",)
TRAININGS = {  # preset, settings
    "demo": ("demo", ("training.max_steps=150",)),
    "demo, DeNS": ("demo", (*DENS, "training.max_steps=150")),
    "equiformer, FILE": (
        "equiformer",
        ("training.max_steps=300", "training.evaluate_every=50 steps", "data.split.train=90", "data.split.valid=9"),
    ),
}
SIMULATIONS = {"ethanol x 1": (1, 1500, 5), "ethanol x 16": (16, 300, 5)}  # replicas, steps, steps between frames


def main() -> None:
    """Print the table; with ``--job``, do what a process of its own is for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a file of 1,000 structures for the training on files; default: left out")
    parser.add_argument("--clock", choices=("processor", "wall"), default="processor")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--job", help=argparse.SUPPRESS)  # of a process of its own
    asked = parser.parse_args()
    if asked.job:
        print(json.dumps(_work(**json.loads(asked.job))))
        return
    print("| | forecast, s | found, s | difference | forecast, MiB | found, MiB | difference |")
    print("|---|---|---|---|---|---|---|")
    for name in TRAININGS:
        if asked.only in name and (asked.data or "FILE" not in name):
            _compare(name, "training", asked)
    for name in SIMULATIONS:
        if asked.only in name:
            _compare(name, "simulation", asked)


def _compare(name: str, kind: str, asked: argparse.Namespace) -> None:
    """A row of the table."""
    job = {"kind": kind, "name": name, "data": asked.data, "clock": asked.clock}
    forecast, found = (_in_a_process(job | {"real": real}) for real in (False, True))
    cells = []
    for key in ("seconds", "memory"):
        cells += [f"{forecast[key]:.4g}", f"{found[key]:.4g}", f"{100 * (found[key] / forecast[key] - 1):+.0f} %"]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _in_a_process(job: dict[str, Any]) -> Found:
    answer = subprocess.run(
        [sys.executable, __file__, "--job", json.dumps(job)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return json.loads(answer.splitlines()[-1])


def _work(kind: str, name: str, data: str | None, clock: str, real: bool) -> Found:
    """One forecast or one real run."""
    if clock == "processor":
        time.perf_counter = time.process_time
    from denskit.runtime.allocator import keep_freed_memory

    keep_freed_memory()  # as the program does
    with tempfile.TemporaryDirectory() as folder:
        work = _training if kind == "training" else _simulation
        return work(name, data, real, Path(folder) / "run")


def _training(name: str, data: str | None, real: bool, folder: Path) -> Found:
    from denskit.training.forecast import forecast_of
    from denskit.training.load_config import load_config
    from denskit.training.run import train
    from denskit.training.trainer import Trainer

    preset, settings = TRAININGS[name]
    given = [*settings, f"output={folder}", "device=cpu", *([f"data.path={data}"] if "FILE" in name else [])]
    config = load_config(preset, given)
    if real:
        with _timed(Trainer, "run") as found:
            train(config)
        return found
    forecast = forecast_of(config)
    training = forecast.planned.config.training
    return {"seconds": forecast.cost.training_seconds(training), "memory": forecast.cost.memory}


def _simulation(name: str, data: str | None, real: bool, folder: Path) -> Found:
    from ase.build import molecule

    from denskit.simulation.dynamics import DynamicsSettings
    from denskit.simulation.dynamics.cost import cost_of
    from denskit.simulation.dynamics.folder import DynamicsPlan, molecular_dynamics
    from denskit.simulation.dynamics.loop import Simulation
    from denskit.simulation.potential import Potential

    replicas, steps, frame_every = SIMULATIONS[name]
    plan = DynamicsPlan(settings=DynamicsSettings(), steps=steps, folder=folder, frame_every=frame_every)
    potential, structures = Potential("zoo:ethanol-xtb"), [molecule("CH3CH2OH")] * replicas
    if real:
        with _timed(Simulation, "run") as found:
            molecular_dynamics(potential, structures, plan, say=_unsaid)
        return found
    cost = cost_of(potential, structures, plan)
    return {"seconds": cost.seconds(plan.steps, plan), "memory": cost.memory}


@contextmanager
def _timed(owner: type, method: str) -> Iterator[Found]:
    """Fill in the seconds of a method that is called once in the block, and the peak memory after it."""
    import torch

    from denskit.runtime.memory import peak_memory

    found: Found = {}
    original: Callable[..., Any] = getattr(owner, method)

    def timed(*given: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        result = original(*given, **named)
        found.update(seconds=time.perf_counter() - begin, memory=peak_memory(torch.device("cpu")))
        return result

    setattr(owner, method, timed)
    yield found
    setattr(owner, method, original)


def _unsaid(text: str) -> None:
    """Messages are not printed."""


if __name__ == "__main__":
    main()
