"""Conversion to shards: from anything that is read, in parallel, after a kill, and not with bad records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator
from typer.testing import CliRunner

from data.shard_files import same, write_index
from denskit.active.frames import read_frames
from denskit.cli import app
from denskit.data import DataConfig, load_data, read_file
from denskit.data.convert import PROGRESS, convert, verify
from denskit.data.inspection import inspect_file
from denskit.data.readers.shards import INDEX, SIZES, ShardFile, write_shard
from denskit.files import locked
from killing import posix, run


def extxyz(path: Path, count: int, seed: int = 0) -> Path:
    """Ethanol and water in turn, with invented labels."""
    generator = np.random.default_rng(seed)
    frames = []
    for number in range(count):
        atoms = molecule("CH3CH2OH" if number % 2 else "H2O")
        atoms.rattle(0.05, seed=number)
        forces = generator.normal(size=atoms.positions.shape)
        atoms.calc = SinglePointCalculator(atoms, energy=float(number), forces=forces)
        frames.append(atoms)
    ase.io.write(path, frames)
    return path


def same_source(folder: Path, *inputs: Path) -> None:
    """The folder holds what the inputs hold, in order."""
    found, place = read_file(folder)[0], 0
    for path in inputs:
        source = read_file(path)[0]
        for index in range(len(source)):
            same(source[index], found[place])
            place += 1
    assert place == len(found)


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    return [extxyz(tmp_path / "one.extxyz", 11), extxyz(tmp_path / "two.extxyz", 6, seed=1)]


def test_labels_in_another_unit_are_warned_of(tmp_path: Path) -> None:
    """Of shards no setting changes it, so the original is wanted."""
    source = load_data(DataConfig(name="embedded"), seed=0).train
    systems = [source[index] for index in range(100)]
    labels = {"E": [system.energy for system in systems], "F": np.stack([system.forces for system in systems])}
    positions = np.stack([system.positions for system in systems])
    np.savez(tmp_path / "x.npz", R=positions, z=systems[0].atomic_numbers, **labels)
    messages = convert([tmp_path / "x.npz"], tmp_path / "wrong")
    (warning,) = [line for line in messages if line.startswith("warning")]
    assert "forces are in eV/Å. Say data.units=eV" in warning
    (problem,) = inspect_file(tmp_path / "wrong").problems
    assert "in eV and were read in kcal/mol" in str(problem)
    assert "convert the original again" in problem.advice
    labels["F"] = labels["F"] * 0.529177210903 / 27.211386245988
    np.savez(tmp_path / "y.npz", R=positions, z=systems[0].atomic_numbers, **labels)
    convert([tmp_path / "y.npz"], tmp_path / "per_bohr", DataConfig(units="eV"))
    (problem,) = inspect_file(tmp_path / "per_bohr").problems
    assert "convert the original again" in problem.advice and problem.advice.count("convert") == 2
    assert "data.forces_unit=Hartree/Bohr" in problem.advice
    messages = convert([tmp_path / "x.npz"], tmp_path / "right", DataConfig(units="eV"))
    assert not [line for line in messages if line.startswith("warning")]
    assert not inspect_file(tmp_path / "right").problems


def test_charges_and_marks_of_labels_are_kept(tmp_path: Path) -> None:
    """``denskit info`` and trainings say of the shards what they say of the file."""
    frames = []
    for number in range(8):
        atoms = molecule("CH3CH2OH")
        atoms.rattle(0.05, seed=number)
        atoms.calc = SinglePointCalculator(atoms, energy=float(number), forces=np.full((9, 3), 0.1))
        atoms.info |= {"charge": number % 2, "max_forces_std": 0.1}
        frames.append(atoms)
    ase.io.write(tmp_path / "ions.extxyz", frames)
    convert([tmp_path / "ions.extxyz"], tmp_path / "shards")
    source = read_file(tmp_path / "shards")[0]
    for system, original in zip(source, read_file(tmp_path / "ions.extxyz")[0], strict=True):
        same(original, system)
        assert system.of_model
    assert [atoms.info["charge"] for atoms in read_frames(tmp_path / "shards")] == [0, 1] * 4
    of_file, of_shards = (
        [str(found) for found in inspect_file(tmp_path / name).findings] for name in ("ions.extxyz", "shards")
    )
    for words in ("charge", "a model's own"):
        assert any(words in found for found in of_file), of_file
        assert [found for found in of_file if words in found] == [found for found in of_shards if words in found]


@pytest.mark.parametrize("name", ["x.extxyz", "x.db", "x.lmdb", "x.npz"])
def test_the_name_of_a_file_is_refused(two: list[Path], tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"a folder is wanted, for shards of structures \(ase convert.*give .*x$"):
        convert(two, tmp_path / name)
    assert not (tmp_path / name).exists()


def test_several_files_become_one_folder(two: list[Path], tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []
    messages = convert(
        two, tmp_path / "out", per_shard=5, progress=lambda done, text, total: seen.append((done, total))
    )
    same_source(tmp_path / "out", *two)
    assert seen == [(0, 17), (5, 17), (10, 17), (15, 17), (17, 17)]
    assert "17 structures in 4 shards" in messages[-1] and "energy of 17, forces of 17" in messages[-1]
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    assert index["atoms"] == 17 * 3 + 8 * 6 and index["elements"]["O"] == 17
    assert [entry["structures"] for entry in index["inputs"]] == [11, 6]
    assert not (tmp_path / "out" / PROGRESS).exists()


def test_processes_write_the_same_files(two: list[Path], tmp_path: Path) -> None:
    convert(two, tmp_path / "alone", per_shard=5)
    convert(two, tmp_path / "together", per_shard=5, workers=2)
    names = sorted(path.name for path in (tmp_path / "alone").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "together").iterdir())
    for name in names:
        assert (tmp_path / "alone" / name).read_bytes() == (tmp_path / "together" / name).read_bytes(), name


def test_real_lmdb_and_shards_of_shards(data_dir: Path, tmp_path: Path) -> None:
    lmdb = data_dir / "oc20_s2ef_sample.lmdb"
    convert([lmdb], tmp_path / "all", per_shard=64)
    same_source(tmp_path / "all", lmdb)
    convert([lmdb], tmp_path / "md", DataConfig(origin="md"), per_shard=100)
    convert([tmp_path / "md", tmp_path / "all"], tmp_path / "both", per_shard=90)
    both = read_file(tmp_path / "both")[0]
    assert [both[place].denoise for place in (0, 149, 150, 299)] == [False, False, True, True]
    parts = {"name": "oc20", "train": [str(tmp_path / "all"), str(tmp_path / "md")], "valid": str(lmdb)}
    said = load_data(DataConfig.model_validate(parts), seed=0).messages
    assert f"{tmp_path / 'md'}: 150 structures of origin md: never corrupted by DeNS" in said, "as it was converted"
    same(read_file(lmdb)[0][149], both[299])
    verify(tmp_path / "both")


@posix
def test_a_killed_conversion_ends_as_one_that_was_not(tmp_path: Path) -> None:
    """Killed before each of its operations on files, from the making of the folder to the end of the journal."""
    source, whole = extxyz(tmp_path / "many.extxyz", 30), tmp_path / "whole"
    operations = run(whole, convert, [source], whole, per_shard=10)
    assert operations > 15
    for point in range(1, operations + 1):
        out = tmp_path / f"killed_{point}"
        run(out, convert, [source], out, per_shard=10, kill_at=point)
        if not (out / INDEX).exists() and out.exists():
            with pytest.raises(ValueError, match="no file of structures in|a conversion that has not finished"):
                read_file(out)
        if (out / INDEX).exists() and not (out / PROGRESS).exists():
            continue  # nothing was left to do but to let go of the lock
        convert([source], out, per_shard=10)
        files = sorted(path.name for path in out.iterdir())
        assert files == sorted(path.name for path in whole.iterdir()), point
        assert all((out / name).read_bytes() == (whole / name).read_bytes() for name in files), point


def test_one_shard_is_no_plural(tmp_path: Path) -> None:
    source = extxyz(tmp_path / "one.extxyz", 1)
    assert "out: 1 structure in 1 shard, " in convert([source], tmp_path / "out")[-1]
    assert "out: 1 structure in 1 shard, read" in read_file(tmp_path / "out")[1][0]


def test_whole_shards_are_kept_and_a_torn_line_is_not(tmp_path: Path) -> None:
    source, out = extxyz(tmp_path / "many.extxyz", 20), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        convert([source], out, per_shard=5, progress=stop_after(10))
    with (out / PROGRESS).open("a") as file:
        file.write('{"shard": 2, "entry": {"fi')
    kept = {path: path.stat().st_mtime_ns for path in out.glob("shard-*")}
    assert len(kept) == 2
    messages = convert([source], out, per_shard=5)
    assert any("found 2 shards of an earlier call" in line for line in messages)
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())


@posix
def test_two_conversions_into_one_folder_do_not_mix(two: list[Path], tmp_path: Path) -> None:
    with locked(tmp_path / "out"), pytest.raises(ValueError, match="out is in use by process"):
        convert(two, tmp_path / "out")


def stop_after(count: int):  # type: ignore[no-untyped-def]
    def progress(done: float, text: str, total: float) -> None:
        if done >= count:
            raise KeyboardInterrupt

    return progress


def test_other_data_do_not_go_on(two: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        convert(two, out, per_shard=5, progress=stop_after(5))
    with pytest.raises(
        ValueError, match=r"another conversion:\n  inputs.1.content: .*\n  inputs.1.name: .*two.extxyz then"
    ):
        convert(two[:1], out, per_shard=5)
    with pytest.raises(ValueError, match=r"another conversion:\n  reading.units: None then, kcal/mol now"):
        convert(two, out, DataConfig(units="kcal/mol"), per_shard=5)
    convert(two, out, per_shard=5)
    before = (out / INDEX).read_bytes()
    assert "17 structures, converted before; nothing to do" in convert(two, out, per_shard=5)[-1]
    with pytest.raises(ValueError, match=r"holds another finished conversion \(reading differ\)"):
        convert(two, out, DataConfig(units="kcal/mol"), per_shard=5)
    assert (out / INDEX).read_bytes() == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious.txt").write_text("mine")
    with pytest.raises(ValueError, match="full is not empty and holds no conversion"):
        convert(two, tmp_path / "full")


def test_a_conversion_does_not_go_on_with_a_changed_file(two: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        convert(two, out, per_shard=5, progress=stop_after(5))
    extxyz(two[1], 6, seed=2)  # as many structures, with other labels
    with pytest.raises(ValueError, match=r"another conversion:\n  inputs.1.content: sha256"):
        convert(two, out, per_shard=5)


def test_settings_may_change_while_no_shard_is_written(two: list[Path], tmp_path: Path) -> None:
    """As the remedy for a bad first record asks."""
    frames = ase.io.read(two[0], ":")
    frames[1].calc.results["energy"] = np.nan
    ase.io.write(two[0], frames)
    with pytest.raises(ValueError, match="missing=mask"):
        convert(two, tmp_path / "out", per_shard=5)
    convert(two, tmp_path / "out", DataConfig(missing="mask"), per_shard=5)
    assert verify(tmp_path / "out") == 17


def test_a_finished_folder_that_is_broken_is_not_taken(two: list[Path], tmp_path: Path) -> None:
    convert(two, tmp_path / "out", per_shard=5)
    next((tmp_path / "out").glob("*.safetensors")).unlink()
    with pytest.raises(ValueError, match="is missing"):
        convert(two, tmp_path / "out", per_shard=5)


def test_the_sizes_are_verified_too(two: list[Path], tmp_path: Path) -> None:
    convert(two, tmp_path / "out", per_shard=5)
    sizes = np.load(tmp_path / "out" / SIZES)
    np.save(tmp_path / "out" / SIZES, sizes[::-1])
    with pytest.raises(ValueError, match="does not have the sizes of the structures"):
        verify(tmp_path / "out")
    (tmp_path / "out" / SIZES).unlink()
    with pytest.raises(ValueError, match="sizes.npy is missing"):
        verify(tmp_path / "out")


def test_bad_records_are_refused_by_file_and_record(data_dir: Path, tmp_path: Path) -> None:
    convert([data_dir / "oc20_s2ef_sample.lmdb"], tmp_path / "good", per_shard=200)
    good = read_file(tmp_path / "good")[0]
    for number, (change, message) in enumerate(
        [
            (
                {"positions": np.concatenate([good[7].positions[:1], good[7].positions[:-1]])},
                r"record 7 \(counted from 0\): atoms \d+ and \d+ are at one",
            ),
            ({"positions": np.zeros_like(good[7].positions)}, r"record 7: .*the record holds no positions"),
            ({"cell": np.zeros((3, 3))}, r"shard-00000.safetensors, record 7: .* cell vectors are zero"),
            (
                {"cell": np.zeros((3, 3)), "pbc": np.array([True, True, False])},
                r"record 7: periodic along directions whose cell vectors are zero",
            ),
            ({"forces": np.full_like(good[7].positions, np.nan)}, r"record 7: forces is NaN"),
        ]
    ):
        bad = tmp_path / f"bad{number}"
        bad.mkdir()
        systems = [replace(good[place], **(change if place == 7 else {})) for place in range(10)]
        path = bad / "shard-00000.safetensors"
        write_shard(path, systems)
        write_index(bad, [ShardFile(path, 10, 0)], [len(system) for system in systems])
        with pytest.raises(ValueError, match=message):
            convert([bad], tmp_path / f"out{number}")
    convert([bad], tmp_path / "masked", DataConfig(missing="mask"))
    assert read_file(tmp_path / "masked")[0][7].forces is None


def test_command_line(two: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CliRunner()
    out = tmp_path / "out"
    done = runner.invoke(app, ["data", "convert", *map(str, two), "-o", str(out), "data.units=kcal/mol"])
    assert done.exit_code == 0, done.output
    assert f"denskit train PRESET data.train={out}" in done.output
    assert read_file(out)[0][3].energy == pytest.approx(3 / 23.0605, rel=1e-4)
    checked = runner.invoke(app, ["data", "verify", str(out)])
    assert checked.exit_code == 0 and "17 structures, as they were written" in checked.output
    assert runner.invoke(app, ["data", "verify", str(tmp_path)]).exit_code == 1
    assert (
        runner.invoke(app, ["data", "convert", str(two[0]), "-o", str(tmp_path / "x"), "data.unit=eV"]).exit_code == 1
    )


def test_what_would_have_no_effect_is_refused(two: list[Path], tmp_path: Path) -> None:
    def said(*given: str) -> str:
        done = CliRunner().invoke(app, [*given])
        assert done.exit_code == 1 and not (tmp_path / "x").exists()
        return " ".join(done.output.split())

    to = ["-o", str(tmp_path / "x")]
    whole = "what a training reads, and how it divides it; denskit data convert reads the files that it is given, whole"
    assert f"data.split says {whole}" in said("data", "convert", str(two[0]), *to, "data.split.train=0.5")
    assert "data.path says" in said("info", str(two[0]), f"data.path={two[1]}")
    assert "denskit info looks at all structures" in said("info", str(two[0]), "data.filter.max_force=1")
    assert "no file of structures is given" in said("data", "convert", "data.units=eV", *to)
    assert "is given twice" in said("data", "convert", str(two[0]), str(two[1]), str(two[0]), *to)
    assert "is given twice" in said("data", "convert", str(two[0].parent), str(two[0]), *to)


def test_a_named_field_that_no_frame_has_is_refused(two: list[Path], tmp_path: Path) -> None:
    """One that some inputs have is a note about the others."""
    out = tmp_path / "out"
    found = r"no frame has enrgy \(data\.energy_key\)\. .* energy, forces; did you mean energy\?"
    with pytest.raises(ValueError, match=found):
        convert(two, out, DataConfig(energy_key="enrgy"))
    assert not out.exists()
    frames = ase.io.read(two[1], ":")
    for frame in frames:
        frame.info["dft"] = -1.0
    ase.io.write(two[1], frames)
    messages = convert(two, out, DataConfig(energy_key="dft"))
    assert "energy of 6, forces of 17" in messages[-1]
    assert any("one.extxyz: no frame has dft" in line for line in messages)
