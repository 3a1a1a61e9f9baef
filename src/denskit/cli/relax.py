"""``denskit relax``: relax the structures of a file, many at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from denskit.cli.opening import open_potential, open_structures
from denskit.cli.options import Committee, Deterministic, Device, Dtype, HowRead, Kernels, ModelPath, Processes, Resume
from denskit.cli.output import complain, give
from denskit.cli.sets import origin_of_file, reading_settings
from denskit.cli.stopping import stoppable
from denskit.files import output_folder
from denskit.runtime.progress import counted, duration

if TYPE_CHECKING:
    from denskit.data.writing import Originals
    from denskit.simulation.relaxation import RelaxationSettings
    from denskit.simulation.state import Structures


def relax(
    model: ModelPath,
    file: Annotated[
        Path,
        typer.Argument(
            help="Structures: extxyz, traj, db, lmdb, npz, cif, ..., or a folder of files.", show_default=False
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.", show_default=False)],
    how: HowRead = None,
    protocol: Annotated[
        Literal["oc20-2021", "oc20-2024", "matbench-discovery"] | None,
        typer.Option(help="A published protocol, with its optimizer; other options change it."),
    ] = None,
    optimizer: Annotated[
        Literal["lbfgs", "fire"] | None, typer.Option(help="Default: lbfgs. Parameters as in ASE.")
    ] = None,
    fmax: Annotated[float | None, typer.Option(help="eV/Å, converged below; default 0.05.", min=0)] = None,
    steps: Annotated[int | None, typer.Option(help="Most moves of a structure; default 500.", min=0)] = None,
    cell: Annotated[
        str | None, typer.Option(help="Relax cells: full, hydrostatic, or strains as xx,yy,xy.", show_default=False)
    ] = None,
    pressure: Annotated[float, typer.Option(help="GPa, on relaxing cells.")] = 0.0,
    batch_atoms: Annotated[int, typer.Option(help="Atoms evaluated at once.", min=1)] = 1000,
    trajectory: Annotated[bool, typer.Option("--trajectory", help="Keep every geometry, a file a structure.")] = False,
    resume: Resume = False,
    is2re: Annotated[
        bool, typer.Option("--is2re", help="Write submission files; errors where the file has relaxed references.")
    ] = False,
    first_frames: Annotated[
        bool, typer.Option("--first-frames", help="The file holds relaxations: relax the first frame of each.")
    ] = False,
    committee: Committee = None,
    device: Device = "auto",
    dtype: Dtype = None,
    kernels: Kernels = "auto",
    processes: Processes = 1,
    deterministic: Deterministic = False,
) -> None:
    """Relax structures in one batch; converged structures make room for others.

    Writes relaxed.extxyz (with all fields of the file), summary.csv and summary.json to the output folder. Ctrl-C
    saves; --resume continues. Exit code 1: no structure could be relaxed.

    Examples:

      denskit relax runs/mine structures.extxyz -o relaxed

      denskit relax runs/mine crystals.extxyz -o relaxed --cell full --fmax 0.01 --optimizer fire

      denskit relax runs/oc20 is2re/val_id -o is2re_val_id --protocol oc20-2024 --is2re
    """
    from denskit.runtime.device import use_deterministic_algorithms
    from denskit.simulation.relaxation.folder import RelaxationFolder

    if deterministic:
        use_deterministic_algorithms()
    settings = _settings(protocol, optimizer, fmax, steps, cell, pressure)
    stress = settings.cell is not None
    potential = open_potential(
        [model, *(committee or [])], device, dtype, stress=stress, kernels=kernels, processes=processes
    )
    data = reading_settings(how or [])
    source, original = _structures(model, file, data, first_frames=first_frames, named=is2re)
    origin = {"model": potential.weights_sha256(), **origin_of_file(file), "first_frames": first_frames}
    origin |= {"dtype": dtype, "data": data}
    folder = RelaxationFolder(output_folder(output))
    options = {"resume": resume, "batch_atoms": batch_atoms, "trajectories": trajectory, "original": original}
    summary = _run(folder, potential, source, settings, {"origin": origin, **options})
    _report(folder, summary, source, resumed=resume)
    if is2re and any(len(relaxed.positions) for relaxed in folder.results()):
        _report_is2re(folder, source)
    if not any(relaxed.sound for relaxed in folder.results()):
        complain("No structure could be relaxed")
        raise typer.Exit(1)


def _structures(
    model: Path, file: Path, data: dict[str, Any], *, first_frames: bool, named: bool
) -> tuple[Structures, Originals]:
    """The structures to relax, and the fields of the file; ``named``: each must have a sid of its own.

    Raises ValueError for constraints that would not be obeyed.
    """
    from denskit.data.writing import Originals
    from denskit.simulation.relaxation.is2re import first_frames as first_of
    from denskit.simulation.relaxation.is2re import require_sids
    from denskit.simulation.structures import wholly_fixed

    source = open_structures(model, file, data)
    original = Originals(file, source, moved=True)
    chosen: Structures = first_of(source) if first_frames else source
    if named:
        require_sids(chosen)
    if source.in_memory:  # of shards fixed atoms alone are read
        as_in_file = Originals(file, source)
        for place in range(len(chosen)):
            system = chosen[place]
            wholly_fixed(as_in_file(system), system.index)
    return chosen, original


def _settings(
    protocol: str | None,
    optimizer: str | None,
    fmax: float | None,
    steps: int | None,
    cell: str | None,
    pressure: float,
) -> RelaxationSettings:
    from denskit.simulation.relaxation import PROTOCOLS, RelaxationSettings
    from denskit.simulation.relaxation.cells import CellRelaxation
    from denskit.simulation.relaxation.optimizers import FIRE, LBFGS
    from denskit.units import GPA

    if protocol is not None and optimizer is not None:
        raise ValueError(f"--protocol {protocol} says which optimizer; leave --optimizer {optimizer} out")
    if cell is None and pressure:
        raise ValueError("--pressure acts on cells that relax: give --cell full as well")
    settings = PROTOCOLS[protocol] if protocol is not None else RelaxationSettings()
    changes: dict[str, Any] = {"fmax": fmax, "steps": steps}
    changes["optimizer"] = {"lbfgs": LBFGS(), "fire": FIRE(), None: None}[optimizer]
    changes["cell"] = None if cell is None else CellRelaxation.from_name(cell, pressure * GPA)
    return settings.model_copy(update={name: value for name, value in changes.items() if value is not None})


def _run(folder: Any, potential: Any, source: Structures, settings: RelaxationSettings, options: dict[str, Any]) -> Any:
    """Relax with a progress bar; leaves the program where it was interrupted."""
    from denskit.simulation.relaxation.folder import relax_into

    console = Console(stderr=True, soft_wrap=True)
    with stoppable(console) as work:
        summary = relax_into(
            folder, potential, source, settings, stop=work.stop, progress=work.progress,
            say=lambda text: console.print(text, style="yellow", markup=False), **options,
        )  # fmt: skip
    if summary is None:
        work.leave(f"the state is saved in {folder.path}")
    return summary


def _report(folder: Any, summary: dict[str, Any], source: Structures, *, resumed: bool) -> None:
    import numpy as np

    from denskit.data.overlaps import overlaps
    from denskit.data.structure_arrays import numbered
    from denskit.simulation.relaxation.folder import LARGE_CHANGE

    give(folder=folder.path, **summary)
    parts = [f"{count} {status.replace('_', ' ')}" for status, count in summary["status"].items()]
    seconds = summary["seconds_of_last_run"]
    count = summary["structures"]
    typer.echo(
        f"{counted(count, 'structure')}: {', '.join(parts)}; {summary['moves']} moves, "
        f"{duration(seconds)}{' since --resume' if resumed else ''}"
    )
    troubles = [relaxed for relaxed in folder.results() if not relaxed.sound]
    for relaxed in troubles[:10]:
        complain(f"structure {relaxed.index}: {relaxed.status.replace('_', ' ')}: {relaxed.message}")
    if len(troubles) > 10:
        complain(f"and {len(troubles) - 10} more, in {folder.table}")
    if collapsed := overlaps(
        replace(source[relaxed.index], positions=relaxed.positions, cell=relaxed.cell, index=relaxed.index)
        for relaxed in folder.results() if relaxed.sound
    ):  # fmt: skip
        frames = numbered(np.array([system.index for system, _, _ in collapsed]))
        typer.echo(f"warning: relaxed {frames}: atoms nearer than any bond, where the model knows nothing")
    if changed := summary["large_volume_changes"]:
        typer.echo(
            f"warning: {changed} of them changed the volume by more than {LARGE_CHANGE:g} % (volume_change_percent in "
            f"{folder.table.name}): the model may not know them, or the given cells were far from their own"
        )
    typer.echo(f"Wrote {folder.structures} and {folder.table}")


def _report_is2re(folder: Any, source: Structures) -> None:
    from denskit.files import write_json
    from denskit.simulation.relaxation.is2re import errors, write_submission

    left_out = write_submission(folder.results(), source, folder.path)
    typer.echo(f"Wrote is2re.npz and is2rs.npz to {folder.path}")
    if left_out:
        names = ", ".join(left_out[:10]) + (", ..." if len(left_out) > 10 else "")
        typer.echo(f"is2re.npz lacks {counted(len(left_out), 'structure')} without an energy: {names}")
    found = errors(folder.results(), source)
    if found:
        write_json(folder.path / "is2re.json", found)
        give(is2re=found)
    for name, value in found.items():
        typer.echo(f"{name} {value:.4g}" if abs(value) < 1000 else f"{name} {value:,.0f}")
