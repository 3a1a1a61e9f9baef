"""npz files of molecules: forms, units, and every complaint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from denskit.data import DataConfig, read_file
from denskit.units import BOHR, HARTREE, KCAL_PER_MOL


def _arrays(count: int = 4) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "R": rng.normal(size=(count, 3, 3)) * 3,
        "E": rng.normal(size=(count, 1)),
        "F": rng.normal(size=(count, 3, 3)),
        "z": np.array([8, 1, 1], dtype=np.uint8),
    }


def _write(folder: Path, **arrays: Any) -> Path:
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return path


def test_sgdml_units_are_read_from_the_file(tmp_path: Path) -> None:
    arrays = _arrays()
    path = _write(tmp_path, **arrays, e_unit="kcal/mol", r_unit="Ang")
    frames, messages = read_file(path, required=("energy", "forces"))
    np.testing.assert_allclose(frames[2].energy, arrays["E"][2, 0] * KCAL_PER_MOL, rtol=1e-15)
    np.testing.assert_allclose(frames[2].forces, arrays["F"][2] * KCAL_PER_MOL, rtol=1e-15)
    np.testing.assert_array_equal(frames[2].positions, arrays["R"][2])
    assert frames[2].atomic_numbers.tolist() == [8, 1, 1]
    assert "kcal/mol" in messages[0]
    assert "converted to eV" in messages[0]
    assert read_file(path.rename(tmp_path / "DATA.NPZ"))[0][2].energy == frames[2].energy


def test_ev_is_taken_as_it_is(tmp_path: Path) -> None:
    arrays = _arrays()
    frames, messages = read_file(_write(tmp_path, **arrays, e_unit=np.bytes_("eV"), r_unit="Ang"))
    np.testing.assert_array_equal(frames[1].forces, arrays["F"][1])
    assert "converted" not in messages[0]


def test_atomic_units(tmp_path: Path) -> None:
    arrays = _arrays()
    frames, _ = read_file(_write(tmp_path, **arrays, e_unit="Hartree", r_unit="bohr"))
    np.testing.assert_allclose(frames[0].positions, arrays["R"][0] * BOHR, rtol=1e-15)
    np.testing.assert_allclose(frames[0].forces, arrays["F"][0] * HARTREE / BOHR, rtol=1e-14)


def test_rmd17_form_is_kcal_and_says_that_this_is_assumed(tmp_path: Path) -> None:
    arrays = _arrays()
    names = {"R": "coords", "E": "energies", "F": "forces", "z": "nuclear_charges"}
    renamed = {names[key]: array for key, array in arrays.items()}
    renamed["energies"] = renamed["energies"][:, 0]
    frames, messages = read_file(_write(tmp_path, **renamed, old_indices=np.arange(4)))
    np.testing.assert_allclose(frames[3].energy, arrays["E"][3, 0] * KCAL_PER_MOL, rtol=1e-15)
    assert "assumed" in messages[0]
    assert "data.units=eV" in messages[0]


def test_the_user_has_the_last_word_on_units(tmp_path: Path) -> None:
    arrays = _arrays()
    frames, messages = read_file(_write(tmp_path, **arrays, e_unit="kcal/mol"), DataConfig(units="eV"))
    np.testing.assert_array_equal(frames[0].forces, arrays["F"][0])
    assert "as data.units says" in messages[0]
    config = DataConfig(units="Hartree", forces_unit="Hartree/Bohr")
    frames, messages = read_file(_write(tmp_path, **arrays), config)
    np.testing.assert_allclose(frames[0].forces, arrays["F"][0] * 27.211386245988 / 0.529177210903, rtol=1e-8)
    assert "forces in Hartree/Bohr" in messages[0]


def test_lattice_columns_become_cell_rows(tmp_path: Path) -> None:
    lattice = np.array([[3.0, 1.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 5.0]])
    frames, _ = read_file(_write(tmp_path, **_arrays(), lattice=lattice, e_unit="eV"))
    np.testing.assert_array_equal(frames[0].cell, lattice.T)
    assert frames[0].pbc.all()


def test_named_keys(tmp_path: Path) -> None:
    arrays = _arrays()
    path = _write(tmp_path, **arrays, E_cc=arrays["E"] + 1, e_unit="eV")
    frames, _ = read_file(path, DataConfig(energy_key="E_cc"))
    np.testing.assert_allclose(frames[0].energy, arrays["E"][0, 0] + 1)
    with pytest.raises(ValueError, match=r"no array E_mp2 \(data.energy_key\); it has E, E_cc, F"):
        read_file(path, DataConfig(energy_key="E_mp2"))


def test_groups_are_read(tmp_path: Path) -> None:
    path = _write(tmp_path, **_arrays(), run=np.array([1, 1, 2, 2]))
    assert read_file(path, DataConfig(group_key="run"))[0].groups == ("1", "1", "2", "2")
    with pytest.raises(ValueError, match="no array site"):
        read_file(path, DataConfig(group_key="site"))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"R": None}, "wanted the arrays R and z .* the file has E, F, z"),
        ({"F": np.zeros((4, 2, 3))}, r"array F is float64 of shape \(4, 2, 3\); wanted numbers of shape \(4, 3, 3\)"),
        ({"E": np.zeros(3)}, r"array E .* wanted numbers of shape \(4\)"),
        ({"R": np.zeros((0, 3, 3))}, "has no frames"),
        ({"z": np.array(["O", "H", "H"])}, "array z is <U1"),
        ({"e_unit": "parsec"}, "e_unit='parsec' is not known; say data.units"),
        ({"r_unit": "parsec"}, "r_unit='parsec' is not known"),
    ],
)
def test_bad_arrays_are_named(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    arrays = {key: array for key, array in {**_arrays(), **change}.items() if array is not None}
    path = _write(tmp_path, **arrays)
    with pytest.raises(ValueError, match=complaint) as raised:
        read_file(path)
    assert str(path) in str(raised.value)


def test_truncated_foreign_and_pickled_files_are_named(tmp_path: Path) -> None:
    path = _write(tmp_path, **_arrays(400))
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"not at all", b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"data\.npz is truncated or no npz file"):
            read_file(path)
    np.savez(path, R=np.array([{"a": 1}], dtype=object), z=np.array([1]))
    with pytest.raises(ValueError, match=r"data\.npz: array R is damaged, or no plain array .it holds Python objects"):
        read_file(path)


def test_real_md17(data_dir: Path) -> None:
    frames, messages = read_file(data_dir / "md17_ethanol.npz", required=("energy", "forces"))
    raw = np.load(data_dir / "md17_ethanol.npz")
    assert len(frames) == 1500
    np.testing.assert_allclose(frames.energy, raw["E"][:, 0] * KCAL_PER_MOL, rtol=1e-15)
    assert -4216 < frames.energy.mean() < -4214  # eV: C2H6O in DFT
    assert "kcal/mol" in messages[0]
