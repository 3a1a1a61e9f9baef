"""The content of the files that a training reads: a run must not continue on other data, nor a study compare them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from denskit.data.readers.formats import files_in, is_there
from denskit.data.splits import PARTS, content_in_words, identity_of
from denskit.reading.remote import address_of
from denskit.training.checkpoint import Checkpoint, may_change
from denskit.training.run_folder import RunFolder, model_file
from denskit.training.settings import RunConfig


def digest_of(name: str | Path) -> str | None:
    """SHA-256 of a file, a folder or the files of a pattern on this machine; None where there is none."""
    path = Path(name).expanduser().resolve()
    if address_of(name) is not None or not is_there(path):
        return None
    about = [file.stat() for file in files_in(path) or [path]]
    return _digest(path, max(file.st_mtime_ns for file in about), sum(file.st_size for file in about))


def files_of(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Settings and names of all files that a training reads; a run that is over needs no more than its own."""
    data, training = config.data, config.training
    given = [
        *structures_of(config),
        ("data.test", data.test),
        ("data.oc20_ref", data.oc20_ref),
        ("data.split.file", data.split.file),
    ]
    if isinstance(data.references, str):  # a file, or a word that names no file
        given.append(("data.references", data.references))
    if training.init_from is not None and Path(training.init_from).exists():
        given.append(("training.init_from", str(model_file(training.init_from))))
    yield from ((key, str(name)) for key, name in given if name is not None)


def structures_of(config: RunConfig) -> list[tuple[str, str | None]]:
    """Settings and names of the files of structures that a training learns from or is validated on."""
    parts = [("data.path" if config.data.path else "data.train", part.path) for part in config.data.parts]
    return [*parts, ("data.valid", config.data.valid), ("training.replay", config.training.replay)]


def contents(config: RunConfig, only: Collection[str] | None = None) -> dict[str, str]:
    """The content of the files of structures, by setting; those that a run is judged on, too."""
    found: dict[str, str] = {}
    for key, name in [*structures_of(config), ("data.test", config.data.test)]:
        if name is None or address_of(name) is not None or (only is not None and key not in only):
            continue
        if is_there(path := Path(name).expanduser()):
            content = content_in_words(path)
            found[key] = f"{found[key]}, {content}" if key in found else content
    return found


def require_same_contents(before: Mapping[str, str], config: RunConfig, folder: Path) -> set[str]:
    """Settings whose files have the content of ``before``, so that they may have moved.

    Raises ValueError where a run would continue on other structures than it began with.
    """
    now = contents(config) if before else {}
    if changed := [key for key in before.keys() & now.keys() if before[key] != now[key]]:
        raise ValueError(
            f"{folder}: the content of {' and '.join(sorted(changed))} has changed since this run started; bring it "
            "back, or start a new run (training.init_from takes the weights along). Nothing changed"
        )
    return before.keys() & now.keys()


def require_same_settings(
    checkpoint: Checkpoint, config: RunConfig, structures: int, may_move: Collection[str]
) -> dict[str, tuple[Any, Any]]:
    """The settings that changed since a checkpoint, as dotted key -> (before, now).

    ``structures``: to train on now.  ``may_move``: settings of files with the same content as then.  Raises ValueError
    naming the changes with which a run does not continue.
    """
    folder = RunFolder(config.output)
    own = {f"data.{part}" for part in PARTS if folder.frames(part).is_file()}  # the folder may have been moved
    own |= {*may_move, *(f"{key}.{part}.path" for key in may_move for part in range(len(config.data.parts)))}  # lists
    before = config.completed(checkpoint.config | {"training structures": checkpoint.num_train})
    now = config.document() | {"training structures": structures}
    return folder.require_same(before, now, may_change(config) | own)


@lru_cache(maxsize=1000)
def _digest(path: Path, modified: int, size: int) -> str:
    return identity_of(path)[1]
