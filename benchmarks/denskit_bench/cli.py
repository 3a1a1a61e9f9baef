"""The command line of the benchmarks: speed and memory, alone and beside other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from denskit.cli.errors import FriendlyGroup
from denskit_bench.output import BenchProgress, check_writable, show, write

if TYPE_CHECKING:
    from denskit_bench.job import Job

app = typer.Typer(
    cls=FriendlyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Speed and memory, alone and beside other programs; steps are taken in turn, agreement comes first.",
    epilog="docs/benchmarks.md says what is measured how, and how to make the environments of other programs.",
)

Model = Annotated[
    str, typer.Option(help="equiformer_l2, _l3, _small, _wide; equiformer_v2, _v3, esen, each also _gradient; escn.")
]
System = Annotated[str, typer.Option(help="ethanol, aspirin, liquid-N (periodic, about N atoms), slab, crystal.")]
Batch = Annotated[int, typer.Option(help="Structures in a batch.")]
Against = Annotated[
    str, typer.Option(help="e3nn, e3nn-eager, plain (our plain kernels), fairchem, or none: only ours is timed.")
]
PeerPython = Annotated[
    str | None, typer.Option(help="The Python of the environment that the opponent lives in.", show_default=False)
]
Kernels = Annotated[
    Literal["plain", "fused"] | None,
    typer.Option(help="How ours computes; default: its own choice.", show_default=False),
]
Dens = Annotated[bool, typer.Option("--dens/--no-dens", help="With or without force encoding and noise head.")]
Layers = Annotated[int | None, typer.Option(help="Another number of layers.", show_default=False)]
LMax = Annotated[int | None, typer.Option(help="Another highest degree.", show_default=False)]
Cutoff = Annotated[float | None, typer.Option(help="Another cutoff, Å.", show_default=False)]
MaxNeighbors = Annotated[
    int | None, typer.Option(help="Another largest number of neighbours of an atom.", show_default=False)
]
Device = Annotated[str, typer.Option(help="cpu or cuda; on a GPU events are the clock.")]
Threads = Annotated[int, typer.Option(help="Threads of torch; with 1 the processor time is the robust figure.")]
Repeats = Annotated[int, typer.Option(help="Timed steps of each.")]
WarmUps = Annotated[int, typer.Option(help="Steps of each before them.")]
Memory = Annotated[bool, typer.Option("--memory/--no-memory", help="Measure peak memory too, in processes of its own.")]
Recorded = Annotated[
    bool | None,
    typer.Option(
        help="Our training steps as a CUDA graph, as `denskit train` does; default: on a GPU.", show_default=False
    ),
]
Compile = Annotated[bool, typer.Option("--compile", help="Compile our model, as `denskit md --compile` does.")]
Json = Annotated[
    Path | None, typer.Option("--json", help="Write everything measured to this file.", show_default=False)
]


@app.command()
def train(
    model: Model = "equiformer_l2",
    system: System = "ethanol",
    batch: Batch = 8,
    against: Against = "e3nn",
    peer_python: PeerPython = None,
    kernels: Kernels = None,
    dens: Dens = True,
    layers: Layers = None,
    l_max: LMax = None,
    cutoff: Cutoff = None,
    recorded: Recorded = None,
    device: Device = "cpu",
    threads: Threads = 1,
    repeats: Repeats = 20,
    warm_ups: WarmUps = 3,
    memory: Memory = True,
    json: Json = None,
) -> None:
    """Whole training steps: forward, forces, losses, backward, AdamW.

    Examples:

      python -m denskit_bench train --model equiformer_l2 --system ethanol --batch 8 --against e3nn --json result.json

      python -m denskit_bench train --model equiformer_l3 --system aspirin --against plain

      python -m denskit_bench train --model escn --system slab --batch 1 --no-dens --against fairchem
          --peer-python PYTHON
    """
    recorded = device.startswith("cuda") and against != "fairchem" if recorded is None else recorded
    choices = dict(peer_python=peer_python, kernels=kernels, dens=dens, recorded=recorded)
    sizes = dict(layers=layers, l_max=l_max, cutoff=cutoff)
    job = _job("train", model, system, batch, against, device, **choices, **sizes)
    _measure(job, threads, repeats, warm_ups, memory, json)


@app.command("energy_forces")
def energy_forces(
    model: Model = "equiformer_l2",
    system: System = "ethanol",
    batch: Batch = 8,
    against: Against = "e3nn",
    peer_python: PeerPython = None,
    kernels: Kernels = None,
    dens: Dens = True,
    compile: Compile = False,
    layers: Layers = None,
    l_max: LMax = None,
    cutoff: Cutoff = None,
    device: Device = "cpu",
    threads: Threads = 1,
    repeats: Repeats = 20,
    warm_ups: WarmUps = 3,
    memory: Memory = True,
    json: Json = None,
) -> None:
    """Energies and forces, as an evaluation asks for them.

    Example:  python -m denskit_bench energy_forces --system aspirin --batch 1 --compile
    """
    sizes = {"layers": layers, "l_max": l_max, "cutoff": cutoff}
    choices = dict(peer_python=peer_python, kernels=kernels, dens=dens, compile=compile)
    _measure(
        _job("energy_forces", model, system, batch, against, device, **choices, **sizes),
        threads,
        repeats,
        warm_ups,
        memory,
        json,
    )


@app.command()
def md(
    model: Model = "equiformer_small",
    system: System = "aspirin",
    batch: Annotated[int, typer.Option("--batch", "--replicas", help="Replicas; a step moves all of them.")] = 1,
    against: Annotated[
        str,
        typer.Option(
            help="plain-ase, plain (our plain kernels), one-process, mace[-compiled], nequip[-compiled], none."
        ),
    ] = "plain-ase",
    peer_python: PeerPython = None,
    kernels: Kernels = None,
    compile: Compile = False,
    processes: Annotated[int, typer.Option(help="Processes that share the replicas of our side.", min=1)] = 1,
    edge_chunk: Annotated[
        int | None, typer.Option(help="Our side in chunks of so many edges, beside mace and nequip.", min=1)
    ] = None,
    device: Device = "cpu",
    threads: Threads = 1,
    repeats: Repeats = 20,
    warm_ups: WarmUps = 3,
    memory: Memory = True,
    json: Json = None,
) -> None:
    """Steps of molecular dynamics.

    Against plain-ase and plain it is our loop, with all replicas in one batch; against mace and nequip all are
    calculators of ASE with the same degrees, channels and edges, which compares time for a size, not for an accuracy.

    Examples:

      python -m denskit_bench md --system ethanol --replicas 16

      python -m denskit_bench md --system ethanol --replicas 16 --compile --processes 2 --against one-process

      python -m denskit_bench md --model equiformer_wide --against mace --peer-python PYTHON
    """
    choices = dict(
        peer_python=peer_python, kernels=kernels, compile=compile, processes=processes, edge_chunk=edge_chunk
    )
    job = _job("md", model, system, batch, against, device, **choices)
    _measure(job, threads, repeats, warm_ups, memory, json)


@app.command()
def dens(
    model: Model = "equiformer_l2",
    system: System = "ethanol",
    batch: Batch = 8,
    kernels: Kernels = None,
    layers: Layers = None,
    device: Device = "cpu",
    threads: Threads = 1,
    repeats: Repeats = 20,
    warm_ups: WarmUps = 3,
    memory: Memory = True,
    json: Json = None,
) -> None:
    """What DeNS costs: a training step with it beside one without, in time, memory and parameters.

    The paper's figures: +10.5 % (Equiformer), +7.4 % (EquiformerV2), +1.5 % (eSCN) of time.

    Example:  python -m denskit_bench dens --model escn --system slab --batch 1 --repeats 3 --json escn.json
    """
    recorded = device.startswith("cuda")
    job = _job("dens", model, system, batch, "without", device, kernels=kernels, layers=layers, recorded=recorded)
    _measure(job, threads, repeats, warm_ups, memory, json)


@app.command()
def neighbors(
    model: Model = "equiformer_l2",
    system: System = "liquid-5000",
    batch: Batch = 1,
    against: Annotated[str, typer.Option(help="ase or none.")] = "ase",
    cutoff: Cutoff = None,
    max_neighbors: MaxNeighbors = None,
    repeats: Repeats = 20,
    warm_ups: WarmUps = 3,
    json: Json = None,
) -> None:
    """The neighbour list of a batch, with the cutoff and the limit of a model; the edges must be ASE's.

    Example:  python -m denskit_bench neighbors --model equiformer_v2 --system slab --batch 8
    """
    job = _job("neighbors", model, system, batch, against, "cpu", cutoff=cutoff, max_neighbors=max_neighbors)
    _measure(job, 1, repeats, warm_ups, False, json)


@app.command()
def loader(
    data: Annotated[Path | None, typer.Argument(help="Structures; default: made ones.", show_default=False)] = None,
    model: Model = "equiformer_v2",
    system: System = "slab",
    batch: Batch = 8,
    against: Annotated[str, typer.Option(help="ase (files that ASE reads) or none.")] = "ase",
    cutoff: Cutoff = None,
    max_neighbors: MaxNeighbors = None,
    repeats: Repeats = 20,
    warm_ups: WarmUps = 3,
    json: Json = None,
) -> None:
    """Batches from a file, read, corrupted and with edges; also its parts, and structures a second by threads.

    Example:  python -m denskit_bench loader train.extxyz --model equiformer_l2
    """
    file = None if data is None else str(data)
    sizes = {"cutoff": cutoff, "max_neighbors": max_neighbors}
    _measure(
        _job("loader", model, system, batch, against, "cpu", data=file, **sizes), 1, repeats, warm_ups, False, json
    )


@app.command()
def scaling(
    over: Annotated[Literal["atoms", "edges", "l_max", "batch"], typer.Option(help="What grows.")] = "atoms",
    values: Annotated[
        str | None, typer.Option(help="Sizes, such as 72,243,576; of edges: cutoffs in Å.", show_default=False)
    ] = None,
    work: Annotated[
        Literal["train", "energy_forces", "md", "neighbors"], typer.Option(help="What is timed.")
    ] = "energy_forces",
    model: Model = "equiformer_small",
    system: System = "liquid-72",
    batch: Batch = 1,
    against: Annotated[str, typer.Option(help="An opponent of that work, or none.")] = "none",
    kernels: Kernels = None,
    dens: Annotated[bool, typer.Option("--dens/--no-dens", help="With force encoding and noise head.")] = False,
    device: Device = "cpu",
    threads: Threads = 1,
    repeats: Repeats = 5,
    warm_ups: WarmUps = 1,
    memory: Memory = False,
    json: Json = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the costs as this PNG file.", show_default=False)] = None,
) -> None:
    """The cost of a step as atoms, edges, degrees or batches grow.

    Examples:

      python -m denskit_bench scaling --over atoms --values 72,243,576 --plot atoms.png

      python -m denskit_bench scaling --over l_max --values 2,3 --model equiformer_l2 --system ethanol --against e3nn
    """
    check_writable(json, plot)
    from denskit_bench.measure import Plan
    from denskit_bench.report import plot_scaling
    from denskit_bench.scaling import AXES, run_all

    sizes = AXES[over][1] if values is None else _numbers(values)
    job = _job(work, model, system, batch, against, device, kernels=kernels, dens=dens)
    plan = Plan(threads=threads, repeats=repeats, warm_ups=warm_ups, memory=memory)
    with BenchProgress() as notify:
        data = run_all(job, over, sizes, plan, notify).to_dict()
    for record in data["records"]:
        show(record)
    typer.echo(f"{data['ratio_of']}: {data['ratio']:.2f}")
    write(data, json)
    if plot is not None:
        typer.echo(f"Wrote {plot_scaling(data, plot)}")


@app.command()
def report(
    files: Annotated[list[Path], typer.Argument(help="What --json wrote.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the table and the plots.", show_default=False)
    ],
) -> None:
    """Records as a Markdown table, and plots of scalings.

    Example:  python -m denskit_bench report results/*.json --output results
    """
    from denskit_bench.report import write_report

    for path in write_report(files, output):
        typer.echo(f"Wrote {path}")


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--values {text}: numbers with commas between them are wanted, such as 72,243") from None


def _job(work: Any, model: str, system: str, batch: int, against: str, device: str, **choices: Any) -> Job:
    """The job, with names and device checked before anything is built."""
    from denskit.runtime.device import choose_device
    from denskit_bench.job import Job
    from denskit_bench.models import config_of
    from denskit_bench.systems import structure

    device = str(choose_device(device))
    job = Job(work=work, model=model, system=system, batch=batch, against=against, device=device, **choices)
    config_of(job)
    structure(system)
    return job


def _measure(job: Job, threads: int, repeats: int, warm_ups: int, memory: bool, json: Path | None) -> None:
    check_writable(json)
    from denskit_bench.measure import Plan, run

    with BenchProgress() as notify:
        data = run(job, Plan(threads=threads, repeats=repeats, warm_ups=warm_ups, memory=memory), notify).to_dict()
    show(data)
    write(data, json)
