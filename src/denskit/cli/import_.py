"""``denskit import``: a published checkpoint becomes a model file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from denskit.models.scaling import Scaling


def import_(
    checkpoint: Annotated[Path, typer.Argument(help="Published Equiformer checkpoint (MD17).", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.", show_default=False)],
    data: Annotated[
        Path | None, typer.Option(help="The npz it was trained on: mean, deviation and elements of its 950 frames.")
    ] = None,
    mean: Annotated[float | None, typer.Option(help="Mean energy (kcal/mol) that training subtracted.")] = None,
    std: Annotated[float | None, typer.Option(help="Standard deviation (kcal/mol) that it divided by.")] = None,
    elements: Annotated[str | None, typer.Option(help="Elements that it was trained on, such as C,H,O.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="YAML with the model's settings, where its sizes are not the published ones.")
    ] = None,
) -> None:
    """Import a published Equiformer checkpoint, with the same energies, forces and noise.

    Published files hold weights only; the normalisation comes from the training data, or is given.  Examples:

      denskit import aspirin.pth.tar -o aspirin.safetensors --data md17_aspirin.npz

      denskit import mine.pth.tar -o mine.safetensors --mean -406757.6 --std 5.9 --elements C,H,O
    """
    import yaml

    from denskit.models.equiformer import EquiformerConfig
    from denskit.models.model_file import save_model
    from denskit.models.published import import_equiformer

    try:
        config = None if model is None else EquiformerConfig.model_validate(yaml.safe_load(model.read_text("utf-8")))
    except yaml.YAMLError as error:
        raise ValueError(f"{model}: no valid YAML: {error}") from None
    if data is not None and (mean, std, elements) == (None, None, None):
        scaling = _scaling_of(data)
    elif data is None and mean is not None and std is not None and elements is not None:
        scaling = _scaling(mean, std, elements)
    else:
        raise ValueError("the checkpoint holds weights only: give --data FILE, or all of --mean, --std and --elements")
    force_field = import_equiformer(checkpoint, scaling, config)
    save_model(output, force_field, {"imported_from": checkpoint.name})
    count = sum(parameter.numel() for parameter in force_field.parameters())
    # with DeNS, the published force embedding has a scalar bias; it is part of the atom embedding's bias here
    folded = force_field.config.channels[0] if "noise" in force_field.heads else 0  # type: ignore[attr-defined]
    sizes = f"{count:,} parameters" + (f" (published: {count + folded:,})" if folded else "")
    typer.echo(f"Wrote {output}: {force_field.config.name}, {sizes}, heads {', '.join(force_field.heads)}")


def _scaling_of(data: Path) -> Scaling:
    """The published training's normalisation, from the published split of its data."""
    from denskit.data import DataConfig, load_data
    from denskit.models.scaling import fit_scaling

    loaded = load_data(DataConfig(name="md17", path=str(data), references="mean"), seed=1)
    frames = (loaded.train[index] for index in range(len(loaded.train)))
    scaling, messages = fit_scaling(frames, references="mean", scale="energy_std", gradient_forces=True)
    typer.echo("\n".join(loaded.messages + messages))
    return scaling


def _scaling(mean: float, std: float, elements: str) -> Scaling:
    from ase.data import atomic_numbers

    from denskit.models.scaling import Scaling
    from denskit.units import KCAL_PER_MOL

    unknown = [symbol for symbol in elements.split(",") if symbol not in atomic_numbers]
    if unknown:
        raise ValueError(f"--elements: {unknown[0]!r} is no element; write C,H,O")
    scale = std * KCAL_PER_MOL  # one for all, since forces are gradients
    numbers = [atomic_numbers[symbol] for symbol in elements.split(",")]
    shift = mean * KCAL_PER_MOL
    return Scaling(elements=numbers, energy_shift=shift, energy_scale=scale, force_scale=scale, stress_scale=scale)
