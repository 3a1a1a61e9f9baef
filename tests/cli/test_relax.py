"""``denskit relax`` as users run it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
import torch
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms, FixCartesian

from cli_calls import denskit
from denskit.batch import System
from denskit.data.base import collate
from denskit.data.writing import plain
from denskit.models.model_file import save_model
from denskit.simulation.potential import Potential
from denskit.simulation.relaxation.folder import RelaxationFolder
from denskit.simulation.structures import atoms_of, batch_of

from trained import TRAINED, nearly_free


def atoms_named(systems: dict[str, System], *names: str) -> list[ase.Atoms]:
    return [atoms_of(collate([systems[name]], torch.float64)[0])[0] for name in names]


def _summary(folder: Path) -> list[dict[str, str]]:
    with (folder / "summary.csv").open(encoding="utf-8") as table:
        return list(csv.DictReader(table))


def test_structures_of_all_kinds(systems: dict[str, System], tmp_path: Path) -> None:
    file, output = tmp_path / "mixed.extxyz", tmp_path / "out"
    mixed = [*atoms_named(systems, "ethanol", "slab", "copper"), ase.Atoms("Xe")]
    ase.io.write(file, mixed)
    done = denskit(
        "relax", TRAINED, file, "-o", output, "--steps", 3, "--fmax", 0, "--optimizer", "fire", "--trajectory"
    )
    assert done.exit_code == 0, done.output
    assert "4 structures: 3 not converged, 1 unknown element; 9 moves" in done.output
    assert "3: unknown element: the structure has Xe" in done.output
    relaxed = ase.io.read(output / "relaxed.extxyz", ":")
    assert [atoms.get_chemical_formula() for atoms in relaxed] == [atoms.get_chemical_formula() for atoms in mixed]
    np.testing.assert_array_equal(relaxed[1].pbc, mixed[1].pbc)
    held = mixed[1].constraints[0].index
    np.testing.assert_allclose(relaxed[1].positions[held], mixed[1].positions[held], atol=1e-7)
    assert np.abs(relaxed[1].positions - mixed[1].positions).max() > 1e-3
    assert len(ase.io.read(output / "trajectories" / "000001.extxyz", ":")) == 4
    rows = _summary(output)
    assert [row["status"] for row in rows] == ["not_converged"] * 3 + ["unknown_element"]
    assert "name" not in rows[0], "the file names none"


def test_a_committee_relaxes_by_its_mean(systems: dict[str, System], tmp_path: Path) -> None:
    """The models are on record: the same command without the second one does not continue."""
    file, output, other = tmp_path / "ethanol.extxyz", tmp_path / "out", tmp_path / "other.safetensors"
    ase.io.write(file, atoms_named(systems, "ethanol"))
    save_model(other, nearly_free(), {})
    common = ["relax", TRAINED, file, "-o", output, "--steps", 3, "--fmax", 0, "--dtype", "float64"]
    done = denskit(*common, "--committee", other)
    assert done.exit_code == 0, done.output
    relaxed = ase.io.read(output / "relaxed.extxyz")
    own, own_other = (Potential(model, dtype="float64")(batch_of([relaxed])) for model in (TRAINED, other))
    forces = 0.5 * (own.forces + own_other.forces)
    np.testing.assert_allclose(relaxed.get_forces(), forces, atol=1e-6)
    assert float((own.forces - forces).abs().max()) > 1e-3
    refused = denskit(*common, "--resume")
    assert refused.exit_code == 1 and "holds another" in refused.output


def test_the_files_of_a_folder_are_joined(systems: dict[str, System], tmp_path: Path) -> None:
    folder, output = tmp_path / "given", tmp_path / "out"
    folder.mkdir()
    for name in ("ethanol", "copper"):
        ase.io.write(folder / f"{name}.extxyz", atoms_named(systems, name))
    (folder / "broken.extxyz").write_text("3\nnothing\nH 0 0\n")
    done = denskit("relax", TRAINED, folder, "-o", output, "--steps", 0)
    assert done.exit_code == 0, done.output
    assert [row["name"] for row in _summary(output)] == ["copper.extxyz", "ethanol.extxyz"]
    assert "warning: left out" in done.stderr
    assert "broken.extxyz" in done.stderr
    done = denskit("predict", TRAINED, folder, "-o", tmp_path / "p.extxyz")
    assert "broken.extxyz" in done.stderr
    assert [atoms.info["name"] for atoms in ase.io.read(tmp_path / "p.extxyz", ":")] == [
        "copper.extxyz", "ethanol.extxyz",
    ]  # fmt: skip


def test_atoms_on_top_of_each_other_are_named(systems: dict[str, System], tmp_path: Path) -> None:
    """Before and after: forces of a model may be small there."""
    (copper,) = atoms_named(systems, "copper")
    copper.positions[1] = copper.positions[0] + [0.0, 0.05, 0.0]
    ase.io.write(tmp_path / "double.extxyz", copper)
    done = denskit("relax", TRAINED, tmp_path / "double.extxyz", "-o", tmp_path / "out", "--steps", 0)
    assert "in frame 0 (counted from 0), atoms 0 (Cu) and 1 (Cu) are nearer than any bond" in done.stderr
    assert "warning: relaxed frame 0" in done.output
    for verb, *options in (("predict", "-o", tmp_path / "p.extxyz"), ("md", "--time", "0.001", "-o", tmp_path / "md")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            said = denskit(verb, TRAINED, tmp_path / "double.extxyz", *options).stderr
        assert "nearer than any bond" in said + " ".join(str(warning.message) for warning in caught), verb


def test_a_constraint_that_would_not_be_obeyed_is_refused(systems: dict[str, System], tmp_path: Path) -> None:
    """Atoms would move freely, and relaxed.extxyz would say that they were held."""
    ethanol, other = atoms_named(systems, "ethanol", "ethanol")
    ethanol.set_constraint(FixAtoms([0]))
    other.set_constraint([FixAtoms([0]), FixCartesian(1, mask=(True, False, False))])
    (tmp_path / "folder").mkdir()
    ase.io.write(tmp_path / "folder" / "a.traj", ethanol)
    ase.io.write(tmp_path / "folder" / "b.traj", other)
    ase.io.write(tmp_path / "two.extxyz", [ethanol, other])
    for name in ("two.extxyz", "folder"):
        done = denskit("relax", TRAINED, tmp_path / name, "-o", tmp_path / "out", "--steps", 0)
        assert done.exit_code == 1
        assert "structure 1 has the constraint FixCartesian; only wholly fixed atoms" in done.output, name
        assert not (tmp_path / "out").exists()
    done = denskit("relax", TRAINED, tmp_path / "folder" / "a.traj", "-o", tmp_path / "out", "--steps", 0)
    assert done.exit_code == 0, done.output


def test_refused_structures_are_not_warned_of_again(systems: dict[str, System], tmp_path: Path) -> None:
    ethanol, copper = atoms_named(systems, "ethanol", "copper")
    copper.positions[1] = copper.positions[0]
    copper.positions[2] = copper.positions[0] + [0.0, 0.05, 0.0]
    copper.numbers[3] = 54
    ase.io.write(tmp_path / "two.extxyz", [ethanol, copper])
    done = denskit("relax", TRAINED, tmp_path / "two.extxyz", "-o", tmp_path / "out", "--steps", 0)
    assert "1 not converged, 1 " in done.output
    assert "warning: two.extxyz" in done.stderr.replace(f"{tmp_path}/", "")
    assert "warning: relaxed" not in done.output


def test_the_summary_names_structures_as_their_file_does(systems: dict[str, System], tmp_path: Path) -> None:
    copper = atoms_named(systems, "copper", "copper")
    for number, atoms in enumerate(copper):
        atoms.info |= {"name": "copper", "mp_id": f"mp-{number}"}
    ase.io.write(tmp_path / "named.extxyz", copper)
    done = denskit("relax", TRAINED, tmp_path / "named.extxyz", "-o", tmp_path / "out", "--steps", 0)
    assert done.exit_code == 0, done.output
    assert [row["name"] for row in _summary(tmp_path / "out")] == ["mp-0", "mp-1"]


def test_protocol_and_cells_reach_the_settings(systems: dict[str, System], tmp_path: Path) -> None:
    ase.io.write(tmp_path / "copper.extxyz", atoms_named(systems, "copper"))
    options = ("--protocol", "oc20-2024", "--steps", 1, "--cell", "xx,yy", "--pressure", 2, "--dtype", "float64")
    done = denskit("relax", TRAINED, tmp_path / "copper.extxyz", "-o", tmp_path / "out", *options)
    assert done.exit_code == 0, done.output
    settings = json.loads((tmp_path / "out" / "summary.json").read_text())["settings"]
    assert settings["optimizer"] == {"name": "lbfgs", "maxstep": 0.2, "memory": 50, "damping": 1.2, "alpha": 80.0}
    assert (settings["fmax"], settings["steps"]) == (0.02, 1)
    assert settings["cell"]["strains"] == ["xx", "yy"]
    assert settings["cell"]["pressure"] == pytest.approx(2 / 160.2176634)
    (relaxed,) = ase.io.read(tmp_path / "out" / "relaxed.extxyz", ":")
    change = relaxed.cell - systems["copper"].cell
    assert abs(change[0, 0]) > 1e-5
    assert abs(change[2, 2]) < 1e-7


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "one.extxyz", ase.Atoms("H"))
    for options, said in (
        (("--protocol", "oc20-2024", "--optimizer", "fire"), "leave --optimizer fire out"),
        (("--pressure", 1), "give --cell full as well"),
        (("--cell", "volume"), "no strain is called 'volume'"),
    ):
        done = denskit("relax", TRAINED, tmp_path / "one.extxyz", "-o", tmp_path / "out", *options)
        assert done.exit_code == 1
        assert said in " ".join(done.output.split())
        assert not (tmp_path / "out").exists()


def test_relaxed_energies_of_whole_relaxations(systems: dict[str, System], tmp_path: Path) -> None:
    frames = [replace(systems["slab"], positions=systems["slab"].positions + shift) for shift in (0, 0.1, 0.2)]
    natoms = [len(frame) for frame in frames]
    np.savez(
        tmp_path / "relaxations.npz",
        natoms=natoms,
        pos=np.concatenate([frame.positions for frame in frames]),
        z=np.concatenate([frame.atomic_numbers for frame in frames]),
        fixed=np.concatenate([frame.fixed for frame in frames]),
        tags=np.concatenate([frame.tags for frame in frames]),
        cell=np.stack([frame.cell for frame in frames]),
        energy=np.array([-1.0, -2.0, -3.0]),
        forces=np.zeros((sum(natoms), 3)),
        sid=np.array(["7", "7", "8"]),
        fid=np.array([0, 5, 0]),
    )
    options = ("--first-frames", "--is2re", "--steps", 1)
    done = denskit("relax", TRAINED, tmp_path / "relaxations.npz", "-o", tmp_path / "out", *options)
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "out" / "is2re.json").read_text())
    results = list(RelaxationFolder(tmp_path / "out").results())
    assert found["references"] == 2
    wanted = 1000 * np.mean([abs(results[0].energy + 2.0), abs(results[1].energy + 3.0)])
    assert found["energy_mae_meV"] == pytest.approx(wanted)
    assert "energy_mae_meV" in done.output
    with np.load(tmp_path / "out" / "is2re.npz", allow_pickle=False) as arrays:
        assert arrays["ids"].tolist() == ["7", "8"]
        np.testing.assert_allclose(arrays["energy"], [result.energy for result in results], rtol=1e-6)


def test_relaxed_structures_keep_the_sids_of_a_submission(systems: dict[str, System], tmp_path: Path) -> None:
    slab = plain(systems["slab"])
    frames = [slab.copy() for _ in range(3)]
    for frame, (sid, fid) in zip(frames, ((7, 0), (7, 5), (8, 0)), strict=True):
        frame.info |= {"sid": sid, "fid": fid}
        frame.calc = SinglePointCalculator(frame, energy=-1.0, forces=np.zeros((len(slab), 3)))
    ase.io.write(tmp_path / "relaxations.extxyz", frames)
    options = ("--first-frames", "--is2re", "--steps", 1)
    assert denskit("relax", TRAINED, tmp_path / "relaxations.extxyz", "-o", tmp_path / "first", *options).exit_code == 0
    again = denskit("relax", TRAINED, tmp_path / "first" / "relaxed.extxyz", "-o", tmp_path / "again", "--is2re")
    assert again.exit_code == 0, again.output
    with np.load(tmp_path / "again" / "is2re.npz", allow_pickle=False) as arrays:
        assert arrays["ids"].tolist() == ["7", "8"]


# the program, with a Ctrl-C that comes in the fifth evaluation, however fast the machine is
INTERRUPTED = """
import signal
from denskit.cli import app
from denskit.simulation.potential import Potential
calls, evaluate = iter(range(1000)), Potential.__call__
def interrupted(*given, **options):
    if next(calls) == 4:
        signal.raise_signal(signal.SIGINT)
    return evaluate(*given, **options)
Potential.__call__ = interrupted
app()
"""


def test_ctrl_c_saves_and_resume_goes_on(systems: dict[str, System], tmp_path: Path) -> None:
    file, output = tmp_path / "structures.extxyz", tmp_path / "out"
    ase.io.write(file, atoms_named(systems, "water", "water"))
    options = ["--fmax", "0", "--steps", "20", "--optimizer", "fire", "--trajectory"]
    command = [sys.executable, "-c", INTERRUPTED, "relax", str(TRAINED), str(file), *options, "-o", str(output)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 130, process.stderr
    assert "Traceback" not in process.stderr
    assert "--resume" in process.stderr
    trajectory = output / "trajectories" / "000001.extxyz"
    assert 1 < len(ase.io.read(trajectory, ":")) < 21
    assert (output / "running.safetensors").is_file()
    assert not (output / "relaxed.extxyz").exists()
    content = file.read_text()
    ase.io.write(file, atoms_named(systems, "water", "ethanol"))
    other = denskit("relax", TRAINED, file, *options, "-o", output, "--resume")
    assert other.exit_code == 1 and "file_sha256" in other.stderr and "nothing changed" in other.stderr
    file.write_text(content)
    done = denskit("relax", TRAINED, file, *options, "-o", output, "--resume")
    assert done.exit_code == 0 and " since --resume" in done.output, "moves are those of both, the time is not"
    assert denskit("relax", TRAINED, file, *options, "-o", tmp_path / "whole").exit_code == 0
    assert (output / "relaxed.extxyz").read_text() == (tmp_path / "whole" / "relaxed.extxyz").read_text()
    assert trajectory.read_text() == (tmp_path / "whole" / "trajectories" / "000001.extxyz").read_text()


def test_a_large_change_of_the_volume_is_told(systems: dict[str, System], tmp_path: Path) -> None:
    """A converged cell may have expanded until its atoms no longer meet."""
    ase.io.write(tmp_path / "copper.extxyz", atoms_named(systems, "copper", "copper"))
    options = ("--cell", "full", "--steps", 8, "--fmax", 0)
    for pressure, told in ((0, False), (300, True)):  # GPa
        output = tmp_path / f"out{pressure}"
        done = denskit("relax", TRAINED, tmp_path / "copper.extxyz", "-o", output, *options, "--pressure", pressure)
        assert done.exit_code == 0, done.output
        assert ("2 of them changed the volume by more than 25 %" in done.output) == told, done.output
        assert json.loads((output / "summary.json").read_text())["large_volume_changes"] == 2 * told


def test_a_cell_that_need_not_move_has_a_volume_change(systems: dict[str, System], tmp_path: Path) -> None:
    """Of 0: the column is empty where cells are fixed alone."""
    ase.io.write(tmp_path / "copper.extxyz", atoms_named(systems, "copper"))
    for options, expected in ((("--cell", "full"), "0.000"), ((), "")):
        output = tmp_path / f"out{len(options)}"
        done = denskit("relax", TRAINED, tmp_path / "copper.extxyz", "-o", output, *options, "--steps", 0)
        assert done.exit_code == 0, done.output
        (row,) = csv.DictReader((output / "summary.csv").open())
        assert row["volume_change_percent"] == expected
