"""The folder of a long command: locked, begun once, and continued after an interruption or a kill.

A command writes its ``marker`` first, so a folder with the marker holds work of this kind, and any other folder with
files in it is left alone.  State files are replaced as a whole; a file to which lines or steps are appended is cut
back, when the work continues, to the part that the state knows.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from denskit.files import atomic_write, is_empty, locked, writing
from denskit.reading.budget import naming
from denskit.settings import dotted

_NOTES = "denskit_simulation"  # key of the JSON in a state file's header
_SHOWN = 100  # characters of a value in a message
_SHA256 = re.compile("[0-9a-f]{64}")


class WorkFolder:
    """A folder, perhaps to be made, for one piece of work, which writes the file ``marker`` first.

    ``work`` names it in messages: "run", "relaxation", ...
    """

    before_marker: tuple[str, ...] = ()  # files that a kill before the marker leaves behind

    def __init__(self, path: str | Path, work: str, marker: str) -> None:
        self.path = Path(path)
        self.work = work
        self.marker = self.path / marker

    @contextmanager
    def opened(self, *, resume: bool, say: Callable[[str], None] = lambda text: None) -> Iterator[bool]:
        """Lock the folder for a block; True: the work continues, False: it begins.  Raises as :meth:`continues`."""
        with locked(self.path):
            yield self.continues(resume=resume, say=say)

    def continues(self, *, resume: bool, say: Callable[[str], None] = lambda text: None) -> bool:
        """Whether work in the folder continues; False: the folder is empty, and work may begin.

        Raises ValueError for work that is not to be resumed, and for a folder with other files.
        """
        if self.marker.is_file():
            if not resume:
                raise ValueError(
                    f"{self.path} holds a {self.work}; continue it with --resume (in Python resume=True), or give "
                    "another folder (nothing changed)"
                )
            return True
        if not is_empty(self.path, but_for=self.before_marker):
            raise ValueError(
                f"{self.path} is not empty and holds no {self.work} to continue; give another folder (nothing changed)"
            )
        if resume:
            say(f"{self.path} holds no {self.work} yet: starting from the beginning")
        return False

    def require_same(
        self, before: Mapping[str, Any], now: Mapping[str, Any], may_change: Collection[str] = ()
    ) -> dict[str, tuple[Any, Any]]:
        """Compare two records of settings and input; the changes, as dotted key -> (before, now).

        Raises ValueError naming the changes outside ``may_change``.
        """
        changes = differences(before, now)
        wrong = in_words({key: values for key, values in changes.items() if key not in may_change})
        if wrong:
            listed = "\n  ".join(wrong)
            raise ValueError(
                f"{self.path} holds another {self.work}:\n  {listed}\n"
                "Continue it with the same settings and input, or give another folder (nothing changed)"
            )
        return changes

    def cut(self, appended: Iterable[Path], sizes: Mapping[str, int]) -> None:
        """Cut files back to ``sizes`` (bytes, by name), and remove those of ``appended`` that have no size.

        Raises ValueError for a file that is shorter than its size, or gone, and for a link: the folder may be
        somebody else's, and would name any file.
        """
        present = {path.name: path for path in appended}
        for name, path in present.items():
            if path.is_symlink():
                raise ValueError(f"{path} is a link to {path.readlink()}; put the file itself there")
            if name not in sizes:
                path.unlink()
        for name, size in sizes.items():
            found = present[name].stat().st_size if name in present else 0
            if found < size:
                raise ValueError(
                    f"{self.path / name} has {found} bytes, but had {size} when the state was saved; bring it back"
                )
            if name in present:
                os.truncate(present[name], size)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Entries in which two JSON objects differ, as dotted key -> (before, now); None: there is no such entry."""
    old, new = _entries(before), _entries(now)
    return {
        key: (old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)
    }


def in_words(changes: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """A text for each entry of :func:`differences`."""
    return [f"{key}: {_shown(old)} then, {_shown(new)} now" for key, (old, new) in changes.items()]


def write_state(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Write tensors and JSON atomically, as safetensors."""
    # a copy of each: safetensors refuses tensors that share memory, and its own writer has errors of its own
    copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with atomic_write(path) as temporary:
        temporary.write_bytes(save(copies, {_NOTES: json.dumps(notes)}))


def read_state(
    path: Path, device: torch.device | str = "cpu", advice: str = "remove it to begin anew"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and JSON of :func:`write_state`.  Raises FileNotFoundError, ValueError with advice for a damaged file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file, so there is nothing to continue")
    with naming(path, f"is damaged, or no saved state; {advice}"), safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118 (not a dict)
        return tensors, json.loads((file.metadata() or {}).get(_NOTES, "{}"))


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Any]:
    """The tensors whose names begin with ``prefix``, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def append_line(path: Path, value: Any) -> int:
    """Append a line of JSON that is on the disk when this returns; the offset (bytes) at which it begins."""
    with writing(path), path.open("ab") as file:
        offset = file.tell()
        file.write(json.dumps(value).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return offset


def whole_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Offsets (bytes) and values of :func:`append_line`; removes a last line that a kill cut off."""
    offset = 0
    with path.open("r+b") as file:
        for line in file:
            if not line.endswith(b"\n"):
                file.truncate(offset)
                return
            with naming(path, f"is damaged at byte {offset}"):
                value = json.loads(line)
            yield offset, value
            offset += len(line)


def _shown(value: Any) -> str:
    text = str(value)
    if _SHA256.fullmatch(text):
        return f"sha256 {text[:12]}..."
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _entries(record: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a record as JSON by dotted key; an empty object has none."""
    plain = json.loads(json.dumps(record, default=str))
    return {key: value for key, value in dotted(plain, lists=True) if value != {}}
