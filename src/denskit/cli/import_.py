"""``denskit import``: a published checkpoint becomes a model file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from warnings import catch_warnings

import typer

from denskit.cli.options import Force
from denskit.cli.output import give
from denskit.runtime.progress import counted

if TYPE_CHECKING:
    from denskit.models.base import ForceField
    from denskit.models.config import ModelConfig
    from denskit.models.scaling import Scaling


def import_(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="Published checkpoint: Equiformer, EquiformerV2, EquiformerV3, eSCN, eSEN.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Model file to write.", show_default="CHECKPOINT.safetensors")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Equiformer: the npz it was trained on, for mean, deviation and elements.")
    ] = None,
    mean: Annotated[float | None, typer.Option(help="Mean energy (kcal/mol) that training subtracted.")] = None,
    std: Annotated[float | None, typer.Option(help="Standard deviation (kcal/mol) that it divided by.")] = None,
    elements: Annotated[str | None, typer.Option(help="Elements that it was trained on, such as C,H,O.")] = None,
    references: Annotated[
        Path | None, typer.Option(help="OC22: linear references that training subtracted (npz with coeff, or JSON).")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="YAML with the model's settings, published or Denskit's, or a preset, if the file has none."),
    ] = None,
    force: Force = False,
) -> None:
    """Import a published checkpoint, with the same energies, forces and noise.

    EquiformerV2, EquiformerV3, eSCN and eSEN (OCP and fairchem files) hold all that is needed.  MD17 files hold
    weights only; the normalisation comes from the training data, or is given.  Examples:

      denskit import eq2_dens_epochs_12_2M.pt

      denskit import aspirin.pth.tar -o aspirin.safetensors --data md17_aspirin.npz

      denskit import mine.pth.tar -o mine.safetensors --mean -406757.6 --std 5.9 --elements C,H,O

      denskit import mine.pth.tar --data md17_aspirin.npz --model equiformer_dens_L@2.yml
    """
    from denskit.files import new_file
    from denskit.models import MODELS
    from denskit.models.importing import import_checkpoint

    if checkpoint.suffix == ".safetensors":
        raise ValueError(f"{checkpoint} is no published checkpoint: a model file of Denskit is used as it is")
    output = output or Path(checkpoint.name.split(".")[0] + ".safetensors")
    new_file(output, inputs=[path for path in (checkpoint, data, references) if path is not None], force=force)
    scaling = None
    if data is not None and (mean, std, elements) == (None, None, None):
        scaling = _scaling_of(data)
    elif data is None and mean is not None and std is not None and elements is not None:
        scaling = _scaling(mean, std, elements)
    elif data is not None or mean is not None or std is not None:
        raise ValueError("give --data FILE, or all of --mean, --std and --elements")
    if scaling is not None and references is not None:
        raise ValueError("--references are of files with normalizers; beside --data or --mean they would be ignored")
    force_field = import_checkpoint(checkpoint, scaling=scaling, config=None if model is None else _settings(model))
    if scaling is not None and force_field.config.name != "equiformer":
        raise ValueError(
            f"{checkpoint} holds {force_field.config.name}: --data, --mean and --std are for Equiformer files of MD17, "
            "in kcal/mol; other files hold their normalizers"
        )
    importer = MODELS[force_field.config.name].importer
    if importer is not None and importer.unseen:
        used = ", ".join(f"{name}={getattr(force_field.config, name)}" for name in importer.unseen)
        typer.echo(f"Settings that weights do not show: {used}. --model FILE.yaml gives those of the training")
    if scaling is None:
        force_field.scaling = _changed(force_field.scaling, elements, references)
    _write(output, force_field, checkpoint)
    count = sum(parameter.numel() for parameter in force_field.parameters())
    give(output=output, model=force_field.config.name, parameters=count, heads=list(force_field.heads))
    typer.echo(
        f"Wrote {output}: {force_field.config.name}, {count:,} parameters, heads {', '.join(force_field.heads)}, "
        f"{counted(len(force_field.scaling.elements), 'element')}"
    )


def _write(output: Path, force_field: ForceField, checkpoint: Path) -> None:
    """Write the model file, if it can be read again: no numbers that are NaN, only elements that the model embeds."""
    from denskit.files import atomic_write
    from denskit.models.model_file import load_model, save_model
    from denskit.reading.budget import naming
    from denskit.runtime.warning import warn

    with atomic_write(output) as temporary:
        save_model(temporary, force_field, {"imported_from": checkpoint.name})
        with naming(checkpoint, "does not give a sound model"), catch_warnings(record=True) as told:
            load_model(temporary)
    for warning in told:
        warn(str(warning.message).replace(temporary.name, output.name))


def _settings(name: str) -> ModelConfig | dict[str, Any]:
    """The model's settings, ours or published, of a YAML file (of its section ``model``, if any) or of a preset."""
    from denskit.models import MODELS
    from denskit.presets import preset_text
    from denskit.reading.budget import naming
    from denskit.reading.documents import parse_yaml, read_yaml

    values = read_yaml(Path(name)) if Path(name).is_file() else parse_yaml(preset_text(name), f"preset {name}")
    values = values.get("model", values) if isinstance(values, dict) else values
    if isinstance(values, dict) and "irreps_node_embedding" in values:
        return values
    kind = values.get("name", "equiformer") if isinstance(values, dict) else values
    if not isinstance(kind, str) or kind not in MODELS:
        raise ValueError(f"{name}: no model {kind!r:.99}; there are {', '.join(MODELS)}")
    with naming(name, "does not describe a model"):
        return MODELS[kind].config.model_validate(values)


def _changed(scaling: Scaling, elements: str | None, references: Path | None) -> Scaling:
    """The checkpoint's own scaling, with elements and references that it does not hold."""
    from denskit.data.references import linear_references
    from denskit.models.scaling import Scaling

    values = scaling.to_dict()
    if references is not None:
        values["references"], messages = linear_references(references)
        values["elements"] = _numbers(",".join(values["references"]), f"{references}")
        typer.echo("\n".join(messages))
    if elements is not None:
        values["elements"] = _numbers(elements)
    return Scaling.from_dict(values)


def _scaling_of(data: Path) -> Scaling:
    """The published training's normalisation, from the published split of its data."""
    from denskit.data import DataConfig, load_data
    from denskit.models.fitted_scaling import fit_scaling

    loaded = load_data(DataConfig(name="md17", path=str(data), references="mean"), seed=1)
    scaling, messages = fit_scaling(loaded.train, references="mean", scale="energy_std", gradient_forces=True)
    typer.echo("\n".join(loaded.messages + messages))
    return scaling


def _scaling(mean: float, std: float, elements: str) -> Scaling:
    from denskit.models.scaling import Scaling
    from denskit.units import KCAL_PER_MOL

    scale = std * KCAL_PER_MOL  # one for all, since forces are gradients
    numbers, shift = _numbers(elements), mean * KCAL_PER_MOL
    return Scaling(elements=numbers, energy_shift=shift, energy_scale=scale, force_scale=scale)


def _numbers(elements: str, origin: str = "--elements") -> list[int]:
    from ase.data import atomic_numbers

    unknown = [symbol for symbol in elements.split(",") if not atomic_numbers.get(symbol)]  # X has the number 0
    if unknown:
        advice = "write C,H,O" if origin == "--elements" else "wanted are the energies of elements"
        raise ValueError(f"{origin}: {unknown[0]!r} is no element; {advice}")
    return [atomic_numbers[symbol] for symbol in elements.split(",")]
