"""``denskit md``: molecular dynamics with a trained force field."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from denskit.cli.opening import gains_by_recording, open_potential
from denskit.cli.options import Committee, Device, Dtype, Kernels, ModelPath, Processes, Resume, Skin
from denskit.cli.output import complain, give
from denskit.cli.stopping import stoppable
from denskit.runtime.progress import counted, duration

if TYPE_CHECKING:
    from ase import Atoms

    from denskit.simulation.divided import DividedPotential
    from denskit.simulation.dynamics.cost import DynamicsCost
    from denskit.simulation.dynamics.folder import DynamicsPlan
    from denskit.simulation.dynamics.loop import Outcome

Uncertain = Annotated[
    float | None,
    typer.Option(help="eV/Å: write frames with a larger spread of the committee's forces to a file.", min=0),
]

EdgeChunk = Annotated[int | None, typer.Option(help="Edges per chunk, for systems larger than memory.", min=1)]
Compile = Annotated[
    bool,
    typer.Option(
        "--compile",
        help="Compile the model, once for a number of atoms (minutes, C++ compiler): for long runs. "
        "On a GPU always done up to 1,500 atoms, in seconds.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print time, memory and disk space, from a trial of some steps, and stop.")
]
Rotation = Annotated[
    bool | None,
    typer.Option(
        help="Let molecules start with angular momentum; default: but for nvt, which would keep the energy of the "
        "rotation apart from that of the vibrations."
    ),
]


def md(
    model: ModelPath,
    file: Annotated[Path, typer.Argument(help="Structures, in any format of training files.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")] = Path("runs/md"),
    ensemble: Annotated[
        Literal["nve", "nvt", "langevin", "npt"],
        typer.Option(help="nvt: Nosé-Hoover chain; npt: Langevin, and a cell that keeps its shape."),
    ] = "nvt",
    temperature: Annotated[float, typer.Option(help="K, of the initial momenta and of the thermostat.")] = 300.0,
    timestep: Annotated[float, typer.Option(help="fs.")] = 0.5,
    steps: Annotated[int | None, typer.Option(help="Steps in all; this or --time.", min=1)] = None,
    time: Annotated[float | None, typer.Option(help="ps in all; this or --steps.")] = None,
    replicas: Annotated[int, typer.Option(help="Simulations of each structure, with different momenta.", min=1)] = 1,
    index: Annotated[str | None, typer.Option(help="Frames of the file, in ASE's notation; default: the last.")] = None,
    seed: Annotated[int, typer.Option(help="Of momenta and noise.", min=0)] = 0,
    relaxation_time: Annotated[float | None, typer.Option(help="fs, of the Nosé-Hoover chain; default: 50.")] = None,
    friction: Annotated[float | None, typer.Option(help="1/fs, of langevin and npt; default: 0.01.")] = None,
    pressure: Annotated[float | None, typer.Option(help="GPa, of npt; default: 0.")] = None,
    pressure_time: Annotated[float | None, typer.Option(help="fs, in which npt relaxes volumes; default: 500.")] = None,
    rotation: Rotation = None,
    bonds: Annotated[bool, typer.Option(help="End the run of a molecule whose bond changes by 0.5 Å.")] = True,
    frame_every: Annotated[int, typer.Option(help="Steps between frames.", min=1)] = 100,
    statistics_every: Annotated[int, typer.Option(help="Steps between lines of statistics.csv.", min=1)] = 10,
    restart_every: Annotated[int, typer.Option(help="Steps between restart files.", min=1)] = 1000,
    resume: Resume = False,
    committee: Committee = None,
    uncertain: Uncertain = None,
    uncertain_every: Annotated[float, typer.Option(help="fs at least between such frames of one run.", min=0)] = 100.0,
    uncertain_frames: Annotated[int, typer.Option(help="At most so many such frames in all.", min=1)] = 1000,
    stop_uncertain: Annotated[
        bool, typer.Option("--stop-uncertain", help="End a run at its first such frame.")
    ] = False,
    device: Device = "auto",
    dtype: Dtype = None,
    skin: Skin = 0.5,
    kernels: Kernels = "auto",
    edge_chunk: EdgeChunk = None,
    compile: Compile = False,
    processes: Processes = 1,
    dry_run: DryRun = False,
) -> None:
    """Simulate structures at constant energy, temperature or pressure; replicas in one batch.

    Writes trajectories (extxyz), statistics.csv, summary.json and a restart file. An unstable run ends, the
    others continue. Ctrl-C ends after the current step; --resume continues.

    Examples:

      denskit md runs/mine ethanol.xyz --temperature 500 --time 10 --replicas 16 --processes 2 --compile

      denskit md runs/mine ethanol.xyz --temperature 500 --time 20 --replicas 16 --resume   # or --dry-run

      denskit md runs/crystal tungsten.cif --ensemble npt --pressure 10 --temperature 1000 --time 20

      denskit md runs/a ethanol.xyz --committee runs/b --committee runs/c --time 10 --uncertain 0.3 --stop-uncertain
    """
    from denskit.simulation.dynamics import DynamicsSettings
    from denskit.simulation.dynamics.folder import DynamicsPlan

    given = _acting(
        ensemble, relaxation_time=relaxation_time, friction=friction, pressure=pressure, pressure_time=pressure_time
    )
    settings = DynamicsSettings(
        ensemble=ensemble, temperature=temperature, timestep=timestep, seed=seed, rotation=rotation, **given
    )
    plan = DynamicsPlan(
        settings=settings, steps=_steps(steps, time, timestep), folder=output, frame_every=frame_every,
        statistics_every=statistics_every, restart_every=restart_every, bonds=bonds, uncertain=uncertain,
        stop_uncertain=stop_uncertain, uncertain_every=uncertain_every, uncertain_frames=uncertain_frames,
    )  # fmt: skip
    read = _looked_at(_read(model, file, index), file, rotation)
    structures = [atoms.copy() for atoms in read for _ in range(replicas)]
    compile = compile or (edge_chunk is None and gains_by_recording(device, sum(map(len, structures))))
    potential = open_potential(
        [model, *(committee or [])], device, dtype, stress=ensemble == "npt", skin=skin, compile=compile,
        edge_chunk=edge_chunk, kernels=kernels, processes=min(processes, len(structures)),
    )  # fmt: skip
    run = _announce_cost if dry_run else partial(_simulate, compiled=compile)
    run(potential, structures, plan, resume=resume)


def _acting(ensemble: str, **given: float | None) -> dict[str, Any]:
    """The options that were given.  Raises ValueError for one that the ensemble does not use."""
    from denskit.simulation.dynamics.settings import ACTS_WITH

    for name, value in given.items():
        if value is not None and ensemble not in ACTS_WITH[name]:
            wanted = " and ".join(ACTS_WITH[name])
            raise ValueError(f"--{name.replace('_', '-')} acts with --ensemble {wanted} only, not with {ensemble}")
    return {name: value for name, value in given.items() if value is not None}


def _steps(steps: int | None, time: float | None, timestep: float) -> int:
    for name, value, unit in (("--time", time, "ps"), ("--timestep", timestep, "fs")):
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"{name} is {value:g} {unit}; give a finite number above 0")
    if (steps is None) == (time is None):
        both = "" if steps is None else "; both were given"
        raise ValueError(f"give the length of the simulation: --steps N or --time PS{both}")
    if time is None:
        assert steps is not None
        return steps
    if round(1000 * time / timestep) < 1:
        raise ValueError(f"--time {time:g} (ps) is less than a time step of {timestep:g} fs")
    return round(1000 * time / timestep)


def _read(model: Path, file: Path, index: str | None) -> list[Atoms]:
    """Frames of a file; without ``index`` its last one, which is said where the file has others."""
    if index is not None:
        return _frames(model, file, index)
    try:
        found = _frames(model, file, "-2:")
    except ValueError:  # formats of one frame know no slices, and a bad file is an error again
        return _frames(model, file, "-1")
    if len(found) > 1:
        typer.echo(f"{file}: only its last frame is simulated; --index chooses others, --index : all")
    return found[-1:]


def _looked_at(structures: list[Atoms], file: Path, rotation: bool | None) -> list[Atoms]:
    """The structures, after a warning of those that no model has seen.

    Raises ValueError for the option of molecules where no structure is one.
    """
    from denskit.data.overlaps import geometry_warnings
    from denskit.simulation.structures import system_of

    if rotation is not None and all(atoms.pbc.any() or atoms.constraints for atoms in structures):
        raise ValueError(
            f"--{'no-' * (not rotation)}rotation acts on molecules that are neither periodic nor have fixed atoms; "
            f"{file} has none. Leave it out, or remove the periodicity of a molecule in a box"
        )
    systems = [system_of(atoms, place) for place, atoms in enumerate(structures)]
    for warning in geometry_warnings(systems, f"{file} (the frames that are simulated)"):
        typer.echo(warning, err=True)
    return structures


def _frames(model: Path, file: Path, index: str) -> list[Atoms]:
    from denskit.data.readers.extxyz import is_extxyz
    from denskit.data.readers.formats import is_read_by_ase, path_of

    there = path_of(file)
    by_ase = is_read_by_ase(there) or (there.is_file() and is_extxyz(there))  # also beside a .txt: data of OC20
    return _read_by_ase(there, index) if by_ase else _read_records(model, file, index)


def _read_by_ase(file: Path, index: str) -> list[Atoms]:
    """Only the frames wanted, which saves the time of reading a long trajectory."""
    import ase.io

    from denskit.data.readers.ase_files import ase_options, require_ordered

    options = ase_options(file)
    try:
        found = ase.io.read(file, index=index, **options)
    except (StopIteration, IndexError):
        raise ValueError(f"{file} has no frames {index}") from None
    except Exception as error:  # ASE's readers raise exceptions of any class on a bad file
        raise ValueError(f"{file}: ASE cannot read frames {index} of it ({type(error).__name__}: {error})") from error
    structures = found if isinstance(found, list) else [found]
    if not structures:
        raise ValueError(f"{file} has no frames {index}")
    for atoms in structures if file.suffix.lower() == ".cif" else ():
        require_ordered(atoms, str(file))
    return structures


def _read_records(model: Path, file: Path, index: str) -> list[Atoms]:
    """Frames of npz, LMDB, shards, a folder of files and the like, which have no velocities."""
    from ase.io import formats

    from denskit.data.readers.folders import read_warned
    from denskit.data.readers.formats import open_unchecked
    from denskit.data.writing import plain
    from denskit.evaluation.judged_structures import reading

    source = read_warned(file, reading(model, file), open_unchecked)  # its messages are about labels
    found: Any
    try:
        found = range(len(source))[formats.string2index(index)]  # type: ignore[attr-defined,index]
    except (ValueError, IndexError, TypeError):  # TypeError: a query of ASE's databases
        found = range(0)
    places = [found] if isinstance(found, int) else found
    if not places:
        raise ValueError(f"{file}: no frames {index}; it has {len(source)}, counted from 0 (as in -1, 5, :3 or ::10)")
    return [plain(source[place]) for place in places]


def _announce_cost(potential: DividedPotential, structures: list[Atoms], plan: DynamicsPlan, *, resume: bool) -> None:
    """Print the cost of the steps that are left."""
    from denskit.simulation.dynamics.cost import cost_of
    from denskit.simulation.dynamics.folder import RESTART
    from denskit.simulation.dynamics.restart import Restart

    marker = Path(plan.folder) / RESTART
    done = Restart.load(marker).state.step if resume and marker.is_file() else 0
    cost = cost_of(potential, structures, plan)
    for failure in cost.failures:
        typer.echo(f"warning: in the trial {failure}")
    said = _in_words(cost, plan, done)
    typer.echo(said)
    give(cost=said, failures_in_trial=list(cost.failures))


def _in_words(cost: DynamicsCost, plan: DynamicsPlan, done: int) -> str:
    left = max(plan.steps - done, 0)
    steps = f"the last {left} of {plan.steps} steps" if done else counted(left, "step")
    return (
        f"about {duration(cost.seconds(left, plan))} for {steps}, at {1000 * cost.step:.3g} ms a step and "
        f"{1000 * cost.frame_seconds:.3g} ms each time that frames are written; "
        f"{cost.memory:.0f} MiB of memory a process, {cost.disk(plan):.3g} MiB of trajectories"
    )


def _simulate(
    potential: DividedPotential, structures: list[Atoms], plan: DynamicsPlan, *, resume: bool, compiled: bool
) -> None:
    from denskit.simulation.dynamics.folder import molecular_dynamics
    from denskit.simulation.dynamics.loop import ends_in_words

    console = Console(soft_wrap=True, markup=False)
    _suggest_processes(potential, len(structures))
    if compiled and potential.device.type == "cpu":
        console.print(
            "compiling the model before the first step: half a minute to three minutes, "
            "seconds where it was compiled before"
        )
    with stoppable(console) as work:
        outcome = molecular_dynamics(
            potential, structures, plan, resume=resume, say=console.print, progress=work.progress, stop=work.stop,
        )  # fmt: skip
    for failure in outcome.failures:
        (console.print if failure.uncertain else complain)(str(failure))
    if plan.uncertain is not None:
        console.print(_uncertain_frames(plan))
    reached = ends_in_words(outcome.state.batch.num_systems, [failure.check for failure in outcome.failures])
    give(
        folder=plan.folder, stable=outcome.state.batch.num_systems, replicas=len(structures), steps=outcome.state.step,
        interrupted=outcome.interrupted, failures=[str(failure) for failure in outcome.failures],
    )  # fmt: skip
    frames, step = _frames_in_words(outcome, plan, resumed=resume), outcome.state.step
    ended = f"{'interrupted' if outcome.interrupted else 'ended'} at {step * plan.settings.timestep / 1000:g} ps"
    console.print(f"{reached}; {ended} (step {step}){_threads(potential)}; wrote {frames} to {plan.folder}")
    if outcome.interrupted:
        work.leave(f"the state is saved in {plan.folder}")
    if not outcome.state.batch.num_systems and not all(failure.uncertain for failure in outcome.failures):
        raise typer.Exit(1)


def _suggest_processes(potential: DividedPotential, structures: int) -> None:
    from denskit.runtime.threads import cores

    best = min(cores(), structures)
    if potential.device.type == "cpu" and potential.processes < best:
        typer.echo(f"{cores()} cores, {structures} simulations: --processes {best} is faster (docs/processes.md)")


def _threads(potential: DividedPotential) -> str:
    from denskit.runtime.threads import cores, threads_evaluating

    if potential.device.type != "cpu" or not potential.num_edges:
        return ""
    threads = threads_evaluating(potential.num_edges, potential.device)
    together = f"{potential.processes} processes of " if potential.processes > 1 else ""
    return f"; {together}{counted(threads, 'thread')} on {counted(cores(), 'core')}, for {potential.num_edges:,} edges"


def _uncertain_frames(plan: DynamicsPlan) -> str:
    from denskit.simulation.dynamics.folder import UNCERTAIN_FRAMES

    file = Path(plan.folder) / UNCERTAIN_FRAMES
    spread = f"in which forces spread by more than {plan.uncertain:g} eV/Å over the models"
    if not file.exists():
        return (
            f"no frame {spread}; statistics.csv has the largest spread (max_forces_std). Lower --uncertain, or let "
            f"denskit select choose from all frames: give it {plan.folder}"
        )
    return (
        f"frames {spread}, {plan.uncertain_every:g} fs or more apart in a replica, {plan.uncertain_frames} at most: "
        f"{file}"
    )


def _frames_in_words(outcome: Outcome, plan: DynamicsPlan, *, resumed: bool) -> str:
    """How many frames the trajectories have; of a resumed simulation, whose interval may have been another, which."""
    last = not outcome.interrupted and outcome.state.step % plan.frame_every > 0  # beside those at the interval
    which = f"every {plan.frame_every} steps{' and the last' if last else ''}" if plan.frame_every > 1 else "every step"
    if resumed:
        return f"frames ({which})"
    count = counted(outcome.state.step // plan.frame_every + 1 + last, "frame")
    return f"{'up to ' if outcome.failures else ''}{count} of each simulation ({which})"
