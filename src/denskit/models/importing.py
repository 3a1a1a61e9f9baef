"""Import of published checkpoints as force fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ase.data import atomic_numbers, chemical_symbols

from denskit.batch import MAX_ATOMIC_NUMBER
from denskit.models import MODELS
from denskit.models.base import ForceField
from denskit.models.config import ModelConfig
from denskit.models.published_checkpoint import Importer, PublishedCheckpoint, read_checkpoint
from denskit.models.scaling import Scaling
from denskit.models.weights import with_weights
from denskit.reading.budget import naming
from denskit.runtime.warning import warn

# metals and non-metals of OC20's catalysts and adsorbates
OC20_ELEMENTS = tuple(
    atomic_numbers[symbol]
    for symbol in (
        "H B C N O Na Al Si P S Cl K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In "
        "Sn Sb Te Cs Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi"
    ).split()
)
OC20_DEVIATION = 2.887317180633545  # eV: the published deviation of OC20's referenced energies
_TOLD = 12  # settings in an error
LARGEST_REFERENCE = 1000.0  # eV: published tables hold numbers up to 5.8e10 for elements that their data did not have


def import_checkpoint(
    path: str | Path, *, scaling: Scaling | None = None, config: ModelConfig | Mapping[str, Any] | None = None
) -> ForceField:
    """A force field, in evaluation mode, from a published checkpoint.

    Args:
        path: of Equiformer (MD17), EquiformerV2, EquiformerV3, eSCN or eSEN (OCP, fairchem 1), with or without DeNS.
        scaling: units of the model; default: those in the file.  Equiformer's files have none; its units are mean and
            standard deviation of the energies of the training frames, and their elements
            (:func:`denskit.models.fitted_scaling.fit_scaling` with references="mean", scale="energy_std").
        config: the architecture, or the published settings of the model (section ``model`` of its YAML); default: read
            from the file, for Equiformer from the shapes of its tensors, which do not show ``rescale_degree``.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Not a checkpoint of these models, another architecture, or an incomplete file.
    """
    checkpoint = read_checkpoint(path)
    known = {name: entry.importer for name, entry in MODELS.items() if entry.importer is not None}
    found = next((item for item in known.items() if item[1].mark in checkpoint.state), None)
    if found is None:
        raise ValueError(
            f"{path}: {len(checkpoint.state)} tensors of none of the models that Denskit imports: {', '.join(known)}"
        )
    name, importer = found
    if scaling is None and checkpoint.normalizers is None:
        missing = f"{path} holds weights only: give --data FILE, or all of --mean, --std and --elements"
        if name != "equiformer":
            missing = (
                f"{path} holds weights of {name} without their normalizers, so energies and forces are not known: give "
                "the whole checkpoint, or the scaling in eV from Python: import_checkpoint(path, scaling=Scaling(...))"
            )
        raise ValueError(missing)
    if isinstance(config, Mapping):
        checkpoint, config = replace(checkpoint, model=dict(config)), None
    given = config
    with naming(path, "does not say its settings as published"):
        config = importer.config(checkpoint) if config is None else config
    if config.name != name:
        raise ValueError(f"{path} holds {name}; the settings given are those of {config.name}")
    config = config.model_copy(update={"force_input_scale": importer.force_input_scale})
    try:
        with naming(path, "does not fit its settings"):
            scaling = scaling_of(checkpoint, config) if scaling is None else scaling
            weights, heads = importer.convert(checkpoint.state, config)
        return with_weights(weights, config=config, heads=heads, scaling=scaling, path=path)
    except ValueError as error:
        if given is not None and (others := _other_settings(config, importer, checkpoint, path)):
            raise ValueError(f"{path} does not fit the settings given: {others}") from error
        raise


def _other_settings(given: ModelConfig, importer: Importer, checkpoint: PublishedCheckpoint, path: str | Path) -> str:
    """``num_layers=12 (2 in the file), ...``: where settings differ from the file's own; empty where it has none."""
    try:
        with naming(path, "does not say its settings as published"):
            own = importer.config(checkpoint)
    except ValueError:
        return ""
    differ = {name: value for name, value in given if name != "force_input_scale" and value != getattr(own, name)}
    told = [f"{name}={value} ({getattr(own, name)} in the file)" for name, value in differ.items()]
    return ", ".join(told[:_TOLD]) + (f" and {len(told) - _TOLD} more" if len(told) > _TOLD else "")


def scaling_of(checkpoint: PublishedCheckpoint, config: ModelConfig) -> Scaling:
    """The scaling of a checkpoint of OCP or fairchem.

    The file does not list the elements of the training data.  They are the elements with a reference energy, or those
    of OC20 where the normalisers are OC20's, else all elements with an embedding.  What has no normaliser was trained
    in eV, eV/Å or eV/Å^3.

    Raises:
        ValueError: The stress has a mean, or forces or stress of a model with gradient forces are in another unit than
            the energy that they are derivatives of; or a normaliser is no finite number, or not above zero.
    """
    assert checkpoint.normalizers is not None, "checked by import_checkpoint"
    (mean, energy), (_, forces), (stress_mean, stress) = (
        checkpoint.normalizers.get(name, (0.0, 1.0)) for name in ("energy", "forces", "stress")
    )
    for name, (average, deviation) in checkpoint.normalizers.items():
        if not (math.isfinite(average) and 0 < deviation < math.inf):
            raise ValueError(f"the normaliser of {name} has the mean {average:g} and the deviation {deviation:g}")
    has_stress = config.stress != "none"
    if has_stress and stress_mean != 0:
        raise ValueError(f"the stress' normaliser has the mean {stress_mean}; only 0 is meaningful")
    same = [math.isclose(other, energy, rel_tol=1e-6) for other in (forces, stress)[: 1 + has_stress]]
    if config.forces == "gradient" and not all(same):
        told = f", of stresses by {stress:g}" if has_stress else ""
        raise ValueError(
            f"its normalisers divide energies by {energy:g}, forces by {forces:g}{told}; with gradient forces they "
            "must be equal, or forces and stress would not be derivatives of the energy"
        )
    references = {}
    elements: tuple[int, ...] = tuple(range(1, min(config.num_elements, MAX_ATOMIC_NUMBER + 1)))
    if checkpoint.references is not None:
        table = list(enumerate(checkpoint.references.tolist()))
        if lost := [chemical_symbols[z] for z, value in table[1 : MAX_ATOMIC_NUMBER + 1] if math.isnan(value)]:
            warn(
                f"the checkpoint's reference energy of {' '.join(lost)} is NaN: the model does not know these elements"
            )
        references = {z: value for z, value in table if z > 0 and 0 < abs(value) < LARGEST_REFERENCE}
        elements = tuple(z for z in elements if z in references)
    elif abs(energy - OC20_DEVIATION) < 1e-6:
        elements = OC20_ELEMENTS
    return Scaling(
        elements=elements,
        references={chemical_symbols[z]: value for z, value in references.items() if z in elements},
        energy_shift=mean,
        energy_scale=energy,
        force_scale=forces,
        stress_scale=stress if has_stress else None,
    )
