"""``denskit crystal``: equation of state, elastic constants and phonons of crystals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from denskit.cli.opening import open_potential, open_structures
from denskit.cli.options import Device, HowRead, Kernels, refuse
from denskit.cli.output import complain, give, table_console
from denskit.cli.sets import origin_of_file, reading_settings
from denskit.cli.stopping import stoppable

ROUGH = 0.1  # of the bulk modulus, between energies and stresses
DERIVATIVES = (0.0, 12.0)  # of bulk moduli by the pressure that are believed
# column, key, format; z: nothing has no sign
COLUMNS = (
    ("index", "index", "{}"),
    ("name", "name", "{}"),
    ("formula", "formula", "{}"),
    ("energy\n(eV/atom)", "energy_eV_per_atom", "{:z.4f}"),
    ("volume\n(Å³/atom)", "volume_A3_per_atom", "{:z.3f}"),
    ("bulk\n(GPa)", "bulk_modulus_GPa", "{:z.1f}"),
    ("shear\n(GPa)", "shear_modulus_GPa", "{:z.1f}"),
    ("Poisson", "poisson_ratio", "{:z.3f}"),
    ("phonons\n(THz)", "phonon_largest_THz", "{:z.2f}"),
    ("lowest\n(THz)", "phonon_smallest_THz", "{:z.2f}"),
    ("conduc-\ntivity\n(W/m/K)", "conductivity_300K_W_per_m_K", "{:.3g}"),
    ("kappa\nSRME", "kappa_SRME", "{:z.3f}"),
)


def crystal(
    model: Annotated[Path, typer.Argument(help="Model file or run folder; with stress.", show_default=False)],
    file: Annotated[Path, typer.Argument(help="Crystals: cif, POSCAR, extxyz, traj, db, ...", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.", show_default=False)],
    how: HowRead = None,
    phonons: Annotated[bool, typer.Option("--phonons", help="Phonons too, by phonopy (extra crystals).")] = False,
    conductivity: Annotated[
        bool, typer.Option("--conductivity", help="Thermal conductivity too, by phono3py (extra conductivity).")
    ] = False,
    reference: Annotated[
        Path | None, typer.Option(help="Folder with conductivities of the same crystals, to compare with.")
    ] = None,
    mesh: Annotated[
        float | None, typer.Option(help="Å: length of the sampling of q for --conductivity; default: 40.")
    ] = None,
    supercell: Annotated[
        float | None,
        typer.Option(help="Å: smallest height of the supercell for --phonons, --conductivity; default: 12."),
    ] = None,
    fmax: Annotated[float, typer.Option(help="eV/Å: largest force in a relaxed crystal.")] = 1e-3,
    strain: Annotated[float, typer.Option(help="Strain of the elastic constants.")] = 0.005,
    volumes: Annotated[int, typer.Option(help="Volumes of the equation of state.", min=5)] = 9,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the work in the folder.")] = False,
    device: Device = "auto",
    dtype: Annotated[Literal["float32", "float64"], typer.Option(help="Of the model.")] = "float64",
    kernels: Kernels = "auto",
) -> None:
    """Relax crystals, and measure their equation of state, elastic constants, phonons and thermal conductivity.

    Writes crystals.jsonl (one line a crystal, units in the names), crystals.png and, with --phonons, files for phonopy,
    with --conductivity the conductivity of each mode. Ctrl-C stops after a crystal; --resume continues.

    Examples:

      denskit crystal runs/mine Cu.cif -o copper

      denskit crystal runs/mine crystals.extxyz --phonons -o crystals

      denskit crystal runs/mine Si.cif --conductivity --reference dft -o silicon
    """
    from rich.console import Console

    from denskit.analysis.crystal_plots import plot_crystals
    from denskit.data.writing import Originals
    from denskit.simulation.crystals import CrystalSettings
    from denskit.simulation.crystals.folder import measure_into

    refuse(
        (reference and not conductivity, "--reference belongs to --conductivity; without it it would be ignored"),
        (mesh is not None and not conductivity, "--mesh belongs to --conductivity; without it it would be ignored"),
        (
            supercell is not None and not (phonons or conductivity),
            "--supercell belongs to --phonons and --conductivity; without one of them it would be ignored",
        ),
    )
    given = {name: value for name, value in (("mesh", mesh), ("supercell", supercell)) if value is not None}
    settings = CrystalSettings(fmax=fmax, strain=strain, volumes=volumes, **given)
    potential = open_potential([model], device, dtype, stress=True, kernels=kernels)
    source = open_structures(model, file, reading_settings(how or []))
    origin = {"model": potential.weights_sha256(), **origin_of_file(file), "dtype": dtype}
    with stoppable(Console(stderr=True)) as work:
        found = measure_into(
            output, potential, source, settings, vibrations=phonons, heat=conductivity, reference=reference,
            origin=origin, original=Originals(file, source), resume=resume,
            say=lambda text: typer.echo(text, err=True), stop=work.stop, progress=work.progress,
        )  # fmt: skip
    if found is None:
        work.leave(f"finished crystals are in {output}")
    give(folder=output, crystals=found)
    _print(found)
    picture = plot_crystals(found, output / "crystals.png")
    typer.echo(f"Wrote crystals.jsonl{' and crystals.png' if picture else ''} to {output}")
    if not any("energy_eV_per_atom" in crystal for crystal in found):
        complain("No crystal could be measured")
        raise typer.Exit(1)


def _rough(crystal: dict[str, Any]) -> str:
    """A warning where two bulk moduli, or the curvature of the equation of state, show noise; else empty."""
    energies, constants = crystal["bulk_modulus_GPa"], crystal.get("elastic_constants_GPa")
    stresses = None if constants is None else float(np.mean(np.array(constants)[:3, :3]))  # of uniform strains (Voigt)
    derivative = crystal["bulk_modulus_derivative"]
    if stresses is not None and abs(stresses - energies) > ROUGH * abs(energies):
        return (
            f"the bulk modulus is {energies:.1f} GPa by the equation of state and {stresses:.1f} GPa by the elastic "
            "constants (Voigt): the energy is not smooth near the minimum (train longer, or on strained structures), "
            "or the stress is that of a head and not its derivative"
        )
    if not DERIVATIVES[0] <= derivative <= DERIVATIVES[1]:
        return (
            f"the derivative of its bulk modulus by the pressure is {derivative:.1f} (2 to 8 in most crystals): the "
            "energy is not smooth near the minimum"
        )
    return ""


def _print(found: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    from denskit.analysis.crystal_plots import name_in_words

    shown = [column for column in COLUMNS if any(column[1] in crystal for crystal in found)]
    shown = shown if len(found) > 1 else [column for column in shown if column[1] != "index"]
    table = Table(*(Column(name, overflow="fold") for name, _, _ in shown))
    for crystal in found:
        if "energy_eV_per_atom" in crystal:
            cells = ("-" if crystal.get(key) is None else form.format(crystal[key]) for _, key, form in shown)
            table.add_row(*map(escape, cells))
    console = Console(soft_wrap=True, markup=False)
    if table.row_count:
        table_console().print(table)
    for crystal in found:
        place = f"crystal {crystal['index']} ({name_in_words(crystal)})"
        if "error" in crystal:
            console.print(f"{place}: {crystal['error']}")
        if "energy_eV_per_atom" not in crystal:
            continue
        if crystal.get("cubic_C11_GPa") is not None:
            c11, c12, c44 = (f"{name} {crystal[f'cubic_{name}_GPa']:.1f}" for name in ("C11", "C12", "C44"))
            console.print(f"{place}: {c11}, {c12}, {c44} GPa in the axes of the conventional cell", highlight=False)
        if told := _rough(crystal):
            console.print(f"{place}: {told}")
        if crystal.get("elastically_stable") is False:
            console.print(f"{place}: a strain lowers its energy (an eigenvalue of the elastic constants is negative)")
        elif "conductivity_300K_W_per_m_K" in crystal and crystal["conductivity_300K_W_per_m_K"] is None:
            lowest = crystal["phonon_smallest_of_mesh_THz"]
            console.print(f"{place}: no thermal conductivity: imaginary phonons down to {lowest:.2f} THz")
        elif crystal.get("dynamically_stable") is False:
            console.print(f"{place}: imaginary phonons down to {crystal['phonon_smallest_THz']:.2f} THz")
