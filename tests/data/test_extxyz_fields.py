"""Atoms with fields and columns of every kind are written such that ASE reads them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.data.frames import exact_extxyz, structures_of
from denskit.data.loading import read_file
from denskit.data.writing import predicted

KEPT: dict[str, tuple[Any, Any]] = {  # field: value and what is read back
    "comment": ("", ""), "blank": (" ", " "), "quotes": ("a \"b\" 'c'", "a \"b\" 'c'"), "tab": ("a\tb", "a\tb"),
    "lines": ("a\r\nb\nc", "a b c"), "path": ("C:\\new\\x y", "C:\\new\\x y"), "brace": ("{x", "{x"),
    "looks like json": ("_JSON [1", "_JSON [1"), "nothing": (None, None), "no_list": ([], []),
    "no_array": (np.array([]), []), "matrix": ([[1, 2], [3, 4]], [[1, 2], [3, 4]]),
    "ragged": ([[1, 2], [3]], "[[1, 2], [3]]"), "texts": (['d"e', "f\\g"], ['d"e', "f\\g"]),
    "objects": (np.array([[1], [2, 3]], dtype=object), "[[1], [2, 3]]"), "words": (np.array(["a b", ""]), ["a b", ""]),
    "mixed": ([1, "a", None], [1, "a", None]), "nested": ({"a": ['x"y', np.arange(2)]}, {"a": ['x"y', [0, 1]]}),
    "keys": ({(1, 2): 3}, "{(1, 2): 3}"), "complex_list": (np.array([1j]), ["1j"]), "flag": (np.bool_(True), True),
    "two words": (5, 5), "last": ("z", "z"),
}  # fmt: skip
LOST: dict[Any, Any] = {"complex": 1j, "set": {1}, "a=b": 1, "": 7, "end\\": 1, "Lattice": "no", "pbc": 0}
COLUMNS: dict[str, tuple[Any, list[Any]]] = {
    "symbols_of_objects": (np.array(["a", "bb", "c"], dtype=object), ["a", "bb", "c"]),
    "integers_of_objects": (np.array([1, 2, 3], dtype=object), [1, 2, 3]),
    "bytes": (np.array([b"a", b"b", b"c"]), ["a", "b", "c"]),
    "small": (np.arange(3, dtype=np.uint8), [0, 1, 2]),
    "large": (np.array([2**40, 1, 2]), [2.0**40, 1, 2]),
    "tensors": (np.arange(27.0).reshape(3, 3, 3), np.arange(27.0).reshape(3, 9).tolist()),
    "single": (np.ones((3, 1)), [1, 1, 1]),
    "mask": (np.array([True, False, True]), [True, False, True]),
}
LOST_COLUMNS = {
    "mixed_objects": np.array([1, None, "a"], dtype=object), "complex_rows": np.ones(3, dtype=complex),
    "blanks": np.array(["a b", "c", "d"]), "empty": np.array(["", "c", "d"]), "zero": np.zeros((3, 0)),
    "a:b": np.ones(3), "a b": np.ones(3), 'a"b': np.ones(3), "pos": np.ones(3), "Z": np.ones(3, dtype=int),
    "tensors0": np.ones(3), "wide": np.ones((3, 1200)), "huge": np.array([2**60, 1, 2]),
}  # fmt: skip


def _water(info: dict[Any, Any], arrays: dict[str, Any] | None = None) -> ase.Atoms:
    atoms = molecule("H2O")
    atoms.info |= info
    atoms.arrays |= arrays or {}
    atoms.calc = SinglePointCalculator(atoms, energy=-1.5, forces=np.full((3, 3), 0.5))
    return atoms


def _exact(atoms: ase.Atoms) -> str:
    return "".join(exact_extxyz([atoms, atoms]))


def _prediction(atoms: ase.Atoms) -> str:
    (system,), _ = structures_of([atoms])
    results = {"energy": -2.5, "forces": np.zeros((3, 3))}
    return _exact(predicted(atoms, system, results))


WRITERS = pytest.mark.parametrize("write", [_exact, _prediction])


@WRITERS
@pytest.mark.parametrize("name", KEPT)
def test_a_field_of_every_kind_is_read_back(tmp_path: Path, write: Any, name: str) -> None:
    path = tmp_path / "written.extxyz"
    value, expected = KEPT[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path.write_text(write(_water({name: value, "REF_unit": "eV"})))
    for found in (ase.io.read(path).info, ase.io.read(path, format="extxyz").info):
        back = found[name]
        assert (back.tolist() if isinstance(back, np.ndarray) else back) == expected
        assert found["REF_unit"] == "eV"
    assert read_file(path, required=("energy", "forces"))[0][0].energy == -1.5


@WRITERS
def test_what_cannot_be_held_is_left_out_with_one_warning(tmp_path: Path, write: Any) -> None:
    path = tmp_path / "written.extxyz"
    kept = {name: value for name, (value, _) in KEPT.items()}
    columns = {name: value for name, (value, _) in COLUMNS.items()}
    atoms = _water(kept | LOST | {3: 4}, columns | LOST_COLUMNS)
    with pytest.warns(UserWarning, match="left out of the extxyz file") as warned:
        path.write_text(write(atoms))
    (message,) = [str(warning.message) for warning in warned]
    for name in (*LOST, *LOST_COLUMNS):
        assert name in message
    found = ase.io.read(path)
    assert set(kept) | {"3"} <= set(found.info) and not set(LOST) & set(found.info)
    for name, (_, expected) in COLUMNS.items():
        assert found.arrays[name].tolist() == expected, name
    assert not set(LOST_COLUMNS) & set(found.arrays)
    assert found.get_chemical_symbols() == ["O", "H", "H"] and not found.pbc.any()
    np.testing.assert_array_equal(found.positions, atoms.positions)
    assert atoms.info["path"] == "C:\\new\\x y", "the given atoms are as before"


@WRITERS
@pytest.mark.parametrize("name", ["stress", "virial"])
def test_six_numbers_are_written_as_a_matrix(tmp_path: Path, write: Any, name: str) -> None:
    path = tmp_path / "written.extxyz"
    atoms = bulk("Cu", cubic=True)[:3]
    atoms.info[name] = [1.0, 2, 3, 4, 5, 6]
    atoms.calc = SinglePointCalculator(atoms, energy=-1.5, forces=np.zeros((3, 3)))
    path.write_text(write(atoms))
    factor = 1.0 if name == "stress" else -1 / atoms.cell.volume
    expected = factor * np.array([[1, 6, 5], [6, 2, 4], [5, 4, 3]])
    stress = read_file(path, required=("stress",))[0][0].stress
    assert stress is not None
    np.testing.assert_allclose(stress, expected)
    atoms.info[name] = "unknown"
    with pytest.warns(UserWarning, match=f"left out .*: {name} "):
        path.write_text(_exact(atoms))
    assert name not in ase.io.read(path).info


def test_results_of_other_kinds_are_written_beside_predictions(tmp_path: Path) -> None:
    """Tensors of atoms, and a field under the name of a result, both of which ASE alone cannot write."""
    atoms = _water({"dipole": [1, 2, 3], "charges": "unknown"}, {"free_energy": np.ones(3)})
    atoms.calc.results |= {"born_effective_charges": np.arange(27.0).reshape(3, 3, 3), "dipole": np.ones(3)}
    atoms.calc.results |= {"dielectric_tensor": np.arange(9.0).reshape(3, 3), "charges": np.arange(3.0)}
    (tmp_path / "written.extxyz").write_text(_prediction(atoms))
    results = ase.io.read(tmp_path / "written.extxyz").calc.results
    np.testing.assert_array_equal(results["born_effective_charges"], np.arange(27.0).reshape(3, 9))
    np.testing.assert_array_equal(results["dielectric_tensor"], np.arange(9.0).reshape(3, 3))
    assert results["dipole"].tolist() == [1, 1, 1] and results["energy"] == -2.5
    assert results["charges"].tolist() == [0, 1, 2]
