"""Whether models have trained on the structures that they are judged on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from denskit.data.base import Lazy, Source
from denskit.data.readers.formats import is_there, places_in
from denskit.models.base import ForceField
from denskit.models.model_file import Model, read_header, run_settings
from denskit.runtime.warning import warn
from denskit.training.load_config import load_config
from denskit.training.run_folder import folder_of, model_file
from denskit.training.seen import places_seen, seen_before


def require_unseen(members: Sequence[Model], split: str, structures: Source) -> None:
    """Compare the ``structures`` of the ``split`` of the first run with what the others have trained on.

    Raises ValueError where they share structures, or another member was trained on the whole file; warns where that
    cannot be told.
    """
    assert not isinstance(members[0], ForceField)  # which has no split
    structures = structures.opened if isinstance(structures, Lazy) else structures
    first = folder_of(members[0])
    judged = first.divided()
    advice = f"Judge the committee on another file, or train its members on one split, data.split.file={first.splits}"
    for member in members[1:]:
        name = "a force field in memory" if isinstance(member, ForceField) else os.fspath(member)
        if isinstance(member, ForceField):
            warn(f"whether {name} has trained on the structures judged is not known")
            continue
        if judged is not None and folder_of(member).divided() is None:
            divided = _files(members[0], False)
            if shared := divided & _files(member):
                whole = "the whole file that" if shared == divided else f"{len(shared)} of {len(divided)} files that"
                raise ValueError(f"{name} was trained on {whole} {first.path} divides. {advice}")
        places = places_seen(folder_of(member), judged, split, structures)
        if places is None:
            warn(f"whether {name} has trained on the structures judged is not known")
        elif len(places):
            raise ValueError(
                f"{name} has trained on {len(places)} of the {len(structures)} {split} structures of "
                f"{first.path}, so its errors there mean nothing. {advice}"
            )


def warnings_for_file(members: Sequence[Model], file: Path, structures: Source) -> list[str]:
    """Warnings where members have trained on some of the ``structures`` of a file, or on copies of them."""
    file = file.expanduser()
    if not is_there(file):  # an address
        return []
    given = places_in(file)
    models = [member for member in members if not isinstance(member, ForceField)]
    told = [member for member in models if given & _files(member)]
    splits = [folder_of(member).divided() for member in told]
    frames, seen_by = len(structures), {}
    for member, split in zip(told, splits, strict=True):
        part = f"the {frames} structures of {file}"
        if not (own := given & _files(member, False)):  # replayed
            seen = f"some of {part}"
        elif given not in _named(member, False):
            one, many = f"files of which {file} is one", f"{len(own)} of the {len(given)} files of {file}"
            seen = one if len(given) == 1 else many
        elif split is None:
            trained_on_part = read_header(model_file(member))["metadata"].get("data_sha256") is not None
            seen = f"{'some' if trained_on_part else frames} of {part}"
        elif split.is_of(file):
            seen = f"{len(split.train)} of {part}"
        else:
            seen = f"{file} as it was ({split.size:,} bytes), perhaps on some of its {frames} structures"
        seen_by[member] = seen
    for member in (model for model in models if model not in told):
        copies = places_seen(folder_of(member), None, "valid", structures)
        if copies is not None and len(copies):
            seen_by[member] = f"copies of {len(copies)} of the {frames} structures of {file}"
    return [
        f"warning: {os.fspath(member)} has trained on {seen_by[member]}, whose errors say little about others; denskit "
        "evaluate without a file judges the test split of a run"
        for member in models
        if member in seen_by
    ]


def warnings_for_split(members: Sequence[Model], split: str, structures: Source) -> list[str]:
    """Warnings where models that runs were fine-tuned from have trained on the ``structures`` of the ``split`` of the
    first run's data."""
    runs = [folder_of(member) for member in members if not isinstance(member, ForceField)]
    # a test file of its own is compared, too, since it is read anyway
    splits = runs[0].divided()
    judged = {split: structures.opened if isinstance(structures, Lazy) else structures}
    return [said for run in runs if run.config.is_file() for said in seen_before(load_config(run.path), splits, judged)]


def _files(member: str | os.PathLike[str], replayed: bool = True) -> frozenset[str]:
    """The places of all files of training structures that a model file names, as :func:`_named`."""
    return frozenset().union(*_named(member, replayed))


def _named(member: str | os.PathLike[str], replayed: bool) -> list[frozenset[str]]:
    """The same, for each name that was given; ``replayed``: old ones of fine-tuning, too."""
    run = run_settings(model_file(member))
    data = run.get("data", {})
    given = data.get("path") or data.get("train") or ()
    names = [given] if isinstance(given, str) else [part["path"] for part in given]
    names += filter(None, [run.get("training", {}).get("replay")] if replayed else [])
    return [places_in(name) for name in names]
