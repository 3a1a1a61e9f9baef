"""Beside ASE's reader of extxyz: empty values, stress of six numbers, errors for frames that it would leave out."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Any

from ase.io.extxyz import key_val_str_to_dict
from ase.io.formats import UnknownFileTypeError, filetype

from denskit.reading.budget import PACKED, Lines, Unreadable, naming

ENDINGS = (".xyz", ".extxyz")
MOST_COLUMNS = 1000
# A value that is empty, or a text to be passed over: in quotes or brackets, or an escaped character.  ASE allows blanks
# around "=", so a bare "=" has no value only before the next field, or at the end.
_EMPTY = re.compile(
    r"""(=\s*(?:""|''|\{\}|\[\])(?=\s|$)|=(?=\s*$|\s+[^\s="'{}\[\]]+\s*=))"""
    r"""|"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|\{(?:\\.|[^}\\])*\}?|\[(?:\\.|[^\]\\])*\]?|\\.""",
    re.DOTALL,
)
_STRESS = re.compile(r"""(?<![\w-])(stress|virial)=(?:["'[{]+([^"'\[\]{}]*)["'\]}]+|([^\s"'\[{]+))(?=\s|$)""")
_OF_ELEMENTS = {"species", "symbols", "Z", "numbers"}  # columns


class BadHeader(ValueError):
    """The second line of a frame has no meaning; the message says why and what to do."""


def is_extxyz(path: Path) -> bool:
    """Whether a file is extxyz by its name, packed or not, or, where that has no ending, by its first line."""
    plain = unpacked(path)
    if plain.suffix or not path.is_file():
        return plain.suffix.lower() in ENDINGS
    try:
        return bool(filetype(str(path)) == "extxyz")
    except UnknownFileTypeError:
        return False


def unpacked(path: Path) -> Path:
    """The path without the ending of a packed file."""
    return path.with_suffix("") if path.suffix in PACKED else path


def check_lines(path: Path) -> None:
    """Raise Unreadable for an extxyz file that ASE would not read to its end, or look for it for ever.

    A frame has fewer lines than it says; a blank line is between frames; a byte order mark.
    """
    with naming(path, "cannot be read: it is truncated, or no extxyz file"), Lines(path) as file:
        for index in count():
            while (first := file.next()).lstrip().startswith(b"VEC"):
                pass
            if not first.strip():  # where ASE stops
                if any(line.strip() for line in file):
                    raise Unreadable(
                        f"{path}: frame {index}, counted from 0, follows a blank line, where reading would end; "
                        "remove blank lines between frames"
                    )
                return
            if first.startswith(b"\xef\xbb\xbf"):
                raise ValueError(
                    "it begins with a byte order mark (BOM), as some editors write; save it as plain UTF-8"
                )
            if not first.strip().isdigit():
                raise ValueError(f"frame {index}, counted from 0, begins with a line that is no number of atoms")
            for line in range(int(first) + 1):
                if not file.next():
                    raise ValueError(f"frame {index}, counted from 0, ends after {line + 1} lines of {int(first) + 2}")


def fields(line: str) -> dict[str, Any]:
    """The fields of a frame's second line, as ASE reads them; a stress or virial also of six numbers.

    An empty value is the text "", where ASE would take the next field for it.  Raises BadHeader, and ValueError as ASE.
    """
    line = _EMPTY.sub(lambda found: r'="_JSON \"\""' if found[1] else found[0], line)
    try:
        found: dict[str, Any] = key_val_str_to_dict(line)
    except ValueError:
        if (whole := _STRESS.sub(_nine_numbers, line)) == line:
            raise
        found = key_val_str_to_dict(whole)
    for name in ("pbc", "Properties"):
        if found.get(name) == "":
            raise BadHeader(f"its {name} is empty; give a value, or leave the field out")
    if isinstance(columns := found.get("Properties"), str):
        found["Properties"] = _columns(columns)
    return found


def _columns(said: str) -> str:
    """Properties with ASE's name for atomic numbers."""
    parts = said.split(":")
    columns = sum(int(width) for width in parts[2::3])
    if columns > MOST_COLUMNS:
        raise ValueError(f"its Properties speak of {columns} columns; up to {MOST_COLUMNS} are read")
    for name, kind in zip(parts[::3], parts[1::3], strict=False):
        if name in ("species", "symbols") and kind != "S":
            raise BadHeader(
                f"its column {name}:{kind}:1 holds numbers; symbols of elements are {name}:S:1, atomic numbers Z:I:1, "
                "and elements are wanted for types of atoms"
            )
    if "atomic_numbers" in parts[::3] and not _OF_ELEMENTS & set(parts[::3]):
        parts[3 * parts[::3].index("atomic_numbers")] = "Z"
    return ":".join(parts)


def _nine_numbers(field: re.Match[str]) -> str:
    """Voigt's xx yy zz yz xz xy as nine numbers, which ASE wants; other fields as they are."""
    numbers = (field[2] or field[3]).replace(",", " ").split()
    if len(numbers) != 6:
        return field[0]
    return f'{field[1]}="{" ".join(numbers[index] for index in (0, 5, 4, 5, 1, 3, 4, 3, 2))}"'
