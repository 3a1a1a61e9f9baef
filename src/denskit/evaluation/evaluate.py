"""Errors of a model on labelled structures, and predictions.  A model never sees a label here."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import ase
import numpy as np

from denskit.data import LoadedData, load_data
from denskit.data.base import Source
from denskit.data.config import DataConfig
from denskit.data.frames import bare, exact_extxyz, frames_of, structures_of
from denskit.data.inspection.labels import OF_MODEL
from denskit.data.loading import read_file, read_files, without_isolated
from denskit.data.overlaps import geometry_warnings
from denskit.data.readers.folders import read_given
from denskit.data.readers.formats import is_there, path_of, require_keys
from denskit.data.records import numbered_in
from denskit.data.splits import PARTS, AnotherFileError
from denskit.data.structure_arrays import StructureArrays, numbered
from denskit.data.writing import Originals, predicted
from denskit.evaluation.unseen import require_unseen, warnings_for_file, warnings_for_split
from denskit.files import atomic_write, new_frames_file
from denskit.models.base import ForceField
from denskit.models.committee import Committee
from denskit.models.model_file import Model, load_model, models_of, read_header
from denskit.models.prediction import Predictor, predict_each, require_known_elements
from denskit.reading.remote import address_of
from denskit.runtime.device import choose_device
from denskit.runtime.processes import Processes
from denskit.runtime.progress import Report, unreported
from denskit.runtime.warning import warn
from denskit.settings import require_known
from denskit.tasks.energy_shift import EnergyShift
from denskit.tasks.metrics import measure
from denskit.training.inputs import contents
from denskit.training.inputs import structures_of as files_of
from denskit.training.load_config import load_config
from denskit.training.reading_settings import Reading, reading_as_trained, reading_of
from denskit.training.run_folder import RunFolder, model_file
from denskit.training.settings import RunConfig

_LOG = logging.getLogger(__name__)
Models = Model | Sequence[Model]  # several: a committee, which predicts their mean
Structures = Source | Sequence[ase.Atoms] | str | os.PathLike[str]
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


def source_of(model: Models, source: Structures | None, split: str, data: Reading = None) -> Source:
    """Structures to judge a model on: given ones, those of a file, or the ``split`` of the run's own data.

    ``data`` says how a file is read, of the run's own data where they are (:func:`run_data`).
    Raises ValueError for structures that were read already with ``data``, and where a run has no such split.
    """
    model = models_of(model)[0]  # the units and keys of a committee are those of its first member
    if data and isinstance(source, Source):
        raise ValueError(
            f"data={dict(data)} says how a file is read, and would be ignored for structures that were read already"
        )
    if source is None:
        if isinstance(model, ForceField) or not RunFolder(Path(model)).config.is_file():
            raise ValueError(
                f"{_name(model)} is a model alone, without data: give a file of structures, or a run folder"
            )
        run = Path(model)
        chosen = _part_of(run, split, data)
        if chosen is None:
            raise ValueError(f"{_name(model)}: this run has no {split} split; give a file of structures")
        if not is_own(run, split, data):
            warn(
                f"data.{split}: the run has no record of the content of this file, so whether these are its own "
                "structures is not known"
            )
        return chosen
    if isinstance(source, Source):
        return source
    found, messages = read_structures(model, source, data)
    for message in messages:
        if message.startswith("warning: "):
            warn(message.removeprefix("warning: "))
        else:
            _LOG.info(message)
    return found


def _part_of(run: Path, split: str, places: Reading) -> Source | None:
    """A part of a run's own data; a test file of its own is judged without the files trained on, too."""
    config = config_at(run, places)
    if split == "test":
        _require_there(run, ("data.test", config.data.test))
        if config.data.test is not None and any(_is_gone(part.path) for part in config.data.parts):
            test, left_out = without_isolated(read_files(config.data.test, config.data, config.required_labels)[0])
            for text in left_out:
                warn(text)
            return test
    return getattr(run_data(run, places), split)


def read_structures(
    model: Models, source: Sequence[ase.Atoms] | str | os.PathLike[str], data: Reading = None
) -> tuple[Source, list[str]]:
    """The structures of a file, or ``ase.Atoms``, for a model; and messages: fields, units, warnings of seen files."""
    members = models_of(model)
    model = members[0]
    if isinstance(source, str | os.PathLike):
        found, messages = read_given(Path(source), reading(model, source, data), read_file)
        require_keys(data, found)
        messages += warnings_for_file(members, Path(source), found)
        return found, messages + geometry_warnings(found, str(source))
    config = reading(model, "frames.extxyz", data)
    arrays, messages = structures_of(source, config)
    require_keys(data, arrays)
    checked, masked = arrays.checked(missing=config.missing)
    return checked, messages + masked + geometry_warnings(checked, arrays.name)


def _name(model: Model) -> str:
    return model.config.name if isinstance(model, ForceField) else os.fspath(model)


def reading(model: Model, file: str | os.PathLike[str], data: Reading = None) -> DataConfig:
    """Settings to read a file for a model: units, keys and the like of its training data, changed by ``data``."""
    if isinstance(model, ForceField):
        return reading_of(data, file)
    folder = RunFolder(Path(model))  # stopped before its first validation it has its last weights alone
    early = folder.last_model.is_file() and not folder.model.is_file()
    return reading_as_trained(folder.last_model if early else model_file(model), file, data)


def has_test(run: Path) -> bool:
    """Whether a run has a test split, or a file of test structures."""
    splits = RunFolder(run).divided()
    return load_config(run).data.test is not None or (splits is not None and len(splits.test) > 0)


def run_data(run: Path, places: Mapping[str, Any] | None = None) -> LoadedData:
    """The data of a run, with its split; ``places``: files that have moved, by the setting (path, train, valid, test).

    Raises ValueError for other settings and for a divided file with another content, FileNotFoundError.
    """
    config = config_at(run, places)
    _require_there(run, *(file for file in files_of(config) if file[0].startswith("data.")))
    try:
        return load_data(RunFolder(run).as_divided(config.data), config.seed, config.required_labels)
    except AnotherFileError as error:
        raise ValueError(
            f"{error.found}. Bring the file back, or judge the model on a file of your own: "
            f"denskit evaluate {shlex.quote(str(run))} FILE"
        ) from None


def is_own(run: Path, split: str, places: Mapping[str, Any] | None) -> bool:
    """Whether the structures of a split are those of the run; one that has moved needs its content on record.

    Raises ValueError for another content.  A divided file is compared by :func:`run_data`.
    """
    config, key = config_at(run, places), f"data.{split}"
    if getattr(config.data, split) is None or (split == "train" and RunFolder(run).divided() is not None):
        return True
    model = next((file for file in (RunFolder(run).model, RunFolder(run).last_model) if file.is_file()), None)
    recorded = None if model is None else read_header(model)["metadata"].get("contents", {}).get(key)
    now = contents(config, [key]).get(key) if recorded is not None else None
    if now is None:
        return split not in (places or {})
    if now != recorded:
        raise ValueError(
            f"{key}={getattr(config.data, split)} is another file than that of the run, or has changed ({now}; on "
            f"record: {recorded}). Bring the file back, or judge the model on a file of your own: denskit evaluate "
            f"{shlex.quote(str(run))} FILE"
        )
    return True


def config_at(run: Path, places: Mapping[str, Any] | None) -> RunConfig:
    """The settings of a run whose files have moved to ``places``.  Raises ValueError for files that it has not."""
    data = load_config(run).data
    own = [key for key in ("path", *PARTS) if getattr(data, key) is not None]
    for key in places or {}:
        if key not in own:
            listed = " and ".join(f"data.{key}" for key in own) or "no file"
            raise ValueError(
                f"data.{key} would be ignored for the run's own data; it names {listed}. To judge the model on another "
                "file, give the file alone"
            )
    return load_config(run, {f"data.{key}": place for key, place in (places or {}).items()})


def _require_there(run: Path, *files: tuple[str, str | None]) -> None:
    """Raise FileNotFoundError, with what to do, where a file of a run is not there: (setting, name)."""
    for key, name in files:
        if _is_gone(name):
            several = [other for other, _ in files].count(key) > 1
            place = shlex.quote(f"{key}=[NEW_PLACE, ...]") + ", all of them" if several else f"{key}=NEW_PLACE"
            raise FileNotFoundError(
                f"{key}={name}: there is no such file, and the run needs it. Where it has moved: denskit evaluate "
                f"{shlex.quote(str(run))} {place}, and for other commands correct {key} in {RunFolder(run).config}"
            )


def _is_gone(name: str | None) -> bool:
    return name is not None and address_of(name) is None and not is_there(path_of(name))
