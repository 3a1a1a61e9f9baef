"""What a file's structures carry survives prediction and relaxation, and labels stay apart from predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ase
import ase.db
import ase.io
import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms, FixCartesian

from contract.variants import build
from denskit.data.config import DataConfig
from denskit.data.loading import read_file
from denskit.data.readers.folders import read_given
from denskit.data.readers.formats import open_unchecked
from denskit.data.writing import Originals, names_of, plain, predicted, relabelled
from denskit.evaluation.evaluate import predict, predict_file
from denskit.models.model_file import save_model
from denskit.simulation.potential import Potential
from denskit.simulation.relaxation import RelaxationSettings
from denskit.simulation.relaxation.folder import RelaxationFolder, relax_into

ROWS = Path(__file__).parent / "fixtures" / "rows.aselmdb"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(path, build("envelope", torch.float32), {})
    return path


def labelled() -> list[ase.Atoms]:
    """A molecule and a crystal with all that users attach."""
    frames = [molecule("CH3CH2OH"), bulk("Cu", cubic=True)]
    for number, atoms in enumerate(frames):
        n = len(atoms)
        atoms.rattle(0.05, seed=number)
        atoms.info |= {"config_type": f"kind {number}", "OH_dist": 0.97, "step": number, "weights": np.arange(4.0)}
        atoms.arrays |= {
            "ids": np.arange(n) + 100,
            "mask": np.arange(n) % 2 == 0,
            "site": np.array([f"s{i}" for i in range(n)]),
            "my_vectors": np.arange(3.0 * n).reshape(n, 3),
        }
        atoms.set_initial_charges(np.linspace(-1, 1, n))
        atoms.set_momenta(np.ones((n, 3)))
        atoms.set_tags(np.arange(n) % 3)
        atoms.set_constraint(FixAtoms([0, 2]))
        results: dict[str, Any] = {
            "energy": -7.5 - number,
            "forces": np.full((n, 3), 0.25),
            "magmoms": np.arange(1.0 * n),
        }
        if atoms.pbc.all():
            results |= {"stress": np.array([1.0, 2, 3, 0.1, 0.2, 0.3]) * 1e-3, "free_energy": -8.0}
        atoms.calc = SinglePointCalculator(atoms, **results)
    return frames


def write(path: Path, frames: list[ase.Atoms]) -> Path:
    if path.suffix == ".db":
        with ase.db.connect(path) as database:
            for atoms in frames:
                kept = {name: atoms.info[name] for name in ("config_type", "OH_dist", "step")}
                extra = {name: atoms.arrays[name] for name in ("ids", "mask", "my_vectors")}
                database.write(atoms, kept, data={"weights": atoms.info["weights"], **extra})
    else:
        ase.io.write(path, frames)
    return path


def assert_kept(found: ase.Atoms, original: ase.Atoms, *, form: str, momenta: bool) -> None:
    for name in ("config_type", "OH_dist", "step"):
        assert found.info[name] == original.info[name]
    np.testing.assert_allclose(found.info["weights"], original.info["weights"])
    if form != ".traj":  # which holds no columns of a user's own, nor do rows of a database
        kept = found.info if form == ".db" else found.arrays
        for name in ("ids", "mask", "my_vectors") if form == ".db" else ("ids", "mask", "site", "my_vectors"):
            assert np.array_equal(np.asarray(kept[name]), original.arrays[name]), name
    np.testing.assert_allclose(found.get_initial_charges(), original.get_initial_charges(), atol=1e-7)
    np.testing.assert_array_equal(found.get_tags(), original.get_tags())
    np.testing.assert_array_equal(found.constraints[0].index, [0, 2])
    np.testing.assert_allclose(found.calc.results["magmoms"], original.calc.results["magmoms"])
    assert ("momenta" in found.arrays) is momenta


@pytest.mark.parametrize("name", ["mine.extxyz", "mine.traj", "mine.db"])
def test_predictions_keep_everything(model: Path, tmp_path: Path, name: str) -> None:
    frames = labelled()
    file, output = write(tmp_path / name, frames), tmp_path / "out.extxyz"
    assert predict_file(model, file, output, batch_size=1) == 2
    for found, original in zip(ase.io.read(output, ":"), frames, strict=True):
        assert_kept(found, original, form=file.suffix, momenta=True)
        assert found.get_potential_energy() != original.get_potential_energy()
        assert found.info["REF_energy"] == original.get_potential_energy()
        np.testing.assert_allclose(found.arrays["REF_forces"], 0.25)
        if file.suffix != ".extxyz":  # in which ASE itself wrote eight decimals
            np.testing.assert_array_equal(found.positions, original.positions)
        assert "free_energy" not in found.calc.results
        assert found.info.get("input_free_energy") == original.calc.results.get("free_energy")
    np.testing.assert_allclose(found.info["REF_stress"], original.get_stress(voigt=False))
    labels = read_file(output)[0]
    for found, original in zip(labels, read_file(file)[0], strict=True):
        assert found.energy == original.energy
        np.testing.assert_allclose(found.forces, original.forces)


def test_labels_beside_predictions_are_in_electronvolts(model: Path, tmp_path: Path) -> None:
    """A file in other units is read in the same units after it was predicted."""
    config = DataConfig(units="kcal/mol", stress_unit="kbar", stress_sign="compression")
    frames = read_file(write(tmp_path / "mine.extxyz", labelled()), config)[0]
    written = [predicted(plain(system), system, {"energy": 0.0}) for system in frames]
    for found, original in zip(read_file(write(tmp_path / "out.extxyz", written), config)[0], frames, strict=True):
        assert found.energy == pytest.approx(original.energy)
        np.testing.assert_allclose(found.forces, original.forces, atol=1e-8)
        if original.stress is not None:
            np.testing.assert_allclose(found.stress, original.stress, atol=1e-8)


def test_predictions_are_written_with_all_digits(model: Path, tmp_path: Path) -> None:
    """Also those of a committee, beside tags and fixed atoms; the file is read by ASE and as structures."""
    file, output = write(tmp_path / "mine.extxyz", labelled()), tmp_path / "out.extxyz"
    again = tmp_path / "again.safetensors"
    other = build("envelope", torch.float32)
    with torch.no_grad():
        for weight in other.parameters():
            weight *= 1.01
    save_model(again, other, {})
    predict_file([model, again], file, output)
    expected, structures = predict([model, again], file), read_file(output, DataConfig(energy_key="energy"))[0]
    for place, found in enumerate(ase.io.read(output, ":")):
        assert found.calc.results["energy"] == expected.energy[place] == structures[place].energy
        assert found.info["energy_std"] == expected.energy_std[place] > 0
        np.testing.assert_array_equal(found.calc.results["forces"], expected.forces[place])
        np.testing.assert_array_equal(found.arrays["forces_std"], expected.forces_std[place])
        assert structures[place].fixed.tolist() == [atom in (0, 2) for atom in range(len(found))]
        assert structures[place].tags.tolist() == found.get_tags().tolist()


def test_predictions_of_predictions_keep_the_label(model: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "mine.extxyz", labelled())
    predict_file(model, file, tmp_path / "one.extxyz")
    predict_file(model, tmp_path / "one.extxyz", tmp_path / "two.extxyz")
    once, twice = ase.io.read(tmp_path / "one.extxyz", 0), ase.io.read(tmp_path / "two.extxyz", 0)
    assert twice.info["REF_energy"] == once.info["REF_energy"] == -7.5
    assert twice.info["input_energy"] == once.get_potential_energy()


def test_new_labels_go_before_a_field_that_was_trained_on(model: Path, tmp_path: Path) -> None:
    """``denskit label`` writes energy and forces; dft_energy beside them is that of before."""
    frame = labelled()[0]
    frame.calc = None
    frame.info["dft_energy"] = -7.5
    config = DataConfig(energy_key="dft_energy", missing="mask")
    ase.io.write(tmp_path / "mine.traj", frame)
    ase.io.write(tmp_path / "new.traj", relabelled(frame, {"energy": -3.0, "forces": np.ones((9, 3))}))
    predict_file(model, tmp_path / "mine.traj", tmp_path / "own.extxyz", data={"energy_key": "dft_energy"})
    for name, energy in (("mine.traj", -7.5), ("new.traj", -3.0), ("own.extxyz", -7.5)):
        assert open_unchecked(tmp_path / name, config)[0][0].energy == energy, name


def test_predictions_of_unlabelled_structures_are_no_labels(model: Path, tmp_path: Path) -> None:
    """Else a model would be judged, and trained, on its own predictions."""
    frame, found = labelled()[0], []
    for name in ("labelled", "bare"):
        ase.io.write(tmp_path / f"{name}.traj", frame)
        predict_file(model, tmp_path / f"{name}.traj", tmp_path / f"{name}.extxyz")
        source, _ = open_unchecked(tmp_path / f"{name}.extxyz", DataConfig())
        found += [system.of_model for system in source]
        frame.calc = None
    assert found == [False, True]


@pytest.mark.parametrize("name", ["mine.extxyz", "mine.traj", "mine.db"])
def test_relaxations_keep_everything_but_labels_of_the_start(model: Path, tmp_path: Path, name: str) -> None:
    frames = labelled()
    if name == "mine.extxyz":
        frames.insert(1, ase.Atoms("Xe"))  # refused: the structures behind it keep their own fields
    file = write(tmp_path / name, frames)
    source, _ = open_unchecked(file, DataConfig(missing="mask"))
    folder = RelaxationFolder(tmp_path / "out")
    relax_into(
        folder, Potential(model), source, RelaxationSettings(steps=2), batch_atoms=1,
        original=Originals(file, source),
    )  # fmt: skip
    relaxed = ase.io.read(folder.structures, ":")
    assert len(relaxed) == len(frames)
    for found, result in zip(relaxed, folder.results(), strict=True):
        np.testing.assert_array_equal(found.positions, result.positions)
        assert "of_model" not in found.info
    for found, original in zip(relaxed, frames, strict=True):
        if len(original) == 1:
            continue
        assert_kept(found, original, form=file.suffix, momenta=False)
        assert found.info["input_energy"] == original.get_potential_energy()
        np.testing.assert_allclose(found.arrays["input_forces"], 0.25)
        assert np.abs(found.positions - original.positions).max() > 1e-4
        assert not [field for field in (*found.info, *found.arrays) if field.startswith("REF_")]


def test_labels_under_own_names_stay_with_the_start_of_a_relaxation(model: Path, tmp_path: Path) -> None:
    """Else they are read again as labels of the relaxed geometry."""
    atoms = molecule("CH3CH2OH")
    atoms.info |= {"TotEnergy": -7.0, "other": 1.0}
    atoms.arrays["F"] = np.full((len(atoms), 3), 0.25)
    (tmp_path / "files").mkdir()
    ase.io.write(tmp_path / "files" / "mine.extxyz", atoms)
    config = DataConfig(energy_key="TotEnergy", forces_key="F", units="kcal/mol")
    for number, file in enumerate((tmp_path / "files" / "mine.extxyz", tmp_path / "files")):
        source, _ = read_given(file, config, open_unchecked)
        folder = RelaxationFolder(tmp_path / f"out{number}")
        original = Originals(file, source, moved=True)
        relax_into(folder, Potential(model), source, RelaxationSettings(steps=2), original=original)
        found = ase.io.read(folder.structures)
        assert (found.info["input_TotEnergy"], found.info["other"]) == (-7.0, 1.0)
        np.testing.assert_allclose(found.arrays["input_F"], 0.25)
        again = read_file(folder.structures, config)[0][0]
        assert again.energy is None and again.forces is None


def test_dictionaries_and_lines_survive_extxyz(model: Path, tmp_path: Path) -> None:
    atoms = molecule("H2O")
    atoms.info |= {"remark": "two\nlines", "nested": {"a": np.arange(2)}, "energy": -4.0}
    ase.io.write(tmp_path / "odd.traj", atoms)
    predict_file(model, tmp_path / "odd.traj", tmp_path / "out.extxyz")
    found = ase.io.read(tmp_path / "out.extxyz")
    assert (found.info["remark"], found.info["nested"]) == ("two lines", {"a": [0, 1]})
    assert found.info["REF_energy"] == -4.0


def test_constraints_of_single_directions_survive(model: Path, tmp_path: Path) -> None:
    atoms = molecule("H2O")
    atoms.set_constraint(FixCartesian([1], [True, False, False]))
    ase.io.write(tmp_path / "held.traj", atoms)
    predict_file(model, tmp_path / "held.traj", tmp_path / "out.extxyz")
    found = ase.io.read(tmp_path / "out.extxyz")
    assert [c.mask.tolist() for c in found.constraints if 1 in c.index] == [[True, False, False]]


def test_a_file_that_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.extxyz", labelled())
    source, _ = read_file(file)
    ase.io.write(file, [molecule("H2O"), molecule("CH4")])
    with pytest.raises(ValueError, match="frame 0 has changed since it was first read"):
        Originals(file, source)(source[0])


def test_rows_of_lmdb_databases_keep_their_fields() -> None:
    source, _ = read_file(ROWS)
    original = Originals(ROWS, source)
    for system in source:
        atoms = original(system)
        assert (str(atoms.info["sid"]), atoms.info["fid"]) == (system.sid, system.fid)
        assert set(atoms.info) == set(source.sources[0].fields(system.index)) | {"sid", "fid"}
        found = predicted(atoms, system, {"energy": 1.0, "forces": np.zeros((len(atoms), 3))})
        assert (found.get_potential_energy(), found.info["REF_energy"]) == (1.0, system.energy)


def test_arrays_keep_the_names_of_their_systems(data_dir: Path) -> None:
    file = data_dir / "oc20_s2ef_train.npz"
    source, _ = read_file(file)
    system = source[7]
    atoms = Originals(file, source)(system)
    assert atoms.info == {"sid": system.sid, "fid": system.fid}
    np.testing.assert_array_equal(atoms.get_tags(), system.tags)
    np.testing.assert_array_equal(atoms.constraints[0].index, np.flatnonzero(system.fixed))


def test_names_of_structures_are_those_that_tell_them_apart() -> None:
    alike = {"name": "slab", "config_type": "surface"}
    assert names_of([{**alike, "mp_id": "mp-1"}, {**alike, "mp_id": "mp-2"}]) == ["mp-1", "mp-2"]
    assert names_of([{"name": "slab", "config_type": kind} for kind in ("hcp", "fcc")]) == ["hcp", "fcc"]
    assert names_of([alike, alike, {}]) == ["slab", "slab", ""]
    assert names_of([{"config_type": "bulk"}] * 2) == ["", ""], "a class, no name"
    assert names_of([{"sid": 0}, {"sid": 7}]) == ["0", "7"]


def test_new_labels_are_no_models() -> None:
    """Of a frame that a model's calculator had computed."""
    frame = ase.Atoms("H2", positions=[[0, 0, 0], [0, 0, 0.8]])
    frame.info["of_model"] = True
    frame.calc = SinglePointCalculator(frame, energy=-1.0, forces=np.zeros((2, 3)))
    found = relabelled(frame, {"energy": -2.0, "forces": np.zeros((2, 3))})
    assert "of_model" not in found.info and found.get_potential_energy() == -2.0
