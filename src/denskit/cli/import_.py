"""``denskit import``: a published checkpoint becomes a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def import_(
    checkpoint: Annotated[Path, typer.Argument(help="Published Equiformer checkpoint (MD17).", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.", show_default=False)],
    data: Annotated[
        Path | None, typer.Option(help="The npz it was trained on: mean, deviation and elements of its 950 frames.")
    ] = None,
    mean: Annotated[float | None, typer.Option(help="Mean energy that training subtracted.")] = None,
    std: Annotated[float | None, typer.Option(help="Standard deviation that it divided by.")] = None,
    elements: Annotated[str | None, typer.Option(help="Elements that it was trained on, such as C,H,O.")] = None,
    units: Annotated[Literal["kcal/mol", "eV"], typer.Option(help="Unit of its training.")] = "kcal/mol",
) -> None:
    """Import a published Equiformer checkpoint, with the same energies, forces and noise.

    Published files hold weights only; the normalisation comes from the training data, or is given.

    Examples:

      denskit import aspirin.pth.tar -o aspirin.safetensors --data md17_aspirin.npz

      denskit import mine.pth.tar -o mine.safetensors --mean -406757.6 --std 5.9 --elements C,H,O
    """
    from ase.data import atomic_numbers

    from denskit.data import DataConfig, load_data
    from denskit.models import build_force_field
    from denskit.models.model_file import save_model
    from denskit.models.published import convert_equiformer, detect_equiformer, read_checkpoint
    from denskit.models.scaling import Scaling, fit_scaling
    from denskit.units import EV, KCAL_PER_MOL

    unit = {"kcal/mol": KCAL_PER_MOL, "eV": EV}[units]
    state = read_checkpoint(checkpoint)
    config = detect_equiformer(state).model_copy(update={"force_input_scale": 1 / unit})
    weights, heads = convert_equiformer(state, config)
    if data is not None:
        if (mean, std, elements) != (None, None, None):
            raise ValueError("--data says mean, deviation and elements; leave --mean, --std and --elements out")
        loaded = load_data(DataConfig(name="md17", path=str(data), references="mean"), seed=1)
        scaling, messages = fit_scaling(loaded.train, references="mean", scale="energy_std", gradient_forces=True)
        typer.echo("\n".join(loaded.messages + messages))
    elif mean is None or std is None or elements is None:
        raise ValueError("the checkpoint holds weights only: give --data FILE, or all of --mean, --std and --elements")
    else:
        unknown = [symbol for symbol in elements.split(",") if symbol not in atomic_numbers]
        if unknown:
            raise ValueError(f"--elements: {unknown[0]!r} is no element; write C,H,O")
        numbers = [atomic_numbers[symbol] for symbol in elements.split(",")]
        scale = {f"{name}_scale": std * unit for name in ("energy", "force", "stress")}
        scaling = Scaling(elements=numbers, energy_shift=mean * unit, **scale)
    force_field = build_force_field(config, heads=heads, scaling=scaling)
    force_field.load_state_dict(weights | {f"scaling.{name}": value for name, value in scaling.state_dict().items()})
    save_model(output, force_field, {"imported_from": checkpoint.name})
    count = sum(parameter.numel() for parameter in force_field.parameters())
    typer.echo(f"Wrote {output}: Equiformer, L_max = {config.l_max}, {count:,} parameters, heads {', '.join(heads) or 'none'}")
