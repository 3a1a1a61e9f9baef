from __future__ import annotations

import json
from pathlib import Path

import pytest
from ase import units
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write
from typer.testing import CliRunner

from denskit import read as read_structures
from denskit.cli import app
from denskit.evaluation.evaluate import evaluate
from denskit.training.load_config import load_config
from denskit.training.run import train

SMALL = [
    "model.num_layers=1", "model.channels=[4,2]", "model.feature_channels=[4,2]", "model.head_channels=[2,2]",
    "model.ffn_channels=[4,2]", "model.num_heads=1", "model.num_basis=4", "model.radial_hidden=[4]",
    "training.max_steps=1", "training.batch_size=2", "training.evaluate_every=1", "data.name=file",
]  # fmt: skip


def test_a_test_file_is_read_with_the_keys_of_training(tmp_path: Path) -> None:
    """Labels under the user's own names, in kcal/mol, mean the same to evaluate as they did to train."""
    frames = []
    for seed in range(6):
        atoms = molecule("H2O")
        atoms.rattle(0.05, seed=seed)
        atoms.info["my_energy"] = 23.0 + seed
        atoms.arrays["my_forces"] = 3 * atoms.positions
        frames.append(atoms)
    write(tmp_path / "mine.extxyz", frames)
    write(tmp_path / "test.extxyz", frames[-2:])
    keys = ["data.energy_key=my_energy", "data.forces_key=my_forces", "data.units=kcal/mol", "data.split.seed=0"]
    files = [f"data.path={tmp_path / 'mine.extxyz'}", "data.split.test=0", f"output={tmp_path / 'run'}"]
    run = train(load_config("demo", [*files, *keys, *SMALL, "data.references=fit"]))

    same = {
        name: evaluate(run, str(tmp_path / "mine.extxyz"))[name] for name in ("energy_mae_meV", "forces_mae_meV_per_A")
    }
    from_model = evaluate(run / "model.safetensors", str(tmp_path / "mine.extxyz"))
    train_and_valid = [evaluate(run, split=split) for split in ("train", "valid")]
    assert from_model["energy_mae_meV"] == pytest.approx(same["energy_mae_meV"])
    for name, value in same.items():
        parts = [part[name] for part in train_and_valid]
        assert min(parts) * 0.99 <= value <= max(parts) * 1.01


def test_a_file_with_other_names_and_units_is_read_as_said(tmp_path: Path) -> None:
    """The same labels as ``energy`` in eV and as ``dft_energy`` in kcal/mol, by settings in Python and on a command."""
    plain, named = [], []
    for seed in range(4):
        atoms = molecule("H2O")
        atoms.rattle(0.05, seed=seed)
        energy, forces = -14.0 + 0.1 * seed, 0.3 * (atoms.positions - atoms.positions.mean(0))
        other = atoms.copy()
        other.info["dft_energy"] = energy / (units.kcal / units.mol)
        other.arrays["dft_forces"] = forces / (units.kcal / units.mol)
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        plain.append(atoms)
        named.append(other)
    write(tmp_path / "plain.extxyz", plain)
    write(tmp_path / "named.extxyz", named)
    files = [f"data.path={tmp_path / 'plain.extxyz'}", "data.split.test=0", f"output={tmp_path / 'run'}"]
    run = train(load_config("demo", [*files, *SMALL, "data.references=fit"]))
    how = {"energy_key": "dft_energy", "forces_key": "dft_forces", "units": "kcal/mol"}
    expected = evaluate(run, tmp_path / "plain.extxyz")
    assert evaluate(run, tmp_path / "named.extxyz", data=how) == pytest.approx(expected, rel=1e-4)

    settings = [f"data.{key}={value}" for key, value in how.items()]
    for command in (
        ["evaluate", run, tmp_path / "named.extxyz", *settings, "-o", tmp_path / "judged"],
        ["relax", run, tmp_path / "named.extxyz", "-o", tmp_path / "relaxed", *settings, "--steps", "1"],
        ["predict", run, tmp_path / "named.extxyz", *settings, "-o", tmp_path / "predicted.extxyz"],
    ):
        result = CliRunner().invoke(app, [*map(str, command), "--device", "cpu"])
        assert result.exit_code == 0, result.output
    judged = json.loads((tmp_path / "judged" / "test.json").read_text())
    assert judged == pytest.approx(expected, rel=1e-4)
    labels = [frame.info["REF_energy"] for frame in read(tmp_path / "predicted.extxyz", ":")]
    assert labels == pytest.approx([frame.get_potential_energy() for frame in plain])
    said = CliRunner().invoke(app, ["evaluate", str(run), str(tmp_path / "named.extxyz"), *settings])
    assert "named.extxyz: energy from dft_energy, forces from dft_forces; energies in kcal/mol" in said.stderr


def test_settings_of_reading_that_cannot_act_are_refused(tmp_path: Path) -> None:
    """Settings that the file, or what is given instead of one, would ignore; errors say what to do."""
    frames = []
    for seed in range(4):
        atoms = molecule("H2O")
        atoms.rattle(0.05, seed=seed)
        atoms.calc = SinglePointCalculator(
            atoms, energy=-14.0, forces=0.3 * (atoms.positions - atoms.positions.mean(0))
        )
        frames.append(atoms)
    file, other = tmp_path / "mine.extxyz", tmp_path / "other.extxyz"
    write(file, frames)
    for atoms in frames:
        atoms.info["energy_of_dft"] = atoms.get_potential_energy()
        atoms.calc = None
    write(other, frames)
    files = [f"data.path={file}", "data.split.test=0", f"output={tmp_path / 'run'}"]
    run = train(load_config("demo", [*files, *SMALL, "data.references=fit"]))

    for source, data, message in (
        (file, {"group_key": "system"}, r"data.group_key does not say how a file is read; .*energy_key"),
        (file, {"fixed": "none"}, r"mine.extxyz: data.fixed is for OC20's and OC22's files; here it would be ignored"),
        (file, {"stress_key": "strs"}, r"mine.extxyz: no frame has strs \(data.stress_key\)\. Fields that .*: energy"),
        (frames, {"energy_key": "energy_of_df"}, r"did you mean energy_of_dft\?"),
        (file, {"units": "furlong"}, r"data.units: .*'furlong'"),
        (None, {"units": "eV"}, "would be ignored for the run's own data"),
        (read_structures(file), {"units": "eV"}, "would be ignored for structures that were read already"),
        (other, None, r"other.extxyz: no energies, .* Fields of its frames: .*energy_of_dft.*data.energy_key"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate(run, source, split="valid", data=data)
    for arguments, message in (
        (["relax", run, file, other, "-o", tmp_path / "relaxed"], "one file is taken"),
        (
            ["evaluate", run, "--discovery", file, "data.units=eV", "-o", tmp_path / "found"],
            "--discovery takes its own",
        ),
        (["evaluate", run, file, "data.energies=total"], "data.energies is for OC20's and OC22's files"),
        (["evaluate", run, "data.units=eV"], "give the file, or leave it out"),
    ):
        result = CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu"])
        assert result.exit_code != 0
        assert message in " ".join((str(result.exception) + result.output).split()), result.output
