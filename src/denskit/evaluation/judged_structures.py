"""The structures that a model is judged on: given ones, a file's, or the run's own."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ase

from denskit.data import LoadedData, load_data
from denskit.data.base import Source
from denskit.data.config import DataConfig
from denskit.data.frames import structures_of
from denskit.data.loading import read_file, read_files, without_isolated
from denskit.data.overlaps import geometry_warnings
from denskit.data.readers.folders import read_given
from denskit.data.readers.formats import is_there, path_of, require_keys
from denskit.data.splits import PARTS, AnotherFileError
from denskit.evaluation.unseen import warnings_for_file
from denskit.models.base import ForceField
from denskit.models.model_file import Model, models_of, read_header
from denskit.reading.remote import address_of
from denskit.runtime.warning import warn
from denskit.training.inputs import contents
from denskit.training.inputs import structures_of as files_of
from denskit.training.load_config import load_config
from denskit.training.reading_settings import Reading, reading_as_trained, reading_of
from denskit.training.run_folder import RunFolder, model_file
from denskit.training.settings import RunConfig

_LOG = logging.getLogger(__name__)
Models = Model | Sequence[Model]  # several: a committee, which predicts their mean
Structures = Source | Sequence[ase.Atoms] | str | os.PathLike[str]


def source_of(
    model: Models, source: Structures | None, split: str, data: Reading = None, *, judged: bool = True
) -> Source:
    """Structures to judge a model on: given ones, those of a file, or the ``split`` of the run's own data.

    ``data`` says how a file is read, of the run's own data where they are (:func:`run_data`).  Not ``judged``: a file
    of something else, as a hull, which the model may have trained on without a warning.
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
        _require_own(run, split, data)
        return chosen
    if isinstance(source, Source):
        return source
    found, messages = read_structures(model, source, data, judged=judged)
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
    model: Models, source: Sequence[ase.Atoms] | str | os.PathLike[str], data: Reading = None, *, judged: bool = True
) -> tuple[Source, list[str]]:
    """The structures of a file, or ``ase.Atoms``, for a model; and messages: fields, units, if ``judged`` warnings of
    files that it has trained on."""
    members = models_of(model)
    model = members[0]
    if isinstance(source, str | os.PathLike):
        found, messages = read_given(Path(source), reading(model, source, data), read_file)
        require_keys(data, found)
        if judged:
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


def _require_own(run: Path, split: str, places: Mapping[str, Any] | None) -> None:
    """Raise ValueError where the file of a split has another content than the run has on record, or has moved and
    cannot be compared.  A divided file is compared by :func:`run_data`.
    """
    config, key = config_at(run, places), f"data.{split}"
    if getattr(config.data, split) is None or (split == "train" and RunFolder(run).divided() is not None):
        return
    model = next((file for file in (RunFolder(run).model, RunFolder(run).last_model) if file.is_file()), None)
    recorded = None if model is None else read_header(model)["metadata"].get("contents", {}).get(key)
    now = contents(config, [key]).get(key) if recorded is not None else None
    if recorded is None or now is None:  # as of a file at an address
        if split not in (places or {}):
            return
        found = "cannot be compared with that of the run, whose content is not known"
    elif recorded == now:
        return
    else:
        found = f"is another file than that of the run, or has changed ({now}; on record: {recorded})"
    raise ValueError(
        f"{key}={getattr(config.data, split)} {found}. Bring the file back, or judge the model on a file of your own: "
        f"denskit evaluate {shlex.quote(str(run))} FILE"
    )


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
