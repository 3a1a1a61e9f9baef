"""Thermal conductivities as Matbench Discovery publishes them, by the names of the crystals.

Two files belong together: crystals (extxyz), whose fields are ``material_id``, ``q_point_mesh``, ``fc2_supercell`` and
``fc3_supercell``, and a JSON file, mostly packed, with the conductivities of their modes
(``...-phononDB-PBE-103-structures.extxyz`` and ``...-kappas-phononDB-PBE-noNAC.json.gz``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from denskit.reading.budget import Text, Unreadable, naming
from denskit.reading.documents import parse_json
from denskit.simulation.crystals.conductivity import Conductivity
from denskit.simulation.crystals.folder import HEAT
from denskit.simulation.crystals.phonons import TEMPERATURE

NAMES = ("material_id", "mp_id")
MODES = ("mode_kappa_tot_avg", "mode_kappa_tot_rta", "mode_kappa_tot")  # the first has no directions
WEIGHTS = ("mode_weights", "weights")
MEAN = ("kappa_tot_avg", "kappa_tot_rta")
FREQUENCIES = ("ph_freqs", "frequencies")
REPEATS = ("fc2_supercell", "fc3_supercell")
AGREES = 0.02  # relative, of the sum over the modes with the conductivity
PIECE = 2**20  # characters


@contextmanager
def references_in(place: Path, fields: Callable[[], Sequence[Mapping[str, Any]]]) -> Iterator[Path]:
    """The folder of references that ``place`` is, or one for the block, where it is a published file.

    fields: gives those of each crystal.  Raises FileNotFoundError, and Unreadable (a ValueError) naming file and
    crystal.
    """
    if not place.exists():
        raise FileNotFoundError(f"no {place}: a folder with {HEAT.format(0)}, ... or a published file is wanted")
    if not place.is_file():
        yield place
        return
    known = conductivities_of(place)
    with TemporaryDirectory() as temporary:
        for index, own in enumerate(fields()):
            _of_crystal(known, own, index, place).save(Path(temporary, HEAT.format(index)))
        yield Path(temporary)


def conductivities_of(file: Path) -> dict[str, dict[str, Any]]:
    """The records of a published file by the names of their crystals.  Raises FileNotFoundError, Unreadable."""
    with Text(file) as text, naming(file, "is damaged"):
        pieces = "".join(iter(lambda: text.read(PIECE), ""))
    content = parse_json(pieces, file)
    if isinstance(content, dict):  # columns, as pandas writes them
        columns = {name: column for name, column in content.items() if isinstance(column, dict)}
        places = next((columns[name] for name in NAMES if name in columns), {})
        content = [{name: column.get(place) for name, column in columns.items()} for place in places]
    if not isinstance(content, list) or not all(isinstance(record, dict) for record in content):
        raise Unreadable(f"{file}: a list of records is wanted, or columns; found {type(content).__name__}")
    named = {str(_first(record, NAMES)): record for record in content if _first(record, NAMES) is not None}
    if not named:
        raise Unreadable(f"{file}: no record has a field {' or '.join(NAMES)}")
    return named


def _of_crystal(known: dict[str, dict[str, Any]], own: Mapping[str, Any], index: int, file: Path) -> Conductivity:
    name = _first(own, NAMES)
    if name is None:
        raise Unreadable(f"crystal {index} has no {' or '.join(NAMES)}, by which {file} names its conductivities")
    if str(name) not in known:
        raise Unreadable(f"{file} has no conductivity of crystal {index}, {name}")
    record = known[str(name)]
    with naming(f"{file}, {name}:", "its conductivity cannot be read"):
        modes, mean = _at_room_temperature(record, MODES, 3), _at_room_temperature(record, MEAN, 1)
        weights = _wanted(record, WEIGHTS).astype(np.int64)
        if not abs(modes.sum() / weights.sum() - mean) <= AGREES * mean:
            raise ValueError(f"its modes sum to {modes.sum() / weights.sum():.4g} W/(m K), and it is {mean:.4g}")
        frequencies = _first(record, FREQUENCIES)
        return Conductivity(
            kappa=np.array([mean, mean, mean, np.nan, np.nan, np.nan], float),
            coherence=float("nan"),
            mode_kappa=modes,
            weights=weights,
            frequencies=np.zeros((0, 0)) if frequencies is None else np.array(frequencies, float),
            mesh=_mesh(own, record),
            repeats=_repeats(own),
        )


def _first(record: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((record[name] for name in names if record.get(name) is not None), None)


def _wanted(record: Mapping[str, Any], names: Sequence[str]) -> np.ndarray:
    found = _first(record, names)
    if found is None:
        raise ValueError(f"none of {', '.join(names)} is there; found {', '.join(sorted(record))}")
    array: np.ndarray = np.array(found, float)
    return array


def _at_room_temperature(record: Mapping[str, Any], names: Sequence[str], dimensions: int) -> np.ndarray:
    """Values at 300 K, averaged over directions.

    Found are [T, ...] of so many ``dimensions``, or [...] for one temperature; directions are the last dimension, 3 or
    Voigt's 6, or the last two, 3 x 3.
    """
    values = _wanted(record, names)
    if values.ndim == dimensions + 2 and values.shape[-2:] == (3, 3):
        values = np.trace(values, axis1=-2, axis2=-1) / 3
    elif values.ndim == dimensions + 1 and values.shape[-1] in (3, 6):
        values = values[..., :3].mean(axis=-1)
    if values.ndim == dimensions - 1:
        return values
    temperatures = record.get("temperatures") or [TEMPERATURE]
    if values.ndim != dimensions or len(values) != len(temperatures) or TEMPERATURE not in temperatures:
        raise ValueError(f"values at {TEMPERATURE:g} K are wanted; found shape {values.shape}, for {temperatures} K")
    at: np.ndarray = values[list(temperatures).index(TEMPERATURE)]
    return at


def _mesh(own: Mapping[str, Any], record: Mapping[str, Any]) -> np.ndarray | None:
    mesh = _first(own, ("q_point_mesh", "q_mesh"))
    mesh = _first(record, ("q_point_mesh", "q_mesh")) if mesh is None else mesh
    return None if mesh is None else np.array(mesh, np.int64).reshape(3)


def _repeats(own: Mapping[str, Any]) -> np.ndarray | None:
    """Repetitions of the cell in the supercells of second and third order."""
    found = [own[name] for name in REPEATS if name in own]
    if len(found) < len(REPEATS):
        return None
    cells = [np.array(cell, float) for cell in found]
    cells = [np.diag(cell) if cell.size == 3 else cell.reshape(3, 3) for cell in cells]
    if any(np.count_nonzero(cell - np.diag(np.diag(cell))) for cell in cells):
        raise ValueError(f"supercells along the axes of the cell are wanted; found {[c.tolist() for c in cells]}")
    return np.array([np.diag(cell) for cell in cells], np.int64)
