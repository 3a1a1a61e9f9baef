"""OC20's S2EF downloads without conversion: pairs of ``N.extxyz.xz`` and ``N.txt.xz``, or either of them unpacked.

Line i of the text belongs to frame i: ``random<sid>,frame<fid>,<reference energy>``.  The frames' energies are totals;
adsorption energies, which OC20 is trained and scored on, are these less the reference.

An xz file can only be read from its beginning.  In order, frames are decompressed as they are read and nothing is kept.
Out of order, the first use of a file unpacks it into the cache (``$DENSKIT_CACHE``) with an index of its frames.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from ase.data import atomic_numbers

from denskit.batch import System
from denskit.data.base import Shard
from denskit.files import atomic_write, cache_folder, locked
from denskit.reading.arrays import read_mapped
from denskit.reading.budget import Lines, naming

Energies = Literal["referenced", "total"]
_SYSTEM = re.compile(rb"random\d|[^,\s]+,frame\d")  # begins each line of a text
_LONGEST = 200  # bytes that are read of a line to know it
_WIDTHS = {"species": 1, "pos": 3, "move_mask": 1, "tags": 1, "forces": 3}


class RawPair(Shard):
    """One file of frames with its text.  Raises FileNotFoundError where the text is missing, ValueError."""

    def __init__(self, path: Path, energies: Energies) -> None:
        self.path = path
        self.energies = energies
        text = text_of(path)
        if text is None:
            raise FileNotFoundError(f"no file {_stem(path)}.txt or .txt.xz beside {path}: it names the systems")
        self.text = text
        self._length = len(self._lines)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, record: int) -> System:
        starts = self._starts
        with self._unpacked.open("rb") as file:
            file.seek(int(starts[record]))
            raw = file.read(int(starts[record + 1] - starts[record]))
        return self._system(raw.split(b"\n"), record)

    def iterate(self, begin: int = 0, end: int | None = None) -> Iterator[System]:
        """The structures ``begin`` to ``end - 1``, read from the beginning of the file; nothing is unpacked."""
        with Lines(self.path) as file:
            for record, (_, lines) in enumerate(islice(self._frames(file), end)):
                if record >= begin:
                    yield self._system(lines, record)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lines", "_starts")}

    @cached_property
    def _lines(self) -> list[str]:
        with naming(self.text, "is truncated or damaged"), Lines(self.text) as file:
            lines = [line.decode("ascii").rstrip("\n") for line in file if line.strip()]
        if not lines:
            raise ValueError(f"{self.text} names no frames")
        return lines

    @cached_property
    def _folder(self) -> Path:
        """Cache folder of the unpacked file; another one when the file changes."""
        about = self.path.stat()
        key = f"{self.path.resolve()} {about.st_size} {about.st_mtime_ns}"
        return cache_folder() / "oc20_raw" / hashlib.sha256(key.encode()).hexdigest()[:16]

    @property
    def _unpacked(self) -> Path:
        return self._folder / "frames.extxyz" if self.path.suffix == ".xz" else self.path

    @cached_property
    def _starts(self) -> np.ndarray:
        """Byte offsets of the frames in the unpacked file, and its end [frames + 1]."""
        index = self._folder / "starts.npy"
        if not index.is_file():
            with locked(self._folder, wait=True):  # threads and processes that share the cache unpack it once
                if not index.is_file():
                    self._unpack(index)
        return read_mapped(index)

    def _unpack(self, index: Path) -> None:
        with Lines(self.path) as file:
            if self.path.suffix != ".xz":
                starts = [start for start, _ in self._frames(file)]
            else:
                with atomic_write(self._unpacked) as temporary, temporary.open("wb") as out:
                    starts = []
                    for start, lines in self._frames(file):
                        starts.append(start)
                        out.write(b"\n".join(lines) + b"\n")
        end = self._unpacked.stat().st_size
        with atomic_write(index) as temporary:
            np.save(temporary, np.array([*starts, end], dtype=np.int64))

    def _frames(self, file: Lines) -> Iterator[tuple[int, list[bytes]]]:
        """Start in bytes and lines of each frame, in order; as many as the text names."""
        start = 0
        for record in range(len(self)):
            with naming(self._where(record), "is truncated or damaged"):
                lines = [file.next()]
                while len(lines) < int(lines[0]) + 2:
                    lines.append(file.next())
                    if not lines[-1]:
                        raise ValueError(f"it ends after {len(lines) - 1} lines of {int(lines[0]) + 2}")
                lines = [line.rstrip(b"\n") for line in lines]
                more = record == len(self) - 1 and file.next()  # here, since a reader may stop at the last frame
            if more:
                raise ValueError(f"{self.path} has more frames than the {len(self)} lines of {self.text}")
            yield start, lines
            start += sum(len(line) + 1 for line in lines)

    def _where(self, record: int) -> str:
        return f"{self.path}, record {record} of {len(self)}"

    def _system(self, lines: list[bytes], record: int) -> System:
        with naming(self._where(record), "cannot be used"):
            sid, fid, reference = _names(self._lines[record])
            fields, columns = _parse(lines)
            if "move_mask" not in columns:
                raise ValueError("it does not say which atoms are fixed: no column move_mask")
            return System(
                positions=columns["pos"].astype(np.float64),
                atomic_numbers=np.array([atomic_numbers[name.decode()] for name in columns["species"]], dtype=np.int64),
                cell=np.array(fields["Lattice"].split(), dtype=np.float64).reshape(3, 3),
                pbc=np.ones(3, dtype=bool),
                fixed=columns["move_mask"] == b"F",
                tags=columns["tags"].astype(np.int64) if "tags" in columns else np.zeros(int(lines[0]), dtype=np.int64),
                energy=self._energy(fields.get("energy"), reference),
                forces=columns["forces"].astype(np.float64) if "forces" in columns else None,
                sid=sid,
                group=sid,
                fid=fid,
            )

    def _energy(self, total: str | None, reference: float | None) -> float | None:
        if total is None or self.energies == "total":
            return None if total is None else float(total)
        if reference is None:
            raise ValueError(f"{self.text.name} has no reference energy for it; say data.energies=total to use totals")
        return float(total) - reference


def text_of(path: Path) -> Path | None:
    """The text file beside a file of frames, if it is there; a ``.txt`` that names no systems is a note of a user."""
    packed, plain = (path.with_name(_stem(path) + suffix) for suffix in (".txt.xz", ".txt"))
    if packed.is_file():
        return packed
    return plain if plain.is_file() and _names_systems(plain) else None


def _names_systems(text: Path) -> bool:
    with text.open("rb") as file:
        return _SYSTEM.match(file.readline(_LONGEST)) is not None


def _stem(path: Path) -> str:
    return path.name.removesuffix(".xz").removesuffix(".extxyz")


def _names(line: str) -> tuple[str, int, float | None]:
    """sid, fid and reference energy of a line of the text."""
    system, frame, *reference = line.strip().split(",")
    energy = float(reference[0]) if reference and reference[0] else None
    return system.removeprefix("random"), int(frame.removeprefix("frame")), energy


def _parse(lines: list[bytes]) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """The fields of a frame's second line, and its columns [n] or [n, 3], as text."""
    fields = {
        key: quoted or plain for key, quoted, plain in re.findall(r'\b(\w+)=(?:"([^"]*)"|(\S+))', lines[1].decode())
    }
    kinds = fields["Properties"].split(":")
    names, widths = kinds[::3], [int(width) for width in kinds[2::3]]
    n = int(lines[0])
    words = np.array(b" ".join(lines[2 : n + 2]).split()).reshape(n, sum(widths))
    columns, begin = {}, 0
    for name, width in zip(names, widths, strict=True):
        if width != _WIDTHS.get(name, width):
            raise ValueError(f"column {name} is {width} wide, not {_WIDTHS[name]}")
        columns[name] = words[:, begin] if width == 1 else words[:, begin : begin + width]
        begin += width
    return fields, columns
