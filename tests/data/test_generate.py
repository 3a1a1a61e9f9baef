"""Making data with GFN2-xTB: labels are the method's, runs repeat, refusals are clear."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.md.langevin import Langevin
from typer.testing import CliRunner

from denskit.cli.data import app
from denskit.data import read_file
from denskit.data.datasets.embedded import FOLDER, MOLECULES
from denskit.data.datasets.generate import ACCURACY, METHOD, Trajectory, generate, write


@pytest.fixture(scope="module")
def trajectory() -> Trajectory:
    pytest.importorskip("tblite", reason="the xtb extra is not installed")
    return generate("H2O", frames=3, every=2.0, equilibration=5.0, seed=4)


def test_labels_are_those_of_the_method(trajectory: Trajectory) -> None:
    from tblite.ase import TBLite

    for positions, energy, forces in zip(trajectory.positions, trajectory.energies, trajectory.forces, strict=True):
        atoms = ase.Atoms("OHH", positions, calculator=TBLite(method=METHOD, verbosity=0, accuracy=ACCURACY))
        assert atoms.get_potential_energy() == pytest.approx(energy, abs=1e-7)
        np.testing.assert_allclose(forces, atoms.get_forces(), atol=1e-4)
    assert np.ptp(trajectory.energies) > 1e-3


def test_the_seed_decides(trajectory: Trajectory) -> None:
    again = generate("H2O", frames=3, every=2.0, equilibration=5.0, seed=4)
    other = generate("H2O", frames=3, every=2.0, equilibration=5.0, seed=5)
    np.testing.assert_allclose(again.positions, trajectory.positions, atol=1e-6)  # xTB sums over threads in any order
    assert np.abs(other.positions - trajectory.positions).max() > 1e-3


def test_the_charge_of_a_file_is_that_of_the_calculation(tmp_path: Path) -> None:
    tblite = pytest.importorskip("tblite.ase", reason="the xtb extra is not installed")
    ion = molecule("H2O")
    ion.info |= {"charge": 1, "multiplicity": 2}
    ase.io.write(tmp_path / "ion.extxyz", ion)
    made = generate(str(tmp_path / "ion.extxyz"), frames=1, every=0.5, equilibration=0.5)
    atoms = ase.Atoms(ion.numbers, made.positions[0])
    atoms.calc = tblite.TBLite(method=METHOD, verbosity=0, accuracy=ACCURACY, charge=1, multiplicity=2)
    assert made.energies[0] == pytest.approx(atoms.get_potential_energy(), abs=1e-6)
    assert "GFN2-xTB, charge 1, multiplicity 2, tblite" in made.recipe
    write(made, tmp_path / "made.extxyz", name="water")
    assert ase.io.read(tmp_path / "made.extxyz").info["charge"] == 1
    ion.info["total_charge"] = 0
    ase.io.write(tmp_path / "ion.extxyz", ion)
    with pytest.raises(ValueError, match=r"ion.extxyz: charge=1 and total_charge=0 contradict each other"):
        generate(str(tmp_path / "ion.extxyz"), frames=1)


@pytest.mark.parametrize("suffix", ["npz", "extxyz"])
def test_what_is_written_reads_back_in_ev(trajectory: Trajectory, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"water.{suffix}"
    write(trajectory, path, name="water")
    frames, messages = read_file(path, required=("energy", "forces"))
    np.testing.assert_allclose(frames.energy, trajectory.energies, atol=1e-7)
    np.testing.assert_allclose(frames.forces, trajectory.forces.reshape(-1, 3), atol=1e-6)
    np.testing.assert_allclose(frames.positions, trajectory.positions.reshape(-1, 3), atol=1e-6)
    assert "energies in eV" in messages[0]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_command(tmp_path: Path) -> None:
    pytest.importorskip("tblite", reason="the xtb extra is not installed")
    out = tmp_path / "water.npz"
    options = ["--frames", "2", "--every", "1", "--equilibration", "1", "-o", str(out)]
    result = CliRunner().invoke(app, ["generate", "H2O", *options])
    assert result.exit_code == 0, result.output
    assert "GFN2-xTB" in result.output
    assert len(read_file(out)[0]) == 2


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"molecule": "unobtainium"}, "'unobtainium' is neither a file nor a known molecule"),
        ({"frames": 0}, "at least 1 frame, 0 asked"),
        ({"every": 0.7}, "frames every 0.7 fs are not a whole number of steps of 0.5 fs"),
        ({"timestep": 0.0}, "a timestep above 0 fs and 0 K or more are wanted, found 0.0 fs"),
    ],
)
def test_refusals(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        generate(**{"molecule": "H2O", "frames": 1, **changes})


def test_ctrl_c_keeps_the_frames_that_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, run = [], Langevin.run

    def interrupted(self: Langevin, steps: int) -> bool:
        ran.append(steps)
        if len(ran) == 4:  # after the equilibration and two frames
            raise KeyboardInterrupt
        return bool(run(self, steps))

    monkeypatch.setattr(Langevin, "run", interrupted)
    to = tmp_path / "water.extxyz"
    done = CliRunner().invoke(app, ["generate", "H2O", "--frames", "5", "--equilibration", "1", "-o", str(to)])
    assert done.exit_code == 130 and "stopped after 2 of 5 frames, which are written" in done.output
    assert len(ase.io.read(to, ":")) == 2


def test_periodic_structures_are_refused(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "copper.extxyz", bulk("Cu"))
    with pytest.raises(ValueError, match="is periodic; generate makes data for molecules only"):
        generate(str(tmp_path / "copper.extxyz"), frames=1)


def test_without_tblite_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("tblite"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ValueError, match=r"pip install 'denskit\[xtb\]'"):
        generate("H2O", frames=1)


@pytest.mark.parametrize("name", MOLECULES)
def test_shipped_labels_are_the_methods(name: str) -> None:
    tblite = pytest.importorskip("tblite.ase", reason="the xtb extra is not installed")
    frames, _ = read_file(FOLDER / f"{name}.npz")
    for index in (0, 999, 1999):
        system = frames[index]
        atoms = ase.Atoms(system.atomic_numbers, system.positions)
        atoms.calc = tblite.TBLite(method=METHOD, verbosity=0, accuracy=ACCURACY)
        assert atoms.get_potential_energy() == pytest.approx(system.energy, abs=1e-5)
        np.testing.assert_allclose(system.forces, atoms.get_forces(), atol=1e-4)
