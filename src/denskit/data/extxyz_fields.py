"""Fields and columns of atoms as extxyz can hold them: what ASE writes of others cannot be read, or changes the frame.

An empty text takes the next field with it, a column with blanks shifts the others, and a stress of six numbers, a
ragged list or a quote in a list end the reading.  Here they get a form that any reader of ASE takes, or are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np
from ase.io.extxyz import key_val_dict_to_str, key_val_str_to_dict
from ase.spacegroup.spacegroup import Spacegroup

from denskit.data.base import full_stress
from denskit.data.readers.extxyz import MOST_COLUMNS
from denskit.runtime.warning import warn

_OF_FORMAT = {"Lattice", "Properties", "pbc"}
_MATRICES = {"stress", "virial"}  # of which ASE reads nine numbers only
_GEOMETRY = {"numbers": 1, "species": 1, "symbols": 1, "Z": 1, "positions": 3, "pos": 3, "move_mask": 3}
_RESULTS = {"forces": 3, "energies": 1, "charges": 1, "magmoms": 3}  # columns beside those of the atoms
_NAME = re.compile(r"""[^\s:="'{}\[\]\\]+""")
_NEXT = "field_after"  # stands behind a field that is tried
_MOST_INTEGER = 2**31  # ASE reads integers of four bytes
_EXACT = 2**53  # integers up to it are exact as floats


def header_fields(info: Mapping[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """Fields of a frame that ASE writes as it can read them, and the names of those left out.

    Line ends in texts become blanks, None and nested lists JSON, ragged lists JSON as a text, six numbers of a stress
    or virial a matrix.
    """
    found = {str(name): _field(str(name), value) for name, value in info.items()}
    left_out = [name for name, value in found.items() if value is None]
    return {name: value for name, value in found.items() if value is not None}, left_out


def columns_of(arrays: Mapping[str, Any], count: int) -> tuple[dict[str, np.ndarray], list[str]]:
    """Arrays of ``count`` atoms beside symbols and positions, [N] or [N, width], and the names of those left out."""
    taken = {f"{name}{place}" for name, width in (_GEOMETRY | _RESULTS).items() for place in range(width)}
    taken |= set(_GEOMETRY)
    kept: dict[str, np.ndarray] = {}
    left_out = []
    for name, given in arrays.items():
        rows = _column(np.asarray(given), count)
        names: set[str] = set()
        if rows is not None:
            names = {name} if rows.ndim == 1 else {f"{name}{place}" for place in range(rows.shape[1])}
        own = {f"{name}{place}" for place in range(_RESULTS.get(name, 0))}
        fits = len(taken) + len(names) <= MOST_COLUMNS and not names & (taken - own)
        if rows is None or not _NAME.fullmatch(name) or name in _GEOMETRY or not fits:
            left_out.append(name)
            continue
        kept[name] = rows
        taken |= names
    return kept, left_out


def warn_left_out(names: Collection[str]) -> None:
    """Warn of fields and columns that are not written, if there are any."""
    if names:
        warn(
            f"left out of the extxyz file, which cannot hold them: {', '.join(sorted(names))} (complex numbers, "
            "objects, columns of texts with blanks or of no width, or names that mean something else there)"
        )


def _field(name: str, value: Any) -> Any:
    if name in _MATRICES:
        try:
            return full_stress(value)
        except (TypeError, ValueError):
            return None
    if name in _OF_FORMAT or not _can_be_named(name):
        return None
    if isinstance(value, str):
        return _text(name, re.sub(r"\r\n|\r|\n", " ", value))
    if isinstance(value, bool | np.bool_ | Real | Spacegroup):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.size:
        return value
    if value is not None and not isinstance(value, dict | list | tuple | np.ndarray):
        return None
    return next((text for text in _as_json(value) if _read(name, text) is not _Unread), None)


def _text(name: str, text: str) -> str | None:
    """A text as it is where it reads back as itself, or as numbers, else escaped or as JSON."""
    for written in (text, text.replace("\\", "\\\\"), _json(text)):
        back = _read(name, written)
        if back is not _Unread and (back == text if isinstance(back, str) else np.size(back)):
            return written
    return None


def _as_json(value: Any) -> Iterator[str]:
    yield _json(value)
    yield _json(json.dumps(value, default=_listed))  # as a text: numpy takes no ragged list


def _json(value: Any) -> str:
    try:
        text = json.dumps(value, default=_listed)
    except TypeError:  # keys that are no texts
        text = json.dumps(str(value))
    return "_JSON " + text.replace("\\", "\\\\")  # ASE escapes quotes alone


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


class _Unread:
    """Stands for a field that ASE does not read, or reads with the next one."""


def _read(name: str, value: Any) -> Any:
    """A field as ASE reads it from what it writes, before another one."""
    try:
        found = key_val_str_to_dict(f"{key_val_dict_to_str({name: value})} {_NEXT}=1")
    except (ValueError, IndexError):
        return _Unread
    return found[name] if list(found) == [name, _NEXT] and found[_NEXT] == 1 else _Unread


@lru_cache(maxsize=10000)
def _can_be_named(name: str) -> bool:
    return _read(name, 1) is not _Unread


def _column(rows: np.ndarray, count: int) -> np.ndarray | None:
    """Rows [N] or [N, width] of a kind that extxyz has, None where they have none."""
    if not rows.size or len(rows) != count:
        return None
    if rows.dtype.kind in "OS":
        words = [word.decode(errors="replace") if isinstance(word, bytes) else word for word in rows.ravel().tolist()]
        try:
            rows = np.array(words).reshape(rows.shape)
        except ValueError:  # lists of several lengths
            return None
    if rows.dtype.kind == "U" and any(word.split() != [word] for word in rows.ravel().tolist()):
        return None
    if rows.dtype.kind in "iu":
        largest = max(abs(int(rows.min())), abs(int(rows.max())))
        if largest > _EXACT:
            return None
        rows = rows.astype(np.float64 if largest >= _MOST_INTEGER else np.int64)
    if rows.dtype.kind not in "bifU":
        return None
    return rows if rows.ndim == 1 else rows.reshape(count, -1)
