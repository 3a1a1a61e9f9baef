"""Several ordinary files, as programs leave one for each structure: those of a folder, or of a pattern."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from denskit.data.base import Source
from denskit.data.config import DataConfig
from denskit.data.readers.ase_files import require_one_name
from denskit.data.readers.formats import UNCERTAIN, files_in, of_simulation, path_of
from denskit.data.records import Joined
from denskit.data.structure_arrays import StructureArrays
from denskit.runtime.progress import counted
from denskit.runtime.warning import warn

LEFT_OUT = "warning: left out: "  # begins the message of a file that cannot be read
_NUMBER = re.compile(r"\d[\d.,]*(e[+-]?\d+)?")
Reader = Callable[[Path, DataConfig], tuple[Source, list[str]]]


@dataclass(frozen=True)
class Files(Joined):
    """The structures of several files in a row."""

    @cached_property
    def _top(self) -> str:
        """The folder of all files."""
        return os.path.commonpath([Path(source.name).parent for source in self.sources])

    def name_of(self, index: int) -> str:
        """The file of a structure below the folder of all, and its number there, from 0, where the file has several."""
        source, place = self.locate(index)
        return os.path.relpath(source.name, self._top) + (f":{place}" if len(source) > 1 else "")


def read_warned(path: str | Path, config: DataConfig, read: Reader) -> Source:
    """As :func:`read_given`, for whoever has no use for labels and messages: of files that are left out Python's
    warnings tell."""
    source, said = _read_all(path, config, read)
    for line in said:
        if line.startswith(LEFT_OUT):
            warn(line.removeprefix("warning: "))
    return source


def read_given(path: str | Path, config: DataConfig, read: Reader, *, strict: bool = False) -> tuple[Source, list[str]]:
    """A file, a folder of shards, or the files of a folder or pattern in the order of their names.

    ``read``: the reader of one file.  One of several that cannot be read is left out with a warning, or an error with
    ``strict``, for trainings.  Returns structures and messages.  Raises ValueError and FileNotFoundError as ``read``,
    where no file can be read, and where files name a label differently.
    """
    source, said = _read_all(path, config, read, strict=strict)
    require_one_name(source.name, [source])
    return source, said


def _read_all(path: str | Path, config: DataConfig, read: Reader, *, strict: bool = False) -> tuple[Source, list[str]]:
    path = path_of(path)
    if not (files := files_in(path)):
        return read(path, config)
    found: list[Source] = []
    said: dict[str, Counter[str]] = {}  # by text without its numbers: one message, whatever the number of files
    left_out: list[str] = []
    for file in files:
        try:
            source, messages = read(file, config)
        except (ValueError, OSError) as error:
            if strict:
                raise
            left_out.append(f"{LEFT_OUT}{error}")
            continue
        found.append(source)
        for text in dict.fromkeys(message.replace(str(file), f"{path}/...") for message in messages):
            said.setdefault(_NUMBER.sub("#", text), Counter())[text] += 1
    if not found:
        raise ValueError(f"{path}: none of {counted(len(files), 'file')} can be read. {left_out[0]}")
    files_read = Files(str(path), tuple(found if config.group_key is not None else _grouped(found)))
    heading = f"{path}: {counted(len(files_read), 'structure')} in {counted(len(found), 'file')}, by their names"
    uncertain = [f"{path}: {UNCERTAIN} is left out, whose frames are of the same runs as the trajectories"]
    told = (_told(texts, len(found)) for texts in said.values())
    return files_read, [heading, *(uncertain if of_simulation(path) else []), *told, *left_out]


def _told(alike: Counter[str], files: int) -> str:
    """A message of several files, which may differ in numbers, and of how many it is."""
    first, count = next(iter(alike)), alike.total()
    if len(alike) > 1:
        return f"{first} (and in {counted(count - 1, 'more file')}, with other numbers)"
    return first + f" ({count} of {files} files)" * (count < files)


def _grouped(found: list[Source]) -> list[Source]:
    """The files with ``sid`` as group where several frames have the same, as in one file, be they in several."""
    named = [part for part in found if isinstance(part, StructureArrays) and part.sids and all(part.sids)]
    sids = {sid for part in named for sid in part.sids}
    if len(named) < len(found) or len(sids) == sum(map(len, named)):
        return found
    return [replace(part, groups=part.sids) for part in named]
