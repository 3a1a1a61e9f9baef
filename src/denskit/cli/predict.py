"""``denskit predict``: energies and forces for the structures of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from denskit.cli.options import BatchSize, Committee, Deterministic, Device, Force, ModelPath
from denskit.cli.output import give, speaks
from denskit.cli.sets import named_sets, with_reading
from denskit.runtime.progress import counted


def predict(
    model: ModelPath,
    structures: Annotated[
        list[str],
        typer.Argument(
            help="extxyz, traj, db, npz, lmdb, cif, ..., or a folder of files; for a submission one NAME=FILE for each "
            "split. data.KEY=VALUE: how they are read.",
            metavar="[NAME=]FILE ... [data.KEY=VALUE ...]",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.", show_default=False)],
    committee: Committee = None,
    layout: Annotated[
        Literal["extxyz", "evalai", "leaderboard"],
        typer.Option("--format", help="extxyz; as npz: evalai (forces of free atoms), leaderboard (of all)."),
    ] = "extxyz",
    device: Device = "auto",
    batch_size: BatchSize = 32,
    deterministic: Deterministic = False,
    force: Force = False,
) -> None:
    """Predict energies (eV), forces (eV/Å) and, if the model has it, stress (eV/Å^3).

    extxyz keeps all fields of the file; energy, forces and stress are the model's, the file's own become REF_energy,
    REF_forces and REF_stress. Of a committee it is the mean; energy_std and forces_std are its spread.

    Examples:

      denskit predict runs/mine new.extxyz -o labelled.extxyz

      denskit predict runs/mine id=test_id ood_ads=test_ood_ads --format evalai -o submission.npz
    """  # fmt: skip
    from denskit.runtime.device import use_deterministic_algorithms

    if deterministic:
        use_deterministic_algorithms()
    files, data = with_reading(structures)
    sets = named_sets(files)
    if not sets:
        raise ValueError("no file of structures is given")
    models = [model, *(committee or [])]
    if layout == "extxyz":
        from denskit.evaluation.evaluate import predict_file
        from denskit.runtime.progress import progress_bar

        if len(sets) > 1:
            raise ValueError(
                f"{len(sets)} files are given and one is taken: give their folder, whose files are joined, or "
                "predict one after the other. For the splits of a submission to a leaderboard add --format evalai"
            )
        (file,) = sets.values()
        settings = {"device": device, "batch_size": batch_size, "data": data, "force": force}
        with progress_bar(Console(stderr=True)) as bar:
            count = predict_file(models, file, output, **settings, progress=bar)  # type: ignore[arg-type]
    else:
        from denskit.evaluation.submission import write_submission
        from denskit.runtime.processes import join_processes

        settings = {"batch_size": batch_size, "data": data, "force": force, "processes": join_processes(device)}
        named = files != [*sets.values()]
        given = sets if named or len(sets) > 1 else next(iter(sets.values()))
        count = write_submission(models, given, output, layout=layout, **settings)  # type: ignore[arg-type]
    give(output=output, structures=count)
    if speaks():
        typer.echo(f"Wrote {counted(count, 'structure')} to {output}")
