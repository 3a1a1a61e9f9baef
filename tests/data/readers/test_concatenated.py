"""npz files of many structures of different sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from denskit.data import DataConfig, load_data, read_file
from denskit.units import KCAL_PER_MOL


def _arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    natoms = np.array([3, 2, 4, 3], dtype=np.int32)
    atoms = int(natoms.sum())
    return {
        "natoms": natoms,
        "pos": rng.uniform(0, 9, size=(atoms, 3)).astype(np.float32),
        "z": np.resize([29, 8, 1], atoms).astype(np.uint8),
        "energy": rng.normal(size=4),
        "forces": rng.normal(size=(atoms, 3)).astype(np.float32),
        "cell": np.tile(np.eye(3) * 9, (4, 1, 1)),
        "fixed": np.arange(atoms) % 3 == 0,
        "tags": np.resize([0, 1, 2], atoms).astype(np.int8),
        "sid": np.array(["a", "a", "b", "c"]),
        "fid": np.array([0, 1, 0, 0], dtype=np.int32),
    }


def _write(folder: Path, **changes: Any) -> Path:
    path = folder / "data.npz"
    np.savez(path, **{name: value for name, value in (_arrays() | changes).items() if value is not None})
    return path


def test_every_array_arrives_where_it_belongs(tmp_path: Path) -> None:
    arrays = _arrays()
    frames, (said,) = read_file(_write(tmp_path), required=("energy", "forces"))
    begin = 0
    for index, count in enumerate(arrays["natoms"]):
        frame, atoms = frames[index], slice(begin, begin + count)
        for name, key in (("positions", "pos"), ("forces", "forces"), ("atomic_numbers", "z"), ("fixed", "fixed"),
                          ("tags", "tags")):  # fmt: skip
            np.testing.assert_array_equal(getattr(frame, name), arrays[key][atoms])
        assert frame.energy == arrays["energy"][index]
        assert (frame.sid, frame.fid, frame.group) == (arrays["sid"][index], arrays["fid"][index], arrays["sid"][index])
        assert frame.pbc.all() and frame.denoise
        begin += count
    assert frames.sizes.tolist() == [3, 2, 4, 3]
    assert "energies in eV" in said


def test_other_names_units_and_what_may_be_left_out(tmp_path: Path) -> None:
    a = _arrays()
    path = _write(
        tmp_path, pos=None, positions=a["pos"], z=None, numbers=a["z"], forces=None, force=a["forces"], cell=None,
        fixed=None, tags=None, sid=None, fid=None,
    )  # fmt: skip
    frames, (said,) = read_file(path, DataConfig(units="kcal/mol", origin="md"))
    assert frames[0].energy == pytest.approx(a["energy"][0] * KCAL_PER_MOL)
    np.testing.assert_allclose(frames[0].forces, a["forces"][:3].astype(float) * KCAL_PER_MOL)
    assert not (frames[0].pbc.any() or frames[0].fixed.any() or frames[0].tags.any() or frames[0].denoise)
    assert (frames[0].sid, frames[0].fid, frames[0].group) == ("", None, "")
    atomic, (told,) = read_file(path, DataConfig(units="Ry", forces_unit="Ry/Bohr", origin="md"))
    expected = a["forces"][:3].astype(float) * 13.605693122994 / 0.529177210903
    np.testing.assert_allclose(atomic[0].forces, expected, rtol=1e-8)
    assert "forces in Ry/Bohr" in told
    assert "fixed" not in said, "nobody expects fixed atoms of molecules"
    _, (said,) = read_file(_write(tmp_path, fixed=None))
    assert said.endswith("; no array fixed, so no atom is held in relaxations")


def test_periodicity_follows_pbc_then_the_cell(tmp_path: Path) -> None:
    cell = np.tile(np.diag([9.0, 9.0, 0.0]), (4, 1, 1))
    assert read_file(_write(tmp_path, cell=cell))[0][0].pbc.tolist() == [True, True, False]
    assert not read_file(_write(tmp_path, pbc=np.zeros((4, 3), dtype=bool)))[0][0].pbc.any()


def test_systems_are_divided_as_wholes_by_default(tmp_path: Path) -> None:
    data = load_data(DataConfig(path=str(_write(tmp_path))), seed=0)
    assert "whole groups" in data.messages[-1]
    keyed = load_data(DataConfig(path=str(_write(tmp_path, run=np.array(list("xxyz")))), group_key="run"), seed=0)
    assert {keyed.train[index].group for index in range(len(keyed.train))} <= set("xyz")


@pytest.mark.parametrize(
    ("changes", "config", "message"),
    [
        ({"pos": None}, {}, "no array pos or positions; it has cell, energy"),
        ({"pos": np.zeros((3, 3))}, {}, r"array pos is float64 of shape .3, 3.; wanted numbers of shape .12, 3."),
        ({"energy": np.zeros(3)}, {}, "array energy is float64 of shape .3,."),
        ({"natoms": np.array([3.0, 2, 4, 3])}, {}, "natoms is float64"),
        ({"natoms": np.array([], dtype=int)}, {}, "natoms is int64 of shape .0,."),
        ({"natoms": np.array([3, 0, 6, 3])}, {}, "wanted positive integers"),
        ({"sid": np.array(["a"])}, {}, "no array sid with one entry for each of 4 frames"),
        ({"energy": np.array(list("abcd"))}, {}, "array energy is <U1"),
        ({}, {"energy_key": "E"}, "has no array E .data.energy_key."),
        ({}, {"group_key": "run"}, "has no array run with one entry"),
        ({}, {"stress_key": "stress"}, "carry no stress"),
        ({"cell": np.zeros((4, 3, 3)), "pbc": np.ones((4, 3))}, {}, "cell vectors are zero"),
    ],
)
def test_arrays_that_do_not_fit_are_named(
    changes: dict[str, Any], config: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        read_file(_write(tmp_path, **changes), DataConfig(**config))


def test_real_relaxations(data_dir: Path, tmp_path: Path) -> None:
    with np.load(data_dir / "oc20_s2ef_train.npz") as file:
        natoms = file["natoms"][:60]
        atoms = natoms.sum()
        of_atoms = ("pos", "forces", "z", "fixed", "tags")
        arrays = {name: file[name][: atoms if name in of_atoms else 60] for name in file.files}
    np.savez(tmp_path / "some.npz", **arrays)
    frames, _ = read_file(tmp_path / "some.npz", required=("energy", "forces"))
    assert len(frames) == 60
    assert all(frame.fixed.any() and not frame.fixed.all() and frame.tags.max() == 2 for frame in frames)
    assert (frames[0].sid, frames[0].fid, frames[0].energy) == ("random1000100", 0, pytest.approx(-57.74908337))
