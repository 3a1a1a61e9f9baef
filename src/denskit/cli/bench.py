"""``denskit bench``: our models timed beside another formulation of the same functions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from denskit.bench.measure import Measured, Result

app = typer.Typer(no_args_is_help=True, help="Time our models beside an e3nn formulation of the same functions.")

Model = Annotated[
    Literal["equiformer_l2", "equiformer_l3"], typer.Option(help="The model: L_max 2 or 3, as published.")
]
System = Annotated[Literal["ethanol", "aspirin"], typer.Option(help="The molecule.")]
Batch = Annotated[int, typer.Option(help="Structures in a batch.")]
Against = Annotated[
    Literal["e3nn", "e3nn-eager"], typer.Option(help="e3nn with TorchScript, or in its default mode for torch >= 2.10.")
]
Dens = Annotated[bool, typer.Option("--dens/--no-dens", help="With or without force encoding and noise head.")]
Threads = Annotated[int, typer.Option(help="Threads of torch; with 1 the processor time is the robust figure.")]
Repeats = Annotated[int, typer.Option(help="Steps of each, after 3 warm-ups.")]
Memory = Annotated[bool, typer.Option("--memory/--no-memory", help="Measure peak memory too, in processes of its own.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write everything measured to this file.")]

ROWS = ("CPU time, s", "wall time, s", "matmul GFLOP", "of the matmul ceiling", "peak memory, MB", "parameters")


@app.command()
def train(
    model: Model = "equiformer_l2",
    system: System = "ethanol",
    batch: Batch = 8,
    against: Against = "e3nn",
    dens: Dens = True,
    threads: Threads = 1,
    repeats: Repeats = 20,
    memory: Memory = True,
    json: Json = None,
) -> None:
    """Time whole training steps: forward, forces by gradient, loss, backward, AdamW.

    Example:  denskit bench train --model equiformer_l3 --system aspirin --json l3.json
    """
    settings = dict(work="train", model=model, system=system, batch=batch, against=against, dens=dens)
    _run(settings, threads, repeats, memory, json)


@app.command("energy_forces")
def energy_forces(
    model: Model = "equiformer_l2",
    system: System = "ethanol",
    batch: Batch = 8,
    against: Against = "e3nn",
    dens: Dens = True,
    threads: Threads = 1,
    repeats: Repeats = 20,
    memory: Memory = True,
    json: Json = None,
) -> None:
    """Time energies and forces, as a simulation or an evaluation asks for them.

    Example:  denskit bench energy_forces --system aspirin --batch 1
    """
    settings = dict(work="energy_forces", model=model, system=system, batch=batch, against=against, dens=dens)
    _run(settings, threads, repeats, memory, json)


def _run(settings: dict[str, Any], threads: int, repeats: int, memory: bool, target: Path | None) -> None:
    import json
    from importlib.util import find_spec

    if find_spec("e3nn") is None:
        raise ValueError("the opponent needs e3nn, which is not installed: pip install 'denskit[test]'")
    if target is not None and not target.parent.is_dir():
        raise ValueError(f"--json {target}: there is no folder {target.parent}; make it first")

    from denskit.bench.contest import Contest
    from denskit.bench.measure import run

    result = run(Contest(**settings), threads=threads, repeats=repeats, memory=memory)
    _show(result)
    if target is not None:
        target.write_text(json.dumps(result.to_dict(), indent=1) + "\n")


def _show(result: Result) -> None:
    from rich.console import Console
    from rich.table import Table

    contest, machine, ratios = result.contest, result.machine, result.ratios()
    console = Console(soft_wrap=True)
    console.print(f"{machine.cpu}, {machine.threads} of {machine.cpus} CPUs, load {machine.load:.1f} before")
    console.print(f"torch {machine.torch}, e3nn {machine.e3nn}")
    console.print(f"matmul {machine.matmul_gflops:.0f} GFLOP/s, copy {machine.copy_gb_per_s:.0f} GB/s")
    title = (
        f"{contest.work}, {contest.model}, {contest.system} x {contest.batch}, DeNS {'on' if contest.dens else 'off'}"
    )
    table = Table("median of a step (min)", contest.against, "denskit", title=title)
    for name, theirs, ours in zip(ROWS, _cells(result.theirs, result), _cells(result.ours, result), strict=True):
        table.add_row(name, theirs, ours)
    console.print(table)
    console.print(
        f"{result.atoms} atoms, {result.edges} edges; CPU time {ratios['cpu_median']:.2f} times faster", end=""
    )
    if "cpu_lower_quartile" in ratios:
        console.print(f" (quartiles {ratios['cpu_lower_quartile']:.2f}, {ratios['cpu_upper_quartile']:.2f})", end="")
    console.print(f", wall time {ratios['wall_median']:.2f} times")


def _cells(measured: Measured, result: Result) -> list[str]:
    summary, memory = measured.summary(result.machine), measured.memory
    return [
        f"{summary['cpu_median_s']:.3f} ({summary['cpu_min_s']:.3f})",
        f"{summary['wall_median_s']:.3f} ({summary['wall_min_s']:.3f})",
        f"{measured.matmul_gflop:.1f}",
        f"{100 * summary['share_of_matmul_ceiling']:.0f}%",
        f"{memory.process_mb:.0f}, {memory.steps_mb:.0f} by steps" if memory else "not measured",
        f"{measured.parameters:,}",
    ]
