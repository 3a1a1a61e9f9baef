"""Labels by xTB and by any calculator of ASE: they are the method's, continue after a kill, and failures are named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
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
from denskit.files import locked_file
from killing import lives, posix, within

LAB = '''
import os
import signal
import time

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

def short():
    """Forces of one atom alone."""
    class Short(EMT):
        def calculate(self, atoms=None, *args, **kwargs):
            self.results = {"energy": 1.0, "forces": np.zeros((1, 3)), "stress": np.zeros(6)}
    return Short()

def fragile():
    """Fails on every frame of three atoms."""
    class Fragile(EMT):
        def calculate(self, atoms=None, *args, **kwargs):
            if len(atoms) == 3:
                raise RuntimeError("did not converge")
            super().calculate(atoms, *args, **kwargs)
    return Fragile()

def moody():
    """Fails on frames of three atoms until there is a file "cured"."""
    class Moody(EMT):
        def calculate(self, atoms=None, *args, **kwargs):
            if len(atoms) == 3 and not os.path.exists("cured"):
                raise RuntimeError("did not converge")
            super().calculate(atoms, *args, **kwargs)
    return Moody()

def stressless():
    """Lists the stress, and does not compute it."""
    class Stressless(EMT):
        def calculate(self, *args, **kwargs):
            super().calculate(*args, **kwargs)
            self.results.pop("stress", None)
    return Stressless()

def lj():
    sigma = os.environ.get("SIGMA", "2.3")
    return LennardJones(sigma=float(sigma), txt=f"{sigma}.txt")

def slow():
    """Notes its process, and takes minutes."""
    class Slow(EMT):
        def calculate(self, *args, **kwargs):
            os.makedirs("pids", exist_ok=True)
            open(f"pids/{os.getpid()}", "w").close()
            time.sleep(120)
    return Slow()

def lender():
    """Gives as energy the charge that it is told, and as force the one that it reads."""
    class Lender(EMT):
        default_parameters = {"charge": 0}
        def calculate(self, atoms=None, *args, **kwargs):
            self.results = {
                "energy": float(self.parameters.charge),
                "forces": np.full((len(atoms), 3), float(atoms.info.get("charge", 0))),
            }
    return Lender()

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
        assert system.energy == pytest.approx(expected.get_potential_energy(), abs=1e-12)
        np.testing.assert_allclose(system.forces, expected.get_forces(), rtol=0, atol=1e-12)
        np.testing.assert_allclose(frame.get_stress(), expected.get_stress(), rtol=0, atol=1e-12)
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


def test_failed_frames_are_tried_again(tmp_path: Path) -> None:
    """By a call that continues, and by the same call after the end, without --force."""
    out, journal = tmp_path / "out.extxyz", tmp_path / "out.extxyz.progress"
    ase.io.write(tmp_path / "in.extxyz", [bulk("Cu", cubic=True)[:3], *crystals(3)])
    calls = iter([False, True])
    done = label("in.extxyz", out, method="mylab:moody", stop=lambda: next(calls))
    assert (done.labels, list(done.failures), done.again) == (1, [0], 0)
    command = ["label", "in.extxyz", "-o", "out.extxyz", "--with", "mylab:moody"]
    said = CliRunner().invoke(app, command).output
    assert "1 label of an earlier call" in said and "tried again: 1 frame that failed in an earlier call" in said
    assert "frame 0 is left out: RuntimeError: did not converge" in said
    assert "Wrote 3 labelled frames to out.extxyz; the same command tries the others again" in said
    with pytest.raises(ValueError, match="exists already"):
        label("in.extxyz", out, method="mylab:emt")
    Path("cured").touch()
    done = label("in.extxyz", out, method="mylab:moody")
    assert (done.labels, done.failures, done.taken, done.again) == (4, {}, 3, 1)
    assert not journal.exists()
    label("in.extxyz", tmp_path / "whole.extxyz", method="mylab:emt")
    assert out.read_bytes() == (tmp_path / "whole.extxyz").read_bytes()
    with pytest.raises(ValueError, match="exists already"):
        label("in.extxyz", out, method="mylab:moody")


def test_an_output_that_was_changed_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out.extxyz"
    ase.io.write(tmp_path / "in.extxyz", [*crystals(2), bulk("Cu", cubic=True)[:3]])
    assert label("in.extxyz", out, method="mylab:moody").failures
    out.write_text(out.read_text() + "\n")
    with pytest.raises(ValueError, match="exists already"):
        label("in.extxyz", out, method="mylab:moody")
    assert label("in.extxyz", out, method="mylab:emt", force=True).taken == 0
    assert not (tmp_path / "out.extxyz.progress").exists()


def test_a_stress_that_was_not_computed_is_no_stress(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="frame 0: Stressless has a stress, but computed none here") as told:
        done = label(crystals(3), tmp_path / "out.extxyz", method="mylab:stressless")
    assert (done.labels, done.failures) == (3, {}) and len(told) == 1
    read, _ = read_file(tmp_path / "out.extxyz", required=("energy", "forces"))
    assert not read.has["stress"].any()


@pytest.mark.parametrize("field", ["initial_charges", "initial_magmoms", "total_charge", "spin"])
def test_frames_in_another_state_are_other_frames(tmp_path: Path, field: str) -> None:
    frames = crystals(2)
    label(frames, tmp_path / "out.extxyz", method="mylab:emt", stop=lambda: True)
    if field.startswith("initial"):
        frames[0].set_array(field, np.ones(4))
    else:
        frames[0].info[field] = 2
    with pytest.raises(ValueError, match="labels of other frames or by another method"):
        label(frames, tmp_path / "out.extxyz", method="mylab:emt")


def test_a_calculator_with_other_parameters_is_another_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.extxyz"
    label(crystals(3), out, method="mylab:lj", stop=lambda: True)
    monkeypatch.setenv("SIGMA", "2.4")
    with pytest.raises(ValueError, match=r"\(mylab:lj\): .*parameters.sigma: 2.3 then, 2.4 now; bring these"):
        label(crystals(3), out, method="mylab:lj")
    monkeypatch.setenv("SIGMA", "2.30")  # the same, in another place
    assert label(crystals(3), out, method="mylab:lj").taken == 1


@posix
def test_an_output_is_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    with locked_file(tmp_path / "out.extxyz"), pytest.raises(ValueError, match="out.extxyz is in use by process"):
        label(crystals(1), tmp_path / "out.extxyz", method="mylab:emt")
    label(crystals(1), tmp_path / "out.extxyz", method="mylab:emt")
    assert not list(tmp_path.glob(".out*"))


@posix
def test_processes_end_with_a_killed_command(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "in.extxyz", crystals(3))
    options = ["label", "in.extxyz", "-o", "out.extxyz", "--with", "mylab:slow", "--processes", "2"]
    command = subprocess.Popen([sys.executable, "-m", "denskit", *options])
    assert within(120, lambda: len(list(tmp_path.glob("pids/*"))) == 2)
    workers = [int(path.name) for path in tmp_path.glob("pids/*")]
    assert all(map(lives, workers))
    command.kill()
    command.wait()
    assert within(10, lambda: not any(map(lives, workers)))


@pytest.mark.parametrize("processes", [1, 2])
def test_calculations_under_way_are_kept_where_it_stops(tmp_path: Path, processes: int) -> None:
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return True

    done = label(crystals(8), tmp_path / "out.extxyz", method="mylab:emt", processes=processes, stop=stop)
    saved = len((tmp_path / "out.extxyz.progress").read_text().splitlines()) - 1
    assert not done.finished and not (tmp_path / "out.extxyz").exists() and len(asked) == 1
    assert done.labels == saved == 1 if processes == 1 else 1 <= done.labels == saved < 8
    assert label(crystals(8), tmp_path / "out.extxyz", method="mylab:emt").labels == 8


def test_a_frame_without_geometry_gets_no_label(tmp_path: Path) -> None:
    """Some methods pass over an atom whose position is NaN, and give the energy of the others."""
    frames = crystals(3)
    frames[1].positions[0] = np.nan
    frames[2].cell[0, 0] = np.inf
    done = label(frames, tmp_path / "out.extxyz", method="mylab:careless")
    assert done.failures == dict.fromkeys((1, 2), "positions or cell are NaN or infinite")
    assert done.labels == 1


def test_a_frame_without_atoms_and_forces_of_another_shape_are_no_labels(tmp_path: Path) -> None:
    nothing = ase.Atoms(cell=np.eye(3), pbc=True)
    done = label([*crystals(2), nothing], tmp_path / "out.extxyz", method="mylab:careless")
    assert done.labels == len(ase.io.read(tmp_path / "out.extxyz", ":")) == 2 and list(done.failures) == [2]
    with pytest.raises(ValueError, match=r"forces of shape \(1, 3\) for 4 atoms; at least one atom and \(n, 3\)"):
        label(crystals(1), tmp_path / "short.extxyz", method="mylab:short")


def test_a_flat_cell_gets_no_label(tmp_path: Path) -> None:
    """In it the search of neighbours of some methods takes all memory, and does not end."""
    flat = ase.Atoms("Cu2", positions=[[0, 0, 0], [0, 0, 1]], cell=[1, 1, 1e-7], pbc=True)
    done = label([*crystals(1), flat], tmp_path / "out.extxyz", method="mylab:emt")
    assert done.labels == 1
    assert "the frame: periodic along [0, 1, 2], but its cell" in done.failures[1]
    assert "has no volume there" in done.failures[1]


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


def ammonium() -> ase.Atoms:
    corners = np.array([[1, 1, 1], [-1, -1, 1], [1, -1, -1], [-1, 1, -1]]) * 0.6
    return ase.Atoms("NH4", [[0.0, 0.0, 0.0], *corners])


def test_xtb_labels_the_charge_and_spin_of_the_fields(tmp_path: Path) -> None:
    tblite = pytest.importorskip("tblite.ase", reason="the xtb extra is not installed")
    states = [
        ({}, {}), ({"charge": 1}, {"charge": 1}), ({"total_charge": 1}, {"charge": 1}), ({"charge": 0}, {}),
        ({"charge": -1, "multiplicity": 3}, {"charge": -1, "multiplicity": 3}),
        ({"charge": -1, "spin": 3}, {"charge": -1, "multiplicity": 3}),
    ]  # fmt: skip
    frames, expected = [], []
    for fields, settings in states:
        atoms = ammonium()
        atoms.info |= fields
        frames.append(atoms)
        own = ammonium()
        own.calc = tblite.TBLite(method="GFN2-xTB", verbosity=0, accuracy=0.01, **settings)
        expected.append(own.get_potential_energy())
    odd = ammonium()
    odd.info |= {"charge": 1}
    odd.set_initial_charges([0, 0, 0, 0, -1])
    impossible = ammonium()
    impossible.info |= {"charge": 1, "multiplicity": 2}
    ase.io.write(tmp_path / "in.extxyz", [*frames, odd, impossible])
    done = label("in.extxyz", tmp_path / "out.extxyz")
    labels = [atoms.get_potential_energy() for atoms in ase.io.read(tmp_path / "out.extxyz", ":")]
    np.testing.assert_allclose(labels, expected, atol=1e-5)
    assert expected[1] - expected[0] > 4
    assert list(done.failures) == [6, 7]
    assert done.failures[6] == "charge=1, but the initial charges add up to -1; correct one"
    assert "unpaired electrons (1) is not compatible" in done.failures[7]


def test_one_geometry_in_several_charges(tmp_path: Path) -> None:
    """As for ionisation energies: ASE would give the results of the first one to all."""
    frames = [ase.Atoms("CO", [[0, 0, 0], [0, 0, 1.1]], info=info) for info in ({"charge": 0}, {"charge": 1}, {})]
    frames.append(ase.Atoms("CO", [[0, 0, 0], [0, 0, 1.1]], info={"charge": -1}))
    label(frames, tmp_path / "out.extxyz", method="mylab:lender")
    found = ase.io.read(tmp_path / "out.extxyz", ":")
    assert [atoms.get_potential_energy() for atoms in found] == [0, 1, 0, -1]
    assert [atoms.get_forces()[0, 0] for atoms in found] == [0, 1, 0, -1]


def test_a_calculator_that_cannot_be_told_the_charge(tmp_path: Path) -> None:
    frames = crystals(4)
    frames[1].info["charge"] = frames[2].info["charge"] = 1
    with pytest.warns(UserWarning, match="frame 1: EMT was not told the total charge") as told:
        label(frames, tmp_path / "out.extxyz", method="mylab:emt")
    assert len(told) == 1


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
    again = CliRunner().invoke(app, ["label", "in.extxyz", "-o", "out.extxyz", "--with", "xtb"])
    assert again.exit_code == 1 and "exists already" in again.output


def careful() -> EMT:
    return EMT()


@pytest.mark.parametrize(("method", "processes"), [(EMT, 2), (careful, 1)])
def test_a_method_may_be_a_function_or_class(tmp_path: Path, method: Callable[[], EMT], processes: int) -> None:
    done = label(crystals(2), tmp_path / "out.extxyz", method=method, processes=processes)
    assert done.labels == 2


def test_methods_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    for nameless in (lambda: EMT(), partial(EMT)):
        with pytest.raises(ValueError, match=r"> has no name of its own; define a function or class"):
            label(crystals(2), tmp_path / "out.extxyz", method=nameless)
    with pytest.raises(ValueError, match="method is an object of class EMT; wanted xtb"):
        label(crystals(2), tmp_path / "out.extxyz", method=EMT())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="returned an object of class int"):
        label(crystals(2), tmp_path / "out.extxyz", method=int)


def test_a_script_without_a_guard_is_told_of_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "from ase.build import bulk\nfrom denskit.active import label\n"
        "label([bulk('Cu'), bulk('Ag')], 'out.extxyz', method='mylab:emt', processes=2)\n"
    )
    ended = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False)
    assert "must stand below if __name__ == '__main__'" in ended.stderr.splitlines()[-1]
