"""``denskit evaluate``: errors of a run or a model on structures that training did not see."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from denskit.cli.denoising import show_denoising
from denskit.cli.discovery import show_discovery
from denskit.cli.options import BatchSize, Committee, Deterministic, Device, Force, ModelPath, refuse
from denskit.cli.output import complain, give, speaks
from denskit.cli.sets import named_sets, places_of, print_table, with_reading
from denskit.files import write_json
from denskit.units import GPA

SETS, PARITY = "sets.json", "parity.png"
PARALLEL, FACTOR = 0.9, 3.0  # cosine and factor of forces in another unit
TENFOLD = 10.0  # times the file's: no model, however poor, predicts forces that are so large
TOLD = 0.5  # cosine of forces that may tell their unit at all
STRANGE = 300.0  # meV/Å^3, 48 GPa: a stress error above that of predicting zero for nearly all solids
Sets = Annotated[
    list[str] | None,
    typer.Argument(
        help="Sets of structures, and their mean; default: the run's own. data.KEY=VALUE: how they are read, or where "
        "the run's own have moved.",
        metavar="[NAME=]FILE ... [data.KEY=VALUE ...]",
    ),
]
Sigmas = Annotated[
    list[float] | None, typer.Option(help="Å, for --denoise, repeatable; default: around the run's own.")
]
Ratios = Annotated[
    list[float] | None, typer.Option(help="Corruption ratio for --denoise, repeatable; default: from the run's own.")
]
Discovery = Annotated[
    Path | None, typer.Option(help="Instead: relax these crystals and judge their stability.", metavar="FILE")
]
Hull = Annotated[Path | None, typer.Option(help="Known phases with energies, for --discovery.", metavar="FILE")]
RelaxedReferences = Annotated[
    Path | None, typer.Option(help="Reference relaxed structures, for --discovery.", metavar="FILE")
]
Kappa = Annotated[
    Path | None,
    typer.Option(
        help="Crystals with known thermal conductivities, for --discovery: adds their error, kappa_SRME.",
        metavar="FILE",
    ),
]
References = Annotated[
    Path | None,
    typer.Option(
        help="Conductivities of the crystals of --kappa: a folder with conductivity_0.npz, conductivity_1.npz, ..., "
        "as denskit crystal --conductivity writes it, or the file of Matbench Discovery (kappas-....json.gz).",
        metavar="FOLDER",
    ),
]


def evaluate(
    model: ModelPath,
    structures: Sets = None,
    committee: Committee = None,
    split: Annotated[Literal["train", "valid", "test"], typer.Option(help="Part of the run's own data.")] = "test",
    checkpoint: Annotated[
        Literal["best", "last"] | None, typer.Option(help="Of a run folder; default: the run's choice.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for SPLIT.json and parity.png; default: the run folder."),
    ] = None,
    device: Device = "auto",
    batch_size: BatchSize = 32,
    deterministic: Deterministic = False,
    denoise: Annotated[
        bool, typer.Option("--denoise", help="Instead: recovery of noise by a run with task=dens (a diagnostic).")
    ] = False,
    sigma: Sigmas = None,
    ratio: Ratios = None,
    discovery: Discovery = None,
    hull: Hull = None,
    relaxed: RelaxedReferences = None,
    kappa: Kappa = None,
    reference: References = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue --discovery in its folder.")] = False,
    force: Force = False,
) -> None:
    """Judge a model: energy, force and stress errors, in a table and (for a run) in test.json and parity.png.

    Examples:

      denskit evaluate runs/mine

      denskit evaluate runs/mine/model.safetensors other.extxyz

      denskit evaluate runs/mine cold=300K.extxyz hot=1200K.extxyz data.energy_key=dft_energy

      denskit evaluate runs/a other.extxyz --committee runs/b --committee runs/c

      denskit evaluate runs/ethanol --denoise --sigma 0.02 --sigma 0.05

      denskit evaluate runs/mine --discovery wbm.extxyz --hull phases.extxyz -o runs/mine/discovery

      denskit evaluate runs/mine --discovery wbm.extxyz --kappa heat.extxyz --reference dft -o runs/mine/discovery

      torchrun --nproc-per-node 4 -m denskit evaluate runs/oc20 id=val_id ood_ads=val_ood_ads
    """
    from denskit.runtime.device import use_deterministic_algorithms

    if deterministic:
        use_deterministic_algorithms()
    places = places_of(structures or [])
    files, data = ([], {}) if places else with_reading(structures or [])
    sets = named_sets(files)
    refuse(
        (split != "test" and sets, f"--split {split} is of the run's data, and would be ignored for other structures"),
        ((sigma or ratio) and not denoise, "--sigma and --ratio belong to --denoise"),
        ((hull or relaxed or resume) and not discovery, "--hull, --relaxed and --resume belong to --discovery"),
        ((kappa or reference) and not discovery, "--kappa and --reference belong to --discovery"),
        (bool(kappa) != bool(reference), "--kappa FILE (crystals) and --reference FOLDER (conductivities) go together"),
        (committee and (discovery or denoise), "--committee goes with neither --discovery nor --denoise"),
        (discovery and (sets or denoise or data), "--discovery takes its own file, no data.KEY=VALUE, no --denoise"),
        (discovery and (force or split != "test"), "--discovery takes no --split, and no --force; --resume continues"),
        (denoise and (len(sets) > 1 or data), "--denoise takes one file of structures at most, no data.KEY=VALUE"),
        (data and not sets, "data.KEY=VALUE says how a file is read; give the file, or leave it out"),
        (places and (denoise or discovery), f"data.{next(iter(places), '')} is not taken by --denoise and --discovery"),
    )
    if discovery:
        others: dict[str, Any] = {"hull": hull, "relaxed": relaxed, "kappa": kappa, "reference": reference}
        show_discovery(model, discovery, output, device=device, checkpoint=checkpoint, resume=resume, **others)
        return
    common: dict[str, Any] = {"split": split, "checkpoint": checkpoint, "device": device, "batch_size": batch_size}
    file = next(iter(sets.values()), None)
    if denoise:
        show_denoising(model, file, output, force=force, sigmas=sigma or (), ratios=ratio or (), **common)
        return
    named = len(sets) > 1 or files != [*sets.values()]
    models = [model, *(committee or [])]
    _judge(models, None if named else file, sets if named else {}, output, force=force, data=data or places, **common)


def _judge(
    models: list[Path],
    file: str | None,
    sets: dict[str, str],
    output: Path | None,
    *,
    force: bool,
    data: dict[str, Any],
    split: Literal["train", "valid", "test"],
    checkpoint: Literal["best", "last"] | None,
    device: str,
    batch_size: int,
) -> None:
    """Errors of energy, forces and stress: the table and its files."""
    from denskit.evaluation.evaluate import evaluate as evaluate_model
    from denskit.evaluation.evaluate import evaluate_splits
    from denskit.files import new_file, output_folder
    from denskit.runtime.processes import join_processes
    from denskit.runtime.progress import progress_bar

    written = _written(split, models[0], checkpoint, several=bool(sets))
    if output is not None:
        output_folder(output)
        for name in written:
            new_file(output / name, force=force)
    settings: dict[str, Any] = {"checkpoint": checkpoint, "batch_size": batch_size}
    settings["processes"] = join_processes(device)
    sources = _read(models, sets or ({} if file is None else {file: file}), data)
    folder = output or (models[0] if file is None and len(models) == 1 and models[0].is_dir() else None)
    with progress_bar(Console(stderr=True)) as bar:
        if speaks():  # the first of several processes
            settings["progress"] = bar
        if sets:
            finished: dict[str, dict[str, float]] = {}
            with _kept(finished, sets, folder and folder / written[0]):
                results = evaluate_splits(models, sources, keep=finished.update, **settings)
        else:
            places = None if file else data
            errors = evaluate_model(models, sources.get(file or ""), split=split, data=places, **settings)
            results = {Path(file).stem if file else split: errors}
    if not speaks():
        return
    give(errors=results)
    name = str(models[0]) if len(models) == 1 else f"mean of {', '.join(map(str, models))}"
    print_table(results, title=f"{name} on {', '.join(sets) or file or f'its {split} split'}")
    hints = {
        name: "; ".join(filter(None, (_force_unit_of(result) or _energies_of(result), _stress_unit_of(result))))
        for name, result in results.items()
        if (sets or file) and name != "mean"
    }
    for name, hint in hints.items():
        if hint:
            typer.echo(f"hint: {name}: {hint}" if len(hints) > 1 else f"hint: {hint}")
    if folder is not None:
        parity = {"file": file, "checkpoint": checkpoint, "device": device, "data": data}
        _write(results, folder, written, models, parity)


@contextmanager
def _kept(finished: dict[str, dict[str, float]], sets: dict[str, str], file: Path | None) -> Iterator[None]:
    """Where the block fails, the errors of finished sets are printed and written, and it is said how to go on."""
    try:
        yield
    except BaseException:  # Ctrl-C, too
        if finished and speaks():
            give(errors=finished)
            print_table(finished, title=f"finished: {', '.join(finished)}")
            if file is not None:
                write_json(file, finished)
            rest = [shlex.quote(f"{name}={path}") for name, path in sets.items() if name not in finished]
            place, output = (f"in {file}", ", with -o ANOTHER_FOLDER") if file else ("above", "")
            complain(
                f"Not all sets were judged; errors of {', '.join(finished)} are {place}. To go on, judge the others "
                f"alone{output}: {' '.join(rest)}"
            )
        raise


def _read(models: list[Path], sets: dict[str, str], data: dict[str, Any]) -> dict[str, Any]:
    """The structures of files by name; which fields and units were read goes to standard error."""
    from denskit.evaluation.judged_structures import read_structures

    read = {name: read_structures(models, path, data) for name, path in sets.items()}
    for message in (message for _, said in read.values() for message in said):
        if speaks():
            typer.echo(message, err=True)
    return {name: source for name, (source, _) in read.items()}


def _stress_unit_of(errors: dict[str, float]) -> str:
    """A hint where stresses are opposite to the predicted ones, or wrong by more than any of solids."""
    from denskit.data.config import STRESS_UNITS

    error, slope = errors.get("stress_mae_meV_per_A3", 0.0), abs(errors.get("stress_slope", 0.0))
    learned = errors.get("forces_cosine", 0.0) >= PARALLEL  # a poor model's stresses may have any sign
    if learned and errors.get("stress_cosine", 0.0) <= -PARALLEL:
        for unit, size in {"": 1.0, **STRESS_UNITS}.items():
            if size / FACTOR < slope < size * FACTOR:
                named = f" data.stress_unit={unit}" if unit else ""
                return (
                    f"predicted stresses are {slope:.3g} times those of the file, of the opposite sign: does the file "
                    f"have VASP's? data.stress_sign=compression{named} reads it, and denskit info FILE compares it "
                    "with the energies"
                )
    if not error >= STRANGE:
        return ""
    return (
        f"the stress error is {error / (1000 * GPA):.0f} GPa, more than most stresses of solids: is the file's in "
        "another unit or of the opposite sign? data.stress_unit=kbar data.stress_sign=compression reads VASP's"
    )


def _force_unit_of(errors: dict[str, float]) -> str:
    """A hint where forces are parallel to the predicted ones, and much smaller or larger."""
    slope, cosine = errors.get("forces_slope", 1.0), errors.get("forces_cosine", 0.0)
    if cosine < (TOLD if slope >= TENFOLD else PARALLEL) or not slope > 0 or 1 / FACTOR < slope < FACTOR:
        return ""
    return (
        f"predicted forces are {slope:.3g} times those of the file, and along them (cosine {cosine:.2f}): is the file "
        "in another unit? data.units=kcal/mol and others read it, and denskit info FILE names the unit"
    )


def _energies_of(errors: dict[str, float]) -> str:
    """A hint where nearly all of the energy error is one constant for each element, or to one side."""
    from denskit.tasks.energy_shift import in_words, mostly_shift, one_sided

    if (found := mostly_shift(errors)) is None:
        mean = one_sided(errors)
        return "" if mean is None else in_words(mean)
    slope = errors.get("forces_slope", 1.0)
    if not 1 / FACTOR < slope < FACTOR and errors.get("forces_cosine", 0.0) >= TOLD:  # in another unit constants differ
        return (
            f"predicted forces are {slope:.3g} times those of the file (least squares), and energies are far from its: "
            "is it in another unit? data.units=kcal/mol and others read it, and denskit info FILE names the unit"
        )
    whole, shifted = found
    return (
        f"energies differ by a constant for each element, as with other reference energies. Up to these, their "
        f"error is {shifted:.3g} meV/atom (energy_mae_shifted_meV_per_atom) and not {whole:.3g}; forces do not "
        "change. denskit info FILE tells whether units or signs are wrong"
    )


def _written(split: str, model: Path, checkpoint: str | None, *, several: bool) -> list[str]:
    """Names of the files: the table as JSON, and for the test structures a parity plot.

    Those about other weights of a run than its result, which ``compare`` and ``report`` show, have an ending.
    """
    from denskit.training.load_config import load_config

    names = [SETS] if several else ["test.json", PARITY] if split == "test" else [f"{split}.json"]
    if checkpoint is None or not model.is_dir() or load_config(model).training.final == checkpoint:
        return names
    return [f"{Path(name).stem}_{checkpoint}{Path(name).suffix}" for name in names]


def _write(
    results: dict[str, dict[str, float]], folder: Path, names: list[str], models: list[Path], parity: dict[str, Any]
) -> None:
    found = results if names[0].startswith(Path(SETS).stem) else next(iter(results.values()))
    write_json(folder / names[0], found)
    for name in names[1:]:
        from denskit.analysis.judged import predictions_of
        from denskit.analysis.plots import parity_figure, save_figure
        from denskit.analysis.report.errors import parity_panels

        title = " and ".join(model.name for model in models)
        panels = parity_panels(predictions_of(models, **parity))
        save_figure(parity_figure(panels, title=f"{title}, test structures"), folder / name)
    typer.echo(f"Wrote {' and '.join(names)} to {folder}")
