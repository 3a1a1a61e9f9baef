"""``denskit evaluate --discovery``: stability of crystals against a convex hull."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from denskit.cli.opening import references_of
from denskit.cli.output import complain, give, show_table
from denskit.cli.sets import origin_of_file
from denskit.cli.stopping import stoppable

ROWS = (
    ("stable: F1", "F1", "{:.3f}"),
    ("stable: discovery acceleration (DAF)", "DAF", "{:.3f}"),
    ("stable: precision", "precision", "{:.3f}"),
    ("stable: recall", "recall", "{:.3f}"),
    ("stable: accuracy", "accuracy", "{:.3f}"),
    ("energy above hull: MAE (meV/atom)", "MAE_eV_per_atom", "{:.1f}"),
    ("energy above hull: RMSE (meV/atom)", "RMSE_eV_per_atom", "{:.1f}"),
    ("energy above hull: R²", "R2", "{:.3f}"),
    ("relaxed energy: MAE (meV/atom)", "energy_MAE_eV_per_atom", "{:.1f}"),
    ("relaxed structure: RMSD, in (volume/atom)^(1/3)", "rmsd", "{:.4f}"),
    ("relaxed structures that match", "matched", "{}"),
    ("structures to compare with", "reference_structures", "{}"),
    ("thermal conductivity: kappa_SRME", "kappa_SRME", "{:.4f}"),
    ("thermal conductivity: kappa_SRE", "kappa_SRE", "{:.4f}"),
    ("conductivities to compare with", "reference_conductivities", "{}"),
    ("conductivities that count as 2, the worst", "conductivities_counted_as_worst", "{}"),
    ("predicted stable", "predicted_stable", "{}"),
    ("converged", "converged", "{}"),
    ("not converged in 500 moves", "not_converged", "{}"),
    ("refused", "refused", "{}"),
    ("with an element that the model does not know", "unknown_element", "{}"),
    ("exploded", "exploded", "{}"),
    ("out of memory", "out_of_memory", "{}"),
    ("without a prediction", "without_a_prediction", "{}"),
)


def show_discovery(
    model: Path,
    file: Path,
    output: Path | None,
    *,
    hull: Path | None,
    relaxed: Path | None,
    kappa: Path | None,
    reference: Path | None,
    device: str,
    checkpoint: Any,
    resume: bool,
) -> None:
    """Relax the materials of a file, judge them, and print the table.  Raises ValueError without an output folder."""
    from denskit.evaluation.conductivities import KnownConductivities
    from denskit.evaluation.convex_hull import ConvexHull
    from denskit.evaluation.discovery import RESULT, TABLE, Materials, discover_into, rmsd_function
    from denskit.evaluation.judged_structures import source_of
    from denskit.runtime.device import choose_device
    from denskit.simulation.potential import Potential
    from denskit.simulation.relaxation.folder import RelaxationFolder
    from denskit.training.run_folder import model_file

    if output is None:
        raise ValueError("--discovery relaxes structures, into a folder: give --output FOLDER")
    weights = model_file(model, checkpoint)
    phases = None if hull is None else ConvexHull(source_of(model, hull, "", judged=False), str(hull))
    known = None if relaxed is None else (source_of(model, relaxed, ""), relaxed)
    if known is not None and rmsd_function() is None:
        typer.echo("RMSD is left out: it needs pymatgen (pip install 'denskit[discovery]')", err=True)
    materials = Materials(source_of(model, file, ""), file, phases, known)
    potential = Potential(weights, device=choose_device(device), stress=True)
    origin = {"model": potential.weights_sha256(), "materials": origin_of_file(file)}
    judged_by = {
        name: origin_of_file(path) for name, path in (("hull", hull), ("relaxed", relaxed)) if path is not None
    }
    console = Console(stderr=True, soft_wrap=True)
    with stoppable(console) as work, ExitStack() as opened:
        known_heat = None
        if kappa is not None and reference is not None:
            precise = Potential(weights, device=choose_device(device), dtype="float64", stress=True)
            heat, heat_origin = source_of(model, kappa, ""), {"model": origin["model"], **origin_of_file(kappa)}
            folder = opened.enter_context(references_of(reference, kappa, heat))
            known_heat = KnownConductivities(heat, kappa, folder, precise, origin=heat_origin)
        found = discover_into(
            output, potential, materials, conductivities=known_heat, origin={"origin": origin}, judged_by=judged_by,
            resume=resume, say=lambda text: console.print(text, style="yellow", markup=False), stop=work.stop,
            progress=work.progress,
        )  # fmt: skip
    if found is None:
        work.leave(f"the state is saved in {output}")
    give(discovery=found)
    _print(found, f"{model} on {file}")
    typer.echo(f"Wrote {TABLE}, {RESULT} and relaxed.extxyz to {output}")
    lost = [one for one in RelaxationFolder(output).results() if not one.sound]
    if lost:
        reasons = sorted({one.message for one in lost if one.message})
        none = len(lost) == found["materials"]
        said = "No structure could be relaxed" if none else f"Without a result: {len(lost)} of {found['materials']}"
        complain("\n  ".join([said, *reasons[:5]]))
        if none:
            raise typer.Exit(1)


def _print(found: dict[str, Any], title: str) -> None:
    rows = []
    for name, key, form in ROWS:
        if key in found:
            value = 1000 * found[key] if "meV" in name else found[key]
            rows.append((name, form.format(value) if math.isfinite(value) else _why_undefined(key, found)))
    show_table(("quantity", "value"), rows, Console(soft_wrap=True), title=escape(title), title_justify="left")


def _why_undefined(key: str, found: dict[str, Any]) -> str:
    """Why a metric is no number, in words."""
    if key in ("R2", "MAE_eV_per_atom", "RMSE_eV_per_atom"):
        return "too few materials"
    if not found["true_positives"] + found["false_negatives"] and key != "precision":
        return "none is stable"
    if not found["true_positives"] + found["false_positives"]:
        return "none predicted stable"
    return "no stable one found"
