"""The command line of the contest at equal processor time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from denskit.cli.errors import FriendlyGroup

app = typer.Typer(
    cls=FriendlyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Errors of Denskit, MACE and NequIP after equal processor time of one thread, on the same frames.",
    epilog="docs/benchmarks.md says what is measured how, and how to make the environments of other programs.",
)

Folder = Annotated[Path, typer.Argument(help="Folder of frames, trainings and results.")]


@app.command()
def run(
    folder: Folder,
    data: Annotated[Path, typer.Option(help="Folder of the data files.")],
    sets: Annotated[
        str, typer.Option(help="Data sets, with commas.")
    ] = "ethanol-50,3bpa-50,aspirin-50,metals-50,ethanol-200",
    programs: Annotated[str, typer.Option(help="Programs, with commas.")] = "mace,nequip,denskit,denskit-dens",
    minutes: Annotated[str, typer.Option(help="Budgets of processor time, with commas.")] = "10,30,120",
    mace_python: Annotated[
        str | None, typer.Option(help="The Python of MACE's environment.", show_default=False)
    ] = None,
    nequip_python: Annotated[
        str | None, typer.Option(help="The Python of NequIP's environment.", show_default=False)
    ] = None,
) -> None:
    """Train and judge what is missing, one after the other, the shortest budget first; then write the report.

    A training that was interrupted goes on from its checkpoint.

    Example:

      python -m denskit_accuracy run contest --data DATA --mace-python mace/bin/python
      --nequip-python nequip/bin/python --sets ethanol-50 --minutes 10
    """
    from denskit_accuracy.contest import Contest
    from denskit_accuracy.frames import SETS
    from denskit_accuracy.programs import with_pythons
    from denskit_accuracy.report import write_report

    pythons = {"mace": mace_python, "nequip": nequip_python}
    chosen = with_pythons(programs.split(","), {name: python for name, python in pythons.items() if python})
    unknown = sorted(set(sets.split(",")) - set(SETS))
    if unknown:
        raise ValueError(f"there is no set {unknown[0]!r}; there are {', '.join(SETS)}")
    for budget in sorted(float(text) for text in minutes.split(",")):
        for set_name in sets.split(","):
            for name, program in chosen.items():
                contest = Contest(
                    folder=folder, data=data, set_name=set_name, program_name=name, program=program, minutes=budget
                )
                found = contest.run()
                typer.echo(
                    f"{set_name}, {budget:g} minutes, {name}: forces {found['forces_mae_meV_per_A']:.1f} meV/Å, energy "
                    f"{found['energy_mae_meV']:.1f} meV in {found['used_minutes']:.1f} minutes"
                )
    typer.echo("\n" + write_report(folder))


@app.command()
def report(folder: Folder) -> None:
    """Write table.md, results.json and curves.png of the trainings that are finished."""
    from denskit_accuracy.report import write_report

    typer.echo(write_report(folder))
