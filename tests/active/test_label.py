"""Labels by xTB and by any calculator of ASE: they are the method's, continue after a kill, and failures are named."""

from __future__ import annotations

import json
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from typer.testing import CliRunner

from denskit.active import label
from denskit.cli import app
from denskit.data import read_file

LAB = '''
import os
import signal

import numpy as np
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones

def emt():
    return EMT()

def careless():
    """Gives any frame a number."""
    class Careless(EMT):
        def calculate(self, atoms=None, *args, **kwargs):
            self.results = {"energy": 1.0, "forces": np.zeros((len(atoms), 3)), "stress": np.zeros(6)}
    return Careless()

def fragile():
    """Fails on every frame of three atoms."""
    class Fragile(EMT):
        def calculate(self, atoms=None, *args, **kwargs):
            if len(atoms) == 3:
                raise RuntimeError("did not converge")
            super().calculate(atoms, *args, **kwargs)
    return Fragile()

def nothing():
    return 1

def ended():
    """Its first frame ends the program with SIGTERM."""
    class Ended(EMT):
        def calculate(self, atoms=None, *args, **kwargs):
            signal.raise_signal(signal.SIGTERM)
            super().calculate(atoms, *args, **kwargs)
    return Ended()

def deadly():
    """Ends its process on frames of three atoms."""
    class Deadly(EMT):
        def calculate(self, atoms=None, *args, **kwargs):
            if len(atoms) == 3:
                os._exit(1)
            super().calculate(atoms, *args, **kwargs)
    return Deadly()
'''


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's in the current folder."""
    (tmp_path / "mylab.py").write_text(LAB)
    monkeypatch.chdir(tmp_path)


def crystals(count: int = 5) -> list[ase.Atoms]:
    frames = []
    for number in range(count):
        atoms = bulk("Cu", cubic=True)
        atoms.rattle(0.1, seed=number)
        atoms.info |= {"number": number, "config_type": "bulk", "REF_energy": -1.0}
        atoms.calc = SinglePointCalculator(atoms, energy=-2.0, forces=np.ones((4, 3)))
        frames.append(atoms)
    return frames


@pytest.mark.parametrize("processes", [1, 2])
def test_labels_are_those_of_the_calculator(tmp_path: Path, processes: int) -> None:
    done = label(crystals(), tmp_path / "out.extxyz", method="mylab:emt", processes=processes)
    assert (done.labels, done.failures, done.finished) == (5, {}, True)
    frames = ase.io.read(tmp_path / "out.extxyz", index=":")
    read, _ = read_file(tmp_path / "out.extxyz", required=("energy", "forces"))
    assert [frame.info["number"] for frame in frames] == list(range(5))
    for frame, system in zip(frames, read, strict=True):
        expected = frame.copy()
        expected.calc = EMT()
        assert system.energy == pytest.approx(expected.get_potential_energy(), abs=1e-6)
        np.testing.assert_allclose(system.forces, expected.get_forces(), atol=1e-6)
        np.testing.assert_allclose(frame.get_stress(), expected.get_stress(), atol=1e-6)
        # earlier labels and results are kept under names that no reader takes for labels
        assert frame.info["input_REF_energy"] == -1.0 and frame.info["input_energy"] == -2.0
        assert frame.info["config_type"] == "bulk" and frame.info["result_unit"] == "eV"
    assert not (tmp_path / "out.extxyz.progress").exists()


def test_the_same_call_continues(tmp_path: Path) -> None:
    """Stopped after two frames; then a kill in the middle of a line."""
    out, journal = tmp_path / "out.extxyz", tmp_path / "out.extxyz.progress"
    ase.io.write(tmp_path / "in.extxyz", crystals())
    calls = iter([False, True])
    done = label(tmp_path / "in.extxyz", out, method="mylab:emt", stop=lambda: next(calls))
    assert not done.finished and done.labels == 2 and not out.exists()
    with pytest.raises(ValueError, match=r"other frames or by another method \(mylab:emt\)"):
        label(tmp_path / "in.extxyz", out, method="mylab:fragile")
    with pytest.raises(ValueError, match="other frames"):
        label(crystals(3), out, method="mylab:emt")
    before = journal.read_text().splitlines()
    journal.write_text("\n".join(before) + '\n{"frame": 2, "ener')
    seen: list[float] = []
    done = label(tmp_path / "in.extxyz", out, method="mylab:emt", progress=lambda n, text, total: seen.append(n))
    assert done.finished and done.taken == 2 and seen == [3, 4, 5]
    whole = label(tmp_path / "in.extxyz", tmp_path / "whole.extxyz", method="mylab:emt")
    assert whole.taken == 0
    assert out.read_bytes() == (tmp_path / "whole.extxyz").read_bytes()
    assert json.loads(before[1])["frame"] == 0


def test_sigterm_ends_the_program_with_143_and_the_same_command_continues(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "in.extxyz", crystals())
    done = CliRunner().invoke(app, ["label", "in.extxyz", "-o", "out.extxyz", "--with", "mylab:ended"])
    assert done.exit_code == 143, done.output
    assert "Stopped; saved: 1 label. Continue with the same command" in done.stderr
    assert len((tmp_path / "out.extxyz.progress").read_text().splitlines()) == 2


def test_failures_are_named_and_left_out(tmp_path: Path) -> None:
    odd = bulk("Cu", cubic=True)[:3]
    flat = bulk("Cu", cubic=True)
    flat.positions[0] = np.nan
    done = label([*crystals(2), odd, flat], tmp_path / "out.extxyz", method="mylab:fragile")
    assert list(done.failures) == [2, 3]
    assert done.failures[2] == "RuntimeError: did not converge"
    assert done.labels == len(ase.io.read(tmp_path / "out.extxyz", index=":")) == 2
    with pytest.raises(ValueError, match="none of 1 frames could be labelled by mylab:fragile; frame 0: RuntimeError"):
        label([odd], tmp_path / "none.extxyz", method="mylab:fragile")
    assert not list(tmp_path.glob("none*"))


def test_a_frame_without_geometry_gets_no_label(tmp_path: Path) -> None:
    """Some methods pass over an atom whose position is NaN, and give the energy of the others."""
    frames = crystals(3)
    frames[1].positions[0] = np.nan
    frames[2].cell[0, 0] = np.inf
    done = label(frames, tmp_path / "out.extxyz", method="mylab:careless")
    assert done.failures == dict.fromkeys((1, 2), "positions or cell are NaN or infinite")
    assert done.labels == 1


def test_a_process_that_dies_takes_no_labels_along(tmp_path: Path) -> None:
    frames = [*crystals(6), bulk("Cu", cubic=True)[:3]]
    with pytest.raises(ValueError, match="of mylab:deadly was killed or crashed; the labels so far are saved"):
        label(frames, tmp_path / "out.extxyz", method="mylab:deadly", processes=2)
    assert len((tmp_path / "out.extxyz.progress").read_text().splitlines()) > 1


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("vasp", "'vasp' is no method: wanted xtb"),
        ("absent:emt", "No module named 'absent'"),
        ("mylab:absent", "has no attribute 'absent'"),
        ("mylab:nothing", "returned an object of class int"),
    ],
)
def test_no_method_is_refused_before_the_work(tmp_path: Path, method: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        label(crystals(1), tmp_path / "out.extxyz", method=method)
    assert not list(tmp_path.glob("out*"))


def test_the_program_with_xtb(tmp_path: Path) -> None:
    pytest.importorskip("tblite", reason="the xtb extra is not installed")
    from denskit.data.datasets.generate import xtb_calculator

    water = molecule("H2O")
    water.info["id"] = "w1"
    ase.io.write(tmp_path / "in.extxyz", [water, molecule("CH4")])
    done = CliRunner().invoke(app, ["label", "in.extxyz", "-o", "out.extxyz", "--with", "xtb"])
    assert done.exit_code == 0, done.output
    assert "Wrote 2 labelled frames to out.extxyz" in done.output
    first = ase.io.read(tmp_path / "out.extxyz", index=0)
    water.calc = xtb_calculator()
    assert first.info["id"] == "w1"
    assert first.get_potential_energy() == pytest.approx(water.get_potential_energy(), abs=1e-6)
    again = CliRunner().invoke(app, ["label", "in.extxyz", "-o", "out.extxyz"])
    assert again.exit_code == 1 and "exists already" in again.output
