"""Frames that were given in memory, kept in the run folder as the files that a resumed run and an evaluation read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import ase
from pydantic import ValidationError

from denskit.data.frames import NAME, exact_extxyz, structures_of
from denskit.data.splits import PARTS
from denskit.files import atomic_write
from denskit.settings import problems_in
from denskit.training.run_folder import RunFolder
from denskit.training.settings import RunConfig

Frames = Mapping[str, Sequence[ase.Atoms]]  # train, and perhaps valid and test


def with_frames(config: RunConfig, frames: Frames) -> RunConfig:
    """The run with the frames' files as its data, in place of frames that the run of these settings was given.

    Raises ValueError where the run names data already, and for frames that cannot be trained on, naming the frame.
    """
    folder = RunFolder(config.output)
    files = {part: str(folder.frames(part).resolve()) for part in frames}
    earlier = [name for name in PARTS if _given_before(getattr(config.data, name))]
    for name in ("path", *PARTS):
        value = getattr(config.data, name)
        if value is not None and value != files.get(name) and name not in earlier:
            raise ValueError(f"frames are given, and data.{name}={value} too; give one of them")
    for part, given in frames.items():
        name = NAME if len(frames) == 1 else f"{NAME} ({part})"
        structures, _ = structures_of(given, config.data, name)
        structures.checked(required=config.required_labels, missing=config.data.missing)
    data = config.data.model_dump(exclude_unset=True) | dict.fromkeys(earlier) | {"name": "file", **files}
    try:
        return config.model_copy(update={"data": type(config.data).model_validate(data)})
    except ValidationError as error:
        raise ValueError(problems_in(error)) from None


def _given_before(file: object) -> bool:
    """Whether these are the frames that an earlier run was given."""
    if not isinstance(file, str):
        return False
    run = RunFolder(Path(file).parent.parent)
    return run.config.is_file() and run.environment.is_file() and run.frames(Path(file).stem) == Path(file)


@contextmanager
def kept(frames: Frames, folder: RunFolder, *, continues: bool) -> Iterator[None]:
    """Write the frames into the run folder; where the block raises they are removed, and the folder is as before.

    Frames of a start that was killed, which are no data of this run, are removed.  Raises ValueError where the run that
    ``continues`` has other frames.
    """
    new: list[Path] = []
    for part, given in frames.items():
        path = folder.frames(part)
        text = "".join(exact_extxyz(given))
        if continues:
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                raise ValueError(f"{folder.path} was trained on other frames than those given (nothing changed)")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        new.append(path)
    for part in PARTS if new else ():
        if part not in frames:
            folder.frames(part).unlink(missing_ok=True)
    try:
        yield
    except BaseException:
        for path in new:
            path.unlink(missing_ok=True)
        if new:
            with suppress(OSError):  # a file of someone else is there
                new[0].parent.rmdir()
        raise
