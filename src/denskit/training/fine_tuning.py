"""Fine-tuning: weights, elements, element references and scale of a trained model, adapted to new data.

Weights are only right in the model's own units, so the scale is always the trained model's.  So are the references of
elements that it knows, unless the settings ask for others (:mod:`denskit.training.energy_constants`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from denskit.data import LoadedData
from denskit.data.base import Source, evenly
from denskit.models import build_force_field
from denskit.models.base import ForceField
from denskit.models.composition_span import counts_of
from denskit.models.fitted_scaling import Statistics, describe
from denskit.models.model_file import load_model
from denskit.models.scaling import Scaling
from denskit.training.energy_constants import (
    ELSEWHERE,
    EnergyConstants,
    compositions_in,
    moved_energies,
    right_compositions,
)
from denskit.training.parts import freeze
from denskit.training.replay import old_structures
from denskit.training.run_folder import model_file
from denskit.training.settings import FixedScale, RunConfig
from denskit.training.trained_weights import start_new_elements, take_weights, weights_of, weights_of_heads

COMPARED = 64  # structures that are predicted before training
FITTED = 300  # the same where references are fitted to the residuals
HOLDERS = 20  # of each new element that are among them


def fine_tuned(
    config: RunConfig, data: LoadedData, measured: Source, heads: Mapping[str, str], device: torch.device
) -> tuple[ForceField, list[str]]:
    """The model of ``training.init_from`` adapted to new data, on ``device``; and messages for the log.

    ``measured``: training structures that constants are measured on.

    Raises ValueError for weights, units or references that do not fit; FileNotFoundError where there is no such model.
    """
    origin, training, references = f"{config.training.init_from}", config.training, data.references
    trained = load_model(model_file(origin))
    _check_units(config, trained.scaling, origin)
    found, known = Statistics(measured, data.isolated), trained.scaling.elements
    changed: dict[str, Any] = {"elements": [*known, *found.elements], "compositions": ()}
    changed["charges"] = _charges(trained.scaling, found)
    if config.model.stress == "strain":  # a derivative of the energy, whatever the unit of a head for it was
        changed["stress_scale"] = None
    scaling = Scaling(**{**trained.scaling.to_dict(), **changed})
    torch.manual_seed(config.seed)
    force_field = build_force_field(config.model, heads=dict(heads), scaling=scaling)
    force_field.to(getattr(torch, training.dtype))
    new = [z for z in found.elements if z not in known]
    messages = [
        take_weights(force_field, trained, origin, training.fresh_heads),
        *start_new_elements(force_field, new, known),
    ]
    force_field.new_elements = tuple(new)
    fresh = weights_of(force_field).keys() - weights_of(trained).keys()
    fresh |= weights_of_heads(force_field, training.fresh_heads)
    judged = [name for name in ("energy", "forces", "stress") if name in force_field.heads]
    force_field.fresh_outputs = tuple(name for name in judged if weights_of_heads(force_field, [name]) & fresh)
    if training.frozen:
        messages.append(freeze(force_field, training.frozen, fresh))

    force_field.to(device)
    constants = EnergyConstants(scaling)
    constants.take(references, found, training.scale)
    if references == "fit":
        constants.start_from_atoms(found)
    rare = {place for z in new for place in found.holders(z, HOLDERS).tolist()}
    constants.predict(force_field, measured, FITTED if new or references == "fit" else COMPARED, rare, config)
    fresh_energies = "energy" in training.fresh_heads  # of which neither labels nor earlier energies tell anything
    if references == "trained" and not fresh_energies and constants.are_elsewhere(new):
        references = "fit"
        constants.start_from_atoms(found)
        constants.predict(force_field, measured, FITTED, rare, config)
        messages.append(
            f"labels lie more than {ELSEWHERE:g} eV an atom from the model's energies, as total energies of another "
            "kind do, or those of a composition for which its references are not right: the references of the elements "
            "are corrected, as with data.references=fit"
        )
    if not isinstance(training.scale, FixedScale):
        messages += constants.share_shift(references, known, new, config.model)
    messages += constants.correct(references, found.elements, new, training.scale)
    earlier = counts_of(trained.scaling.compositions)
    if references == "fit" and training.replay is not None:
        replayed = compositions_in(evenly(old_structures(config)[0], FITTED))
        atoms = counts_of([{symbol: 1} for symbol in found.atoms])
        messages += constants.keep(replayed, np.concatenate([found.fitted, atoms]), trained.scaling)
        earlier = np.concatenate([earlier, replayed])
    scaling.compositions = right_compositions(trained.scaling, scaling, found, references, earlier)
    if float(scaling.energy_shift):
        scaling.set_binding({})
    if found.atoms:
        said = scaling.take_isolated(scaling.isolated_energies | found.atoms)
        if said.startswith("warning: ") and found.starts_from_atoms and not isinstance(references, dict):
            said += "; data.references=isolated takes the references from them"
        messages.append(said)
        constants.predict(force_field, measured, COMPARED, rare, config)  # broken bonds may have other energies now
    if not fresh_energies:
        messages += moved_energies(trained.scaling.to_dict(), scaling.to_dict(), origin)
        messages += constants.compare(new, references)
    return force_field, [*messages, describe(scaling, references if isinstance(references, str) else "given")]


def _check_units(config: RunConfig, scaling: Scaling, origin: str) -> None:
    """Raise ValueError where the weights would be used in units that are not theirs."""
    energy, force, scale = float(scaling.energy_scale), float(scaling.force_scale), config.training.scale
    if isinstance(scale, FixedScale) and not np.allclose(
        [scale.energy_scale, scale.force_scale], [energy, force], 1e-6, 0
    ):
        raise ValueError(
            f"training.scale has energy_scale={scale.energy_scale:g} and force_scale={scale.force_scale:g}, but the "
            f"weights of training.init_from={origin} are only right in units of {energy:g} eV and {force:g} eV/Å; set "
            "training.scale=trained"
        )
    if config.model.forces == "gradient" and not math.isclose(energy, force, rel_tol=1e-6):
        raise ValueError(
            f"training.init_from={origin} has forces of a head, in units of {force:g} eV/Å, and energies in units of "
            f"{energy:g} eV; model.forces=gradient needs one unit for both. Set model.forces=direct"
        )


def _charges(trained: Scaling, found: Statistics) -> list[float] | None:
    """Total charges of the structures of both trainings; None where those of one are not known."""
    if trained.charges is None or found.total_charges is None:
        return None
    both = {*trained.charges, *found.total_charges}
    silent = both and not (trained.charges and found.total_charges)
    return sorted(both | {0.0} if silent else both)
