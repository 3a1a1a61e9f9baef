"""Files that ASE reads: names of labels, signs, constraints, and every complaint."""

from __future__ import annotations

import gzip
import lzma
import re
from pathlib import Path

import ase
import ase.db
import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms, FixBondLength, FixCartesian, FixScaled

from denskit.cli.md import _read_by_ase as md_frames
from denskit.data import DataConfig, read_file
from denskit.data.inspection import inspect_file
from denskit.data.loading import read
from denskit.data.readers.ase_files import fixed_atoms, frames_in
from denskit.data.readers.folders import read_given
from denskit.reading.budget import Unreadable


def _copper(strain: float = 0.0) -> ase.Atoms:
    """Distorted copper with labels of a real potential."""
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=1)
    atoms.set_cell(atoms.cell * (1 + strain), scale_atoms=True)
    atoms.calc = EMT()
    results = {
        "energy": atoms.get_potential_energy(),
        "forces": atoms.get_forces(),
        "stress": atoms.get_stress(),
    }
    atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms


def _water(**info: float) -> ase.Atoms:
    atoms = molecule("H2O")
    atoms.info.update(info)
    return atoms


@pytest.mark.parametrize("suffix", ["extxyz", "xyz", "traj", "db", "json"])
def test_every_format_gives_the_calculators_labels(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"copper.{suffix}"
    written = [_copper(), _copper(0.02)]
    ase.io.write(path, written)
    frames, messages = read_file(path, required=("energy", "forces", "stress"))
    assert len(frames) == 2
    for system, atoms in zip(frames, written, strict=True):
        np.testing.assert_allclose(system.energy, atoms.get_potential_energy(), atol=1e-7)
        np.testing.assert_allclose(system.forces, atoms.get_forces(), atol=1e-7)
        np.testing.assert_allclose(system.stress, atoms.get_stress(voigt=False), atol=1e-7)
        np.testing.assert_allclose(system.positions, atoms.positions, atol=1e-7)
        np.testing.assert_allclose(system.cell, atoms.cell.array, atol=1e-7)
    assert "energy from energy, forces from forces, stress from stress" in messages[0]


def test_stress_is_the_energys_derivative_by_strain(tmp_path: Path) -> None:
    """Isotropic strain: dE/dstrain = V * trace(stress), ASE's sign (a compressed crystal has negative stress)."""
    path = tmp_path / "copper.extxyz"
    ase.io.write(path, [_copper(-0.05), _copper(-0.05 + 1e-5), _copper(-0.05 - 1e-5)])
    frames, _ = read_file(path)
    assert frames[0].stress is not None
    volume = np.linalg.det(frames[0].cell)
    numeric = (frames.energy[1] - frames.energy[2]) / 2e-5 * (1 - 0.05)  # strain relative to the compressed cell
    np.testing.assert_allclose(volume * np.trace(frames[0].stress), numeric, rtol=1e-4)
    assert np.trace(frames[0].stress) < 0


@pytest.mark.parametrize("form", ["REF_stress", "REF_virial", "REF_virials", "voigt"])
def test_reference_labels_and_virials(tmp_path: Path, form: str) -> None:
    atoms = _copper()
    expected = atoms.get_stress(voigt=False)
    volume = atoms.get_volume()
    atoms.info["REF_energy"], atoms.arrays["REF_forces"] = -7.5, atoms.get_forces() + 1
    values = {"REF_stress": expected, "voigt": atoms.get_stress()}.get(form, -expected * volume)
    atoms.info["REF_stress" if form == "voigt" else form] = values
    atoms.calc = None
    path = tmp_path / "copper.extxyz"
    ase.io.write(path, atoms)
    (system,), messages = read_file(path, required=("energy", "forces", "stress"))
    assert system.energy == -7.5
    np.testing.assert_allclose(system.forces, atoms.arrays["REF_forces"], atol=1e-7)
    np.testing.assert_allclose(system.stress, expected, atol=1e-7)
    assert "energy from REF_energy, forces from REF_forces" in messages[0]


@pytest.mark.parametrize("spelling", ['"{}"', "[{}]", "'[{}]'", "{{{}}}", "{}", "[[{}], [0, 0, 0], [0, 0, 0]]"])
@pytest.mark.parametrize("key", ["stress", "virial"])
def test_six_numbers_of_a_stress_or_virial(tmp_path: Path, key: str, spelling: str) -> None:
    """ASE itself refuses six numbers under these names."""
    atoms, path = _copper(), tmp_path / "copper.extxyz"
    voigt = atoms.get_stress() * (1 if key == "stress" else -atoms.get_volume())
    ase.io.write(path, atoms)
    separator = ", " if "[" in spelling else "," if spelling == "{}" else " "
    field = spelling.format(separator.join(f"{number:.9f}" for number in voigt))
    path.write_text(re.sub(r'stress="[^"]*"', lambda _: f"{key}={field}", path.read_text()))
    if "[[" in spelling:  # neither six numbers nor a matrix of nine
        with pytest.raises(ValueError, match=r"copper.extxyz cannot be read at its beginning"):
            read_file(path)
        return
    (system,), _ = read_file(path, required=("stress",))
    np.testing.assert_allclose(system.stress, atoms.get_stress(voigt=False), atol=1e-8)


def test_references_win_over_what_a_calculator_left_and_this_is_said(tmp_path: Path) -> None:
    atoms = _copper()
    atoms.info["REF_energy"] = -7.5
    path = tmp_path / "copper.extxyz"
    ase.io.write(path, atoms)
    (system,), messages = read_file(path)
    assert system.energy == -7.5
    assert any("energy is REF_energy (not energy)" in message for message in messages)
    assert read_file(path, DataConfig(energy_key="energy"))[0][0].energy == pytest.approx(atoms.get_potential_energy())


def test_one_label_under_two_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mixed.extxyz"
    ase.io.write(path, [_copper(), _water(REF_energy=1.0)])
    with pytest.raises(
        ValueError, match=r"energy differently \(energy in 1, REF_energy in 1 frames\).*data.energy_key"
    ):
        read_file(path)


def test_a_key_that_is_needed_shows_the_keys_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "water.extxyz"
    ase.io.write(path, _water(dft_energy=-3.0))
    with pytest.raises(ValueError, match=r"no frame has energy. Fields seen in the file: dft_energy.*data.energy_key"):
        read_file(path, required=("energy",))
    assert read_file(path, DataConfig(energy_key="dft_energy"), required=("energy",))[0][0].energy == -3.0


def test_forces_are_those_without_constraints_and_fixed_atoms_are_known(tmp_path: Path) -> None:
    atoms = _copper()
    forces = atoms.get_forces()
    atoms.set_constraint(FixAtoms([0, 2]))
    path = tmp_path / "fixed.traj"
    ase.io.write(path, atoms)
    (system,), _ = read_file(path)
    assert system.fixed.tolist() == [True, False, True, False]
    np.testing.assert_allclose(system.forces, forces, atol=1e-12)
    assert np.abs(forces[0]).max() > 0.01


@pytest.mark.parametrize("ending", ["traj", "extxyz"])
def test_atoms_held_in_all_directions_are_fixed_by_any_constraint(tmp_path: Path, ending: str) -> None:
    """In extxyz ASE gives each free atom a constraint that holds nothing."""
    atoms = _copper()
    atoms.set_constraint([FixAtoms([0]), FixCartesian([2]), FixCartesian([3], mask=(False, False, False))])
    path = tmp_path / f"fixed.{ending}"
    ase.io.write(path, atoms)
    (system,), messages = read_file(path)
    assert system.fixed.tolist() == [True, False, True, False]
    assert not any("constraint" in message for message in messages)
    atoms.set_constraint(FixScaled([1, 2]))
    assert fixed_atoms(atoms)[0].tolist() == [False, True, True, False]
    atoms.set_constraint(FixCartesian([1], mask=(True, False, False)))
    ase.io.write(path, atoms)
    assert any("FixCartesian (only wholly fixed atoms count as fixed), 1 time" in line for line in read_file(path)[1])


def test_constraints_that_fix_no_atom_are_said_to_be_ignored(tmp_path: Path) -> None:
    atoms = _copper()
    atoms.set_constraint(FixBondLength(0, 1))
    path = tmp_path / "bond.traj"
    ase.io.write(path, atoms)
    (system,), messages = read_file(path)
    assert not system.fixed.any()
    assert any("FixBondLength" in message for message in messages)


def test_stress_without_a_volume_is_ignored_and_this_is_said(tmp_path: Path) -> None:
    atoms = _copper()
    atoms.pbc = [True, True, False]
    path = tmp_path / "slab.extxyz"
    ase.io.write(path, atoms)
    (system,), messages = read_file(path)
    assert system.stress is None
    assert any("the stress of frame 0 (counted from 0) is ignored" in message for message in messages)


def test_groups_from_info_and_from_a_database(tmp_path: Path) -> None:
    for name in ("groups.extxyz", "groups.db", "groups.json", "groups.json.gz", "GROUPS.DB"):
        path = tmp_path / name
        atoms = [molecule("H2O"), molecule("CH4")]
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
        elif path.suffix != ".extxyz":
            with ase.db.connect(path, type=path.suffix[1:].lower()) as database:
                for row, kind in zip(atoms, ("wet", "dry"), strict=True):
                    database.write(row, material=kind, REF_energy=-1.0)
        else:
            for row, kind in zip(atoms, ("wet", "dry"), strict=True):
                row.info["material"] = kind
            ase.io.write(path, atoms)
        frames, _ = read_file(path, DataConfig(group_key="material"))
        assert frames.groups == ("wet", "dry")
        assert (frames[0].energy == -1.0) == (path.suffix != ".extxyz"), name
    with pytest.raises(ValueError, match=r"frame 0 has no sid \(data.group_key\). Fields of the frame: material"):
        read_file(tmp_path / "groups.extxyz", DataConfig(group_key="sid"))


def test_units_can_be_said(tmp_path: Path) -> None:
    path = tmp_path / "water.extxyz"
    ase.io.write(path, _water(REF_energy=1.0))
    frames, messages = read_file(path, DataConfig(units="Hartree"))
    assert frames[0].energy == pytest.approx(27.211386, abs=1e-6)
    assert "Hartree, converted to eV" in messages[0]
    ase.io.write(path, _water(REF_energy=1.0, energy_unit="Ha"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"frame 0 says energy_unit=Ha; say data.units"):
        read_file(path)
    assert read_file(path, DataConfig(units="Hartree"))[0][0].energy == pytest.approx(27.211386, abs=1e-6)
    assert frames.unit == "Hartree"


@pytest.mark.parametrize(("unit", "size"), [("Hartree", 27.211386245988), ("Ry", 13.605693122994)])
def test_atomic_units(tmp_path: Path, unit: str, size: float) -> None:
    """Energies in Hartree or Rydberg, forces in these per Bohr, lengths in Å."""
    bohr = 0.529177210903
    forces = np.arange(9.0).reshape(3, 3)
    path = tmp_path / "water.extxyz"
    ase.io.write(path, _water(REF_energy=-2 / size, REF_forces=forces / (size / bohr)))
    config = DataConfig.model_validate({"units": unit, "forces_unit": f"{unit}/Bohr"})
    (frame,), messages = read_file(path, config)
    assert frame.energy == pytest.approx(-2, abs=1e-8)
    np.testing.assert_allclose(frame.forces, forces, atol=1e-6)
    assert any(f"forces in {unit}/Bohr, converted to eV/Å" in said for said in messages)


def test_a_free_energy_that_differs_is_noted(tmp_path: Path) -> None:
    def said(difference: float, config: DataConfig | None = None) -> str:
        atoms = _copper()
        atoms.calc.results["free_energy"] = atoms.calc.results["energy"] + difference
        return "\n".join(read_file(_written(tmp_path, atoms), config or DataConfig())[1])

    assert "note: " in said(-0.4) and "by 400 meV a structure (rms of 1 frame)" in said(-0.4)
    assert "free_energy differs" not in said(0.0)
    for key in ("energy", "free_energy"):
        chosen = said(-0.4, DataConfig(energy_key=key))
        assert f"energy from {key}" in chosen and "differs" not in chosen


def test_a_stress_and_a_virial_that_contradict_each_other_are_told(tmp_path: Path) -> None:
    atoms = _copper()
    stress = atoms.get_stress(voigt=False)
    for sign, contradict in ((-1.0, False), (1.0, True)):
        atoms.info["virial"] = sign * stress * atoms.get_volume()
        said = "\n".join(read_file(_written(tmp_path, atoms))[1])
        assert ("warning: " in said and "stress and virial contradict each other in frame 0" in said) == contradict, (
            said
        )
    for config in (
        DataConfig(stress_key="stress"),
        DataConfig(stress_unit="kbar"),
        DataConfig(stress_sign="compression"),
    ):
        assert "contradict" not in "\n".join(read_file(_written(tmp_path, atoms), config)[1])
    atoms.info["REF_stress"] = 2 * stress  # of another method
    assert "contradict" not in "\n".join(read_file(_written(tmp_path, atoms))[1])


def test_weights_that_are_not_read_are_told(tmp_path: Path) -> None:
    for name, value, told in (
        ("config_weight", 1.0, False),
        ("config_weight", 0.0, True),
        ("config_energy_weight", 2.0, True),
        ("config_virials_weight", 0.0, False),  # of a label that the frame does not have
    ):
        said = "\n".join(read_file(_written(tmp_path, _water(REF_energy=1.0, **{name: value})))[1])
        assert ("warning: " in said and "all structures and labels weigh the same" in said) == told
    water = _water(REF_energy=1.0)
    water.info["config_weight"] = np.array([1.0, 0.5, 1.0])
    assert "all structures and labels weigh the same" in "\n".join(read_file(_written(tmp_path, water))[1])


def test_results_that_say_so_are_in_ev(tmp_path: Path) -> None:
    """Whatever the unit and sign of the other labels."""
    path, other = tmp_path / "copper.extxyz", DataConfig(units="Hartree", stress_unit="GPa", stress_sign="compression")
    marked = _copper()
    marked.info["result_unit"] = "eV"
    ase.io.write(path, [_copper(), marked])
    (plain, same), messages = read_file(path, other)
    (expected,) = read_file(_written(tmp_path, _copper()))[0]
    assert same.energy == expected.energy and plain.energy == pytest.approx(27.211386 * expected.energy)
    np.testing.assert_allclose(same.stress, expected.stress)
    np.testing.assert_allclose(same.forces, expected.forces)
    assert any("labels in eV of 1 frame (" in said for said in messages)
    assert read_file(path, other)[0].unit == ""
    marked.info["energy_unit"] = "kcal/mol"  # of the file that a model's results were written beside
    assert read_file(_written(tmp_path, marked))[0].unit == "eV"
    assert read_file(_written(tmp_path, marked), other)[0].unit == "eV"
    marked.info["REF_energy"] = -9.0  # of the file, which is read then, is not in eV
    with pytest.raises(ValueError, match="says energy_unit=kcal/mol; say data.units"):
        read_file(_written(tmp_path, marked))


def _written(folder: Path, atoms: ase.Atoms) -> Path:
    ase.io.write(folder / "written.extxyz", atoms)
    return folder / "written.extxyz"


def test_a_byte_order_mark_is_named(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "water.extxyz", _water(REF_energy=1.0))
    content = (tmp_path / "water.extxyz").read_bytes()
    (tmp_path / "marked.extxyz").write_bytes(b"\xef\xbb\xbf" + content)
    with pytest.raises(ValueError, match="byte order mark"):
        read_file(tmp_path / "marked.extxyz")


@pytest.mark.parametrize(("own", "reference"), [("forces", "energy"), ("energy", "forces")])
def test_labels_of_two_methods_are_warned_of(tmp_path: Path, own: str, reference: str) -> None:
    """A reference for one label alone, beside results for both, as a model writes them."""
    atoms = molecule("H2O")
    forces = np.full((3, 3), 0.3)
    atoms.calc = SinglePointCalculator(atoms, energy=-3.0, forces=forces)
    if reference == "energy":
        atoms.info["REF_energy"] = -2.0
    else:
        atoms.arrays["REF_forces"] = 0.5 * forces
    path = tmp_path / "mixed.extxyz"
    ase.io.write(path, [atoms] * 3)
    (warning,) = [line for line in read_file(path)[1] if line.startswith("warning")]
    assert "labels of two methods in frames 0, 1, 2" in warning
    assert f"{own} from {own}" in warning and f"{reference} from REF_{reference}" in warning
    assert "data.energy_key=KEY and data.forces_key=KEY" in warning
    (problem,) = [finding for finding in inspect_file(path).problems if "two methods in" in finding.found]
    assert problem.found == warning.removeprefix("warning: ")
    chosen = read_file(path, DataConfig(energy_key="energy", forces_key="forces"))[1]
    assert not [line for line in chosen if line.startswith("warning")]


def test_ordinary_files_may_be_packed_and_are_joined(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a", "b"):
        ase.io.write(folder / f"{name}.extxyz", _water(REF_energy=1.0))
    (tmp_path / "c.extxyz.xz").write_bytes(lzma.compress((folder / "a.extxyz").read_bytes()))
    assert read_file(tmp_path / "c.extxyz.xz")[0][0].energy == 1.0
    assert len(read(folder)) == len(read(folder / "*.extxyz")) == 2
    with pytest.raises(ValueError, match=r"2 files of structures \(a.extxyz, ...\), and one file is wanted here"):
        read_file(folder)
    with pytest.raises(FileNotFoundError, match=r"no file .*\*.xyz that this pattern names"):
        read(folder / "*.xyz")


def test_wrong_shapes_and_kinds_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.extxyz"
    ase.io.write(path, [_water(REF_energy=1.0), _water(REF_energy="low")])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"bad.extxyz, frame 1: REF_energy is 'low' where numbers are wanted"):
        read_file(path)
    atoms = _water()
    atoms.info["REF_energy"] = np.array([1.0, 2.0, 3.0])
    ase.io.write(path, atoms)
    with pytest.raises(ValueError, match=r"frame 0: REF_energy is of shape \(3,\)"):
        read_file(path)


@pytest.mark.parametrize(
    "counts", ["H\n1000000000\nDirect", "1000000000\nDirect", "H O\n5 1000000000000 ! many\nDirect"]
)
@pytest.mark.parametrize("name", ["POSCAR", "a.vasp", "CONTCAR_1"])
def test_counts_of_a_header_take_no_memory(name: str, counts: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(f"H\n1.0\n8 0 0\n0 8 0\n0 0 8\n{counts}\n0 0 0\n")
    with pytest.raises(Unreadable, match=rf"{name} has .* bytes and would take over 104,857,600 in memory"):
        read_file(path)
    with pytest.raises(Unreadable, match=rf"{name} has .* bytes and would take over"):
        md_frames(path, "-1")


def test_rows_named_again_and_again_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    ase.io.write(path, _water())
    path.write_text(path.read_text().replace('"ids": [1]', f'"ids": {[1] * 1000}'))
    assert len(read_file(path)[0]) == 1000
    monkeypatch.setenv("DENSKIT_MAX_EXPANSION", "0.1")
    with pytest.raises(Unreadable, match=r"a.json has .* bytes and would take over 104,857 in memory"):
        read_file(path)


@pytest.mark.parametrize("ending", ["vasp", "json", "cif"])
def test_packed_files_that_swell_are_refused(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}.gz"
    path.write_bytes(gzip.compress(b"0" * (101 * 2**20), compresslevel=1))
    with pytest.raises(Unreadable, match=rf"a.{ending}.gz has .* bytes and would take over 104,857,600 in memory"):
        read_file(path)


def test_frames_before_a_damaged_one_are_given(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    ase.io.write(path, _water())
    path.write_text(path.read_text().replace('"ids": [1]', f'"ids": {[1] * 20 + [2]}'))
    found = frames_in(path)
    assert [len(next(found)) for _ in range(20)] == [3] * 20
    with pytest.raises(KeyError):
        next(found)
    with pytest.raises(ValueError, match=r"a.json cannot be read after 20 frames"):
        read_file(path)


def test_truncated_and_foreign_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.extxyz"
    ase.io.write(path, [_copper(), _copper()])
    path.write_text("\n".join(path.read_text().splitlines()[:-2]))
    with pytest.raises(ValueError, match=r"cut.extxyz cannot be read: it is truncated"):
        read_file(path)
    foreign = tmp_path / "foreign.xyz"
    foreign.write_text("a letter to a friend\nand more of it\n")
    with pytest.raises(ValueError, match=r"foreign.xyz"):
        read_file(foreign)
    (tmp_path / "empty.extxyz").touch()
    with pytest.raises(ValueError, match=r"empty.extxyz"):
        read_file(tmp_path / "empty.extxyz")
    trajectory = tmp_path / "broken.traj"
    trajectory.write_bytes(b"- of Ulm" + bytes(20))
    with pytest.raises(ValueError, match=r"broken.traj cannot be read"):
        read_file(trajectory)
    with pytest.raises(FileNotFoundError, match="no file"):
        read_file(tmp_path / "nowhere.extxyz")
    with pytest.raises(ValueError, match="is a folder"):
        read_file(tmp_path)


def test_real_mptrj_has_stress_with_ases_sign(data_dir: Path) -> None:
    path = data_dir / "mptrj_850.extxyz"
    frames, _ = read_file(path, DataConfig(group_key="mptrj_traj_id"), required=("energy", "forces", "stress"))
    assert len(frames) == 850
    for index in (0, 17, 849):
        atoms = ase.io.read(path, index)
        np.testing.assert_array_equal(frames[index].stress, atoms.get_stress(voigt=False))
        np.testing.assert_array_equal(frames[index].forces, atoms.get_forces())
        assert frames[index].group == atoms.info["mptrj_traj_id"]


@pytest.mark.parametrize(
    ("unit", "sign", "factor"),
    [("GPa", "tension", 160.2176634), ("kbar", "compression", -1602.176634), ("auto", "compression", -1.0)],
)
def test_stress_in_other_units_and_signs(tmp_path: Path, unit: str, sign: str, factor: float) -> None:
    atoms = _copper()
    expected = atoms.get_stress(voigt=False)
    atoms.info["REF_stress"] = factor * expected
    atoms.calc = None
    ase.io.write(tmp_path / "frames.extxyz", atoms)
    config = DataConfig.model_validate({"stress_unit": unit, "stress_sign": sign})
    (system,), messages = read_file(tmp_path / "frames.extxyz", config)
    np.testing.assert_allclose(system.stress, expected, atol=1e-6)
    assert any(f"positive under {sign}, converted to eV/Å^3" in message for message in messages)


def test_settings_of_a_stress_do_not_apply_to_a_virial(tmp_path: Path) -> None:
    atoms = _copper()
    atoms.info["REF_virial"] = np.eye(3)
    ase.io.write(tmp_path / "frames.extxyz", atoms)
    with pytest.raises(ValueError, match="REF_virial is read as a virial.*data.stress_key.*data.stress_unit=auto"):
        read_file(tmp_path / "frames.extxyz", DataConfig(stress_unit="GPa"))
    (plain,), _ = read_file(tmp_path / "frames.extxyz")
    (flipped,), _ = read_file(tmp_path / "frames.extxyz", DataConfig(stress_sign="compression"))
    np.testing.assert_allclose(flipped.stress, -plain.stress)


@pytest.mark.parametrize("label", ["energy", "forces", "stress"])
def test_a_key_that_no_frame_has_is_said(tmp_path: Path, label: str) -> None:
    atoms = _copper()
    atoms.info["my_stress_dft"] = np.eye(3)
    ase.io.write(tmp_path / "frames.extxyz", atoms)
    _, messages = read_file(tmp_path / "frames.extxyz", DataConfig.model_validate({f"{label}_key": "my_strss_dft"}))
    (said,) = [message for message in messages if "no frame has my_strss_dft" in message]
    assert f"no label of {label} (data.{label}_key); did you mean my_stress_dft?" in said


CIF = """data_x
_cell_length_a 3.2
_cell_length_b 3.2
_cell_length_c 3.2
_cell_angle_alpha 90
_cell_angle_beta 90
_cell_angle_gamma 90
_symmetry_space_group_name_H-M 'P 1'
loop_
_atom_site_label
_atom_site_type_symbol
_atom_site_occupancy
_atom_site_fract_x
_atom_site_fract_y
_atom_site_fract_z
{sites}
"""


@pytest.mark.parametrize(
    ("sites", "said"),
    [
        ("W1 W 1.0 0 0 0\nNb1 Nb 1.0 0.5 0.5 0.5", ""),
        ("W1 W ? 0 0 0\nNb1 Nb ? 0.5 0.5 0.5", ""),
        ("W1 W 1.0 0 0 0\nNb1 Nb 0.4 0.5 0.5 0.5\nMo1 Mo 0.6 0.5 0.5 0.5", r"several elements \(Nb 0\.4, Mo 0\.6\)"),
        ("W1 W 1.0 0 0 0\nNb1 Nb 0.5 0.5 0.5 0.5", r"occupied in part .*Nb 0\.5"),
    ],
)
def test_partial_occupancies_are_refused(tmp_path: Path, sites: str, said: str) -> None:
    path = tmp_path / "crystal.cif"
    path.write_text(CIF.format(sites=sites))
    if not said:
        assert len(read_file(path, DataConfig(missing="mask"))[0][0]) == 2
        return
    with pytest.raises(ValueError, match=rf"crystal\.cif, frame 0 has a site .*{said}"):
        read_file(path, DataConfig(missing="mask"))


def test_frames_of_a_simulation_count_once(tmp_path: Path) -> None:
    """Those on which a committee disagrees are of the same runs as the trajectories; alone they are read."""
    for name, energies in {"trajectory_0": (1.0, 2.0), "trajectory_1": (3.0,), "uncertain": (2.0, 3.0)}.items():
        ase.io.write(tmp_path / f"{name}.extxyz", [_water(REF_energy=energy) for energy in energies])
    found, said = read_given(tmp_path, DataConfig(missing="mask"), read_file)
    assert [system.energy for system in found] == [1.0, 2.0, 3.0]
    assert any("uncertain.extxyz is left out" in line for line in said)
    (tmp_path / "other.extxyz").write_bytes((tmp_path / "trajectory_1.extxyz").read_bytes())
    assert len(read_given(tmp_path, DataConfig(missing="mask"), read_file)[0]) == 4
    assert len(read_given(tmp_path / "uncertain.extxyz", DataConfig(missing="mask"), read_file)[0]) == 2
    for path in tmp_path.glob("trajectory_*"):
        path.unlink()
    found, said = read_given(tmp_path, DataConfig(missing="mask"), read_file)
    assert len(found) == 3 and not any("left out" in line for line in said)
