"""Errors of a model on labelled structures, and predictions.  A model never sees a label here."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import ase
import numpy as np

from denskit.data.base import Source
from denskit.data.frames import bare, exact_extxyz, frames_of, structures_of
from denskit.data.inspection.labels import OF_MODEL
from denskit.data.records import numbered_in
from denskit.data.structure_arrays import StructureArrays, numbered
from denskit.data.writing import Originals, predicted
from denskit.evaluation.judged_structures import Models, Structures, source_of
from denskit.evaluation.unseen import require_unseen, warnings_for_split
from denskit.files import atomic_write, new_frames_file
from denskit.models.base import ForceField
from denskit.models.committee import Committee
from denskit.models.model_file import Model, load_model, models_of
from denskit.models.prediction import Predictor, predict_each, require_known_elements
from denskit.runtime.device import choose_device
from denskit.runtime.processes import Processes
from denskit.runtime.progress import Report, unreported
from denskit.runtime.warning import warn
from denskit.settings import require_known
from denskit.tasks.energy_shift import EnergyShift
from denskit.tasks.metrics import measure
from denskit.training.reading_settings import Reading
from denskit.training.run_folder import model_file

_LOG = logging.getLogger(__name__)
Split = Literal["train", "valid", "test"]
Kept = Literal["best", "last"]  # which weights of a run folder


def evaluate(
    model: Models,
    source: Structures | None = None,
    *,
    split: Split = "test",
    checkpoint: Kept | None = None,
    device: str = "auto",
    batch_size: int = 32,
    processes: Processes | None = None,
    data: Reading = None,
    progress: Report = unreported,
) -> dict[str, float]:
    """Errors of a model, named with their units (``forces_mae_meV_per_A``; see ``tasks/metrics.py``).

    Args:
        model: a force field, a model file, or a run folder; several: the mean of a committee.
        source: labelled structures, ``ase.Atoms`` or a file of them, read with the keys and units of the training data;
            None: the ``split`` of the (first) run's own data.
        split: part of the run's data; training itself never reads "test".
        checkpoint: "best" or "last" of a run folder; None: the run's choice (``training.final``).
        device: "auto", "cpu", "cuda" or "cuda:N"; ignored for a force field, which stays where it is.
        batch_size: structures evaluated at once.
        processes: the processes that share the work, each of which calls this; their device is used; None: this alone.
        data: how a file is read where it differs from the training data, ``{"units": "kcal/mol"}``; without ``source``
            the places to which the run's files have moved, ``{"path": "new/place.db"}``.
        progress: called after each batch with the structures done, the name of their file, and their number.

    Raises ValueError for structures without any label, where a run has no such split, and where another run of a
    committee has trained on it.
    """
    require_known("split", split, get_args(Split))
    predictor = load_predictor(model, checkpoint, str(processes.device) if processes else device)
    structures = source_of(model, source, split, data)
    if source is None and split != "train":
        require_unseen(models_of(model), split, structures)
        if processes is None or processes.is_first:
            for said in warnings_for_split(models_of(model), split, structures):
                warn(said.removeprefix("warning: "))
    return _errors(predictor, structures, batch_size, processes, progress)


def _errors(
    force_field: Predictor, structures: Source, batch_size: int, processes: Processes | None, progress: Report
) -> dict[str, float]:
    require_known_elements(force_field, structures)
    shift = EnergyShift()
    result = measure(
        force_field, structures, batch_size=batch_size, processes=processes, shift=shift, progress=progress
    ).summary()
    result |= shift.summary(processes)
    if not result:
        raise ValueError(f"{structures.name}: no energies, forces or stresses to compare with{_fields_of(structures)}")
    if processes is None or processes.is_first:
        for message in [*_partly_labelled(structures, result), *_of_model(structures)]:
            warn(message)
    return result


def evaluate_splits(
    model: Models,
    splits: Mapping[str, Structures],
    *,
    checkpoint: Kept | None = None,
    device: str = "auto",
    batch_size: int = 32,
    processes: Processes | None = None,
    data: Reading = None,
    progress: Report = unreported,
    keep: Callable[[dict[str, dict[str, float]]], None] | None = None,
) -> dict[str, dict[str, float]]:
    """Errors of a model on several sets of structures by name; where there are several, "mean" comes last.

    As in papers on OC20 and OC22 each set counts once in the mean, whatever its size; it has the metrics that all sets
    have.  ``keep`` is called with the errors of the finished sets after each set, since a later one may fail.  Other
    arguments and errors as :func:`evaluate`.
    """
    if "mean" in splits:
        raise ValueError("a split named 'mean' would hide the mean of the splits; give it another name")
    predictor = load_predictor(model, checkpoint, str(processes.device) if processes else device)
    sources = {name: source_of(model, source, name, data) for name, source in splits.items()}  # all, before the work
    results: dict[str, dict[str, float]] = {}
    for name, source in sources.items():
        results[name] = _errors(predictor, source, batch_size, processes, progress)
        if keep is not None:
            keep(dict(results))
    if len(results) < 2:
        return results
    shared = [name for name in next(iter(results.values())) if all(name in result for result in results.values())]
    mean = {name: sum(result[name] for result in results.values()) / len(results) for name in shared}
    return {**results, "mean": mean}


@dataclass(frozen=True, eq=False)  # arrays have neither one truth value nor a hash
class Predictions:
    """Predictions for n structures, in the order given."""

    energy: np.ndarray  # [n] eV
    forces: list[np.ndarray]  # of each structure [atoms, 3] eV/Å
    stress: np.ndarray | None  # [n, 3, 3] eV/Å^3, ASE's sign; NaN without periodicity in 3D; None: the model has none
    energy_std: np.ndarray | None = None  # [n] eV, standard deviation over the models of a committee; None: one model
    forces_std: list[np.ndarray] | None = None  # of each structure [atoms, 3] eV/Å


def predict(
    model: Models, structures: Structures | ase.Atoms, *, device: str = "auto", batch_size: int = 32
) -> Predictions:
    """Energies, forces and, if the model has it, stress of structures, as arrays; labels are not looked at.

    ``structures``: ``ase.Atoms``, a sequence of them, a file, or a source of :func:`denskit.read`.  Other arguments as
    :func:`evaluate`.  Raises FileNotFoundError, and ValueError for elements that the model does not know.
    """
    force_field = load_predictor(model, None, device)
    if isinstance(structures, ase.Atoms):
        structures = [structures]
    if not isinstance(structures, Source | str | os.PathLike):
        structures = structures_of([bare(atoms) for atoms in frames_of(structures)])[0].checked()[0]
    found = [results for _, results in predict_each(force_field, source_of(model, structures, ""), batch_size)]
    unknown, committee = np.full((3, 3), np.nan), len(models_of(model)) > 1
    return Predictions(
        energy=np.array([results["energy"] for results in found]),
        forces=[results["forces"] for results in found],
        stress=np.stack([results.get("stress", unknown) for results in found])
        if "stress" in force_field.physical_outputs()
        else None,
        energy_std=np.array([results["energy_std"] for results in found]) if committee else None,
        forces_std=[results["forces_std"] for results in found] if committee else None,
    )


def predict_file(
    model: Models,
    file: str | Path,
    output: str | Path,
    *,
    device: str = "auto",
    batch_size: int = 32,
    data: Reading = None,
    force: bool = False,
    progress: Report = unreported,
) -> int:
    """Predict a file's structures and write them as extxyz with energy, forces and (if the model has it) stress.

    Of several models the mean is written, and ``energy_std`` and ``forces_std`` (eV, eV/Å) beside it.  All fields of
    the file are kept, its labels as ``REF_energy``, ``REF_forces``, ``REF_stress``.  Returns the number of structures.
    Raises ValueError for another format, and where the output is the input, or exists (and not ``force``).
    """
    output = new_frames_file(output, inputs=[file], force=force)
    force_field = load_predictor(model, None, device)
    source = source_of(model, file, "", data)
    original = Originals(file, source)
    with atomic_write(output) as temporary, temporary.open("w", encoding="utf-8") as frames:
        found = predict_each(force_field, source, batch_size, progress)
        frames.writelines(exact_extxyz(predicted(original(system), system, results) for system, results in found))
    return len(source)


def load_predictor(model: Models, checkpoint: Kept | None, device: str) -> Predictor:
    """One force field, or a committee.  Raises ValueError for members that do not go together."""
    given = models_of(model)
    loaded = [load_force_field(member, checkpoint, device) for member in given]
    return loaded[0] if len(loaded) == 1 else Committee(loaded, given)


def load_force_field(model: Model, checkpoint: Kept | None, device: str) -> ForceField:
    """The force field, as it is, or that of a model file or run folder, in evaluation mode."""
    if isinstance(model, ForceField):
        return model
    path = model_file(model, checkpoint)
    force_field = load_model(path, device=choose_device(device))
    place = next(force_field.parameters()).device
    kernels = force_field.backbone.choose_kernels(force_field.execution, place)
    _LOG.info("%s: %s on %s, kernels %s", path, force_field.config.name, place, kernels)
    return force_field


def _fields_of(source: Source) -> str:
    """Advice where the labels of structures in memory were not found."""
    if not isinstance(source, StructureArrays) or not source.keys:
        return ""
    return f". Fields of its frames: {', '.join(source.keys)}. Say which are labels: data.energy_key, data.forces_key"


def _partly_labelled(source: Source, errors: Mapping[str, float]) -> list[str]:
    """Judged labels that some structures in memory lack, or that are not finite there."""
    if not isinstance(source, StructureArrays):
        return []
    return [
        f"{source.name}: {(~has).sum()} of {len(source)} frames have no {label} that can be used ({numbered(~has)}); "
        "its errors are of the others"
        for label, has in source.has.items()
        if not has.all() and any(name.startswith(label) for name in errors)
    ]


def _of_model(source: Source) -> list[str]:
    """Judged labels that are a model's own, where files are read at once: only their fields tell."""
    frames = [source[int(place)].index for place in source.places_of("of_model")]
    means = "the errors tell how far two models are apart, or a model from itself, and not how far from the reference"
    return [f"{source.name}: {OF_MODEL} ({numbered_in(source, frames, counted=False)}): {means}"] if frames else []
