"""``denskit evaluate``: errors of a run or a model on structures that training did not see."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from denskit.cli.denoising import show_denoising
from denskit.cli.options import Deterministic, Device, Fixed, Force
from denskit.cli.sets import named_sets, print_table
from denskit.files import write_json

SETS, PARITY = "sets.json", "parity.png"
Sigmas = Annotated[
    list[float] | None, typer.Option(help="Of --denoise, Å, several times; default: around the run's own.")
]
Ratios = Annotated[
    list[float] | None, typer.Option(help="Corruption ratio of --denoise, several times; default: from the run's own.")
]


def evaluate(
    model: Annotated[Path, typer.Argument(help="Run folder or model file.", metavar="RUN|MODEL", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="data.test=FILE: other structures than the run's.", metavar="[data.test=FILE]"),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PATH, several times: sets of structures, and their mean.", show_default=False),
    ] = None,
    split: Annotated[Literal["train", "valid", "test"], typer.Option(help="Part of the run's own data.")] = "test",
    checkpoint: Annotated[
        Literal["best", "last"] | None, typer.Option(help="Of a run folder; default: what the run chose.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for SPLIT.json and parity.png; default: the run folder."),
    ] = None,
    device: Device = "auto",
    batch_size: Annotated[int, typer.Option(help="Structures at a time; of large ones fewer.", min=1)] = 32,
    fixed: Fixed = None,
    deterministic: Deterministic = False,
    stability: Annotated[
        float | None,
        typer.Option(help="Also ps of MD17's stability protocol, judged by the same structures; published: 300."),
    ] = None,
    denoise: Annotated[
        bool, typer.Option("--denoise", help="Instead: how well a run with task=dens recovers noise (a diagnostic).")
    ] = False,
    sigma: Sigmas = None,
    ratio: Ratios = None,
    force: Force = False,
) -> None:
    """Judge a model: energy, force and stress errors, in a table and (for a run) in test.json and parity.png.

    Examples:

      denskit evaluate runs/mine

      denskit evaluate runs/mine/model.safetensors data.test=other.extxyz

      denskit evaluate runs/ethanol --stability 300

      denskit evaluate runs/ethanol --denoise --sigma 0.02 --sigma 0.05

      torchrun --nproc-per-node 4 -m denskit evaluate runs/mine --data id=val_id --data ood_ads=val_ood_ads
    """
    from denskit.runtime.determinism import use_deterministic_algorithms

    if deterministic:
        use_deterministic_algorithms()
    file, sets = _structures(overrides or [], data or [], split)
    if stability is not None and (sets or not (output or model.is_dir())):
        raise ValueError("--stability wants one set of structures, of one molecule, and a run folder or --output")
    if (sigma or ratio) and not denoise:
        raise ValueError("--sigma and --ratio belong to --denoise; without it they would be ignored")
    common: dict[str, Any] = {"split": split, "checkpoint": checkpoint, "device": device, "batch_size": batch_size}
    if denoise:
        _check_alone(data=sets, stability=stability, fixed=fixed)
        show_denoising(model, file, output, force=force, sigmas=sigma or (), ratios=ratio or (), **common)
        return
    _judge(model, file, sets, output, stability, force=force, fixed=fixed, **common)


def _judge(
    model: Path,
    file: str | None,
    sets: dict[str, str],
    output: Path | None,
    stability: float | None,
    *,
    force: bool,
    fixed: Literal["file", "tags", "none"] | None,
    split: Literal["train", "valid", "test"],
    checkpoint: Literal["best", "last"] | None,
    device: str,
    batch_size: int,
) -> None:
    """Errors of energy, forces and stress: the table and its files."""
    from denskit.evaluation.evaluate import evaluate as evaluate_model
    from denskit.evaluation.evaluate import evaluate_splits
    from denskit.files import new_file
    from denskit.runtime.processes import join_processes

    written = _written(split, several=bool(sets))
    if output is not None:
        for name in written:
            new_file(output / name, force=force)
    settings: dict[str, Any] = {"checkpoint": checkpoint, "batch_size": batch_size, "fixed": fixed}
    settings["processes"] = join_processes(device)
    if sets:
        results = evaluate_splits(model, sets, **settings)
    else:
        results = {"error": evaluate_model(model, file, split=split, **settings)}
    if os.environ.get("RANK", "0") != "0":  # of torchrun's processes one speaks
        return
    if stability is not None:
        from denskit.cli.stability import stability_measures

        folder = (output or model) / "stability"
        results["error"] |= stability_measures(model, file, split, checkpoint, stability, folder, device)
    print_table(results, title=f"{model} on {', '.join(sets) or file or f'its {split} split'}")
    if output is None and (file is not None or not model.is_dir()):
        return
    parity = {"file": file, "checkpoint": checkpoint, "device": device, "fixed": fixed}
    _write(results, output or model, written, model, parity)


def _structures(overrides: list[str], data: list[str], split: str) -> tuple[str | None, dict[str, str]]:
    """The file of data.test=FILE, or the sets of --data.  Raises ValueError where one of them would be ignored."""
    file, sets = _test_file(overrides), named_sets(data)
    if split != "test" and (file is not None or sets):
        raise ValueError(f"--split {split} is part of the run's data; with other structures given it would be ignored")
    if file is not None and sets:
        raise ValueError(f"give data.test={file} or --data, not both")
    return file, sets


def _check_alone(**others: Any) -> None:
    given = [f"--{name}" for name, value in others.items() if value]
    if given:
        raise ValueError(f"--denoise is a measurement of its own; run it without {' and '.join(given)}")


def _written(split: str, *, several: bool) -> list[str]:
    """Names of the files: the table as JSON, and for the test structures a parity plot."""
    return [SETS] if several else ["test.json", PARITY] if split == "test" else [f"{split}.json"]


def _write(
    results: dict[str, dict[str, float]], folder: Path, names: list[str], model: Path, parity: dict[str, Any]
) -> None:
    found = results if names == [SETS] else results["error"]
    write_json(folder / names[0], found)
    if PARITY in names:
        from denskit.analysis.plots import plot_parity
        from denskit.analysis.predictions import predictions_of

        pairs = predictions_of(model, **parity)
        plot_parity(pairs.energy, pairs.forces, folder / PARITY, title=f"{model.name}, test structures")
    typer.echo(f"Wrote {' and '.join(names)} to {folder}")


def _test_file(overrides: list[str]) -> str | None:
    for override in overrides:
        if not override.startswith("data.test="):
            raise ValueError(f"evaluate takes data.test=FILE, not {override!r}; the rest comes from the run")
    return overrides[-1].removeprefix("data.test=") if overrides else None
