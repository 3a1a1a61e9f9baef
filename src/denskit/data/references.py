"""Reference energies: linear references of elements (subtracted), and OC20's references of systems (added)."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from ase.data import chemical_symbols

from denskit.data.readers.unpickle import load_value
from denskit.reading.arrays import read_npz
from denskit.reading.documents import read_json
from denskit.runtime.progress import counted

PLAUSIBLE = 100.0  # eV an atom; fits to DFT energies give -15 to 5, undetermined rows 0 or up to 1e10


def linear_references(path: Path) -> tuple[dict[str, float], list[str]]:
    """Energies of elements in eV from a file: npz with ``coeff`` [100], indexed by atomic number, as published for
    OC22, or JSON ``{"H": -3.4, ...}``.

    The published files are least-squares fits with arbitrary numbers for elements that did not occur.  Rows that are 0
    or beyond ``PLAUSIBLE`` are dropped, and the message names them.  Raises FileNotFoundError, ValueError.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path} (data.references)")
    if path.suffix == ".json":
        return _from_json(path), []
    arrays = read_npz(path)
    coefficients = arrays.get("coeff")
    if coefficients is None or coefficients.ndim != 1 or coefficients.dtype.kind != "f":
        raise ValueError(f"{path}: wanted the array coeff, one energy for each atomic number; it has {sorted(arrays)}")
    count = min(len(coefficients), len(chemical_symbols))
    plausible = np.isfinite(coefficients) & (np.abs(coefficients) <= PLAUSIBLE) & (coefficients != 0)
    kept = {chemical_symbols[z]: float(coefficients[z]) for z in range(1, count) if plausible[z]}
    left_out = [chemical_symbols[z] for z in range(1, count) if not plausible[z] and coefficients[z] != 0]
    said = f"{path}: references of {counted(len(kept), 'element')}"
    if left_out:
        said += f"; not plausible (beyond {PLAUSIBLE:g} eV an atom), so not used: {' '.join(left_out)}"
    return kept, [said]


def system_references(path: Path) -> dict[str, float]:
    """OC20's reference energies in eV by sid, from ``oc20_ref.pkl`` or JSON: ``random<sid>`` or ``<sid>`` to a number.

    Raises FileNotFoundError, ValueError.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path} (data.oc20_ref)")
    return _system_references(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _system_references(path: Path, modified: int) -> dict[str, float]:
    if path.suffix == ".json":
        return {name.removeprefix("random"): energy for name, energy in _from_json(path).items()}
    values = load_value(path.read_bytes(), str(path))
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}; wanted a dict from random<sid> to an energy")
    if not all(isinstance(name, int | str) for name in values):
        raise ValueError(f"{path}: wanted the names of systems, random<sid>, as the keys of its dict")
    return {str(name).removeprefix("random"): _number(value, path, name) for name, value in values.items()}


def _from_json(path: Path) -> dict[str, float]:
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}; wanted names with energies in eV")
    return {name: _number(value, path, name) for name, value in values.items()}


def _number(value: object, path: Path, name: object) -> float:
    number = np.asarray(value) if isinstance(value, int | float | np.ndarray) else np.zeros(0)
    if number.size != 1 or number.dtype.kind not in "fiu" or not np.isfinite(number).all():
        found = repr(value) if isinstance(value, int | float | str) else f"a {type(value).__name__}"
        raise ValueError(f"{path}: {name!r} is {found}; wanted an energy in eV")
    return float(number.reshape(()))
