"""``denskit info``: each fault, planted in sound data, is found and named; sound data are left in peace."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
from ase.build import bulk, fcc111, molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from typer.testing import CliRunner

from denskit.cli import app
from denskit.data.base import Subset
from denskit.data.config import ENERGY_UNITS, DataConfig
from denskit.data.datasets.embedded import FOLDER
from denskit.data.inspection import Finding, findings_of, inspect_file
from denskit.data.inspection.labels import likely_labels
from denskit.data.loading import read_file
from denskit.units import BOHR, GPA, HARTREE, KCAL_PER_MOL

RUNNER = CliRunner()
Spoil = Callable[[list[ase.Atoms]], None]


def labelled(atoms: ase.Atoms) -> ase.Atoms:
    """With EMT's labels as a file's."""
    atoms.calc = EMT()
    labels = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces(apply_constraint=False)}
    if atoms.pbc.all():
        labels["stress"] = atoms.get_stress(apply_constraint=False)
    atoms.calc = SinglePointCalculator(atoms, **labels)
    return atoms


def ethanol(count: int = 200) -> list[ase.Atoms]:
    """Frames of a trajectory, shuffled."""
    source, _ = read_file(FOLDER / "ethanol.npz")
    frames = []
    for index in np.random.default_rng(0).permutation(len(source))[:count]:
        system = source[int(index)]
        atoms = ase.Atoms(system.atomic_numbers, system.positions)
        atoms.calc = SinglePointCalculator(atoms, energy=system.energy, forces=system.forces)
        frames.append(atoms)
    return frames


def copper(count: int = 60) -> list[ase.Atoms]:
    """Crystals of two compositions, strained and rattled."""
    rng = np.random.default_rng(1)
    frames = []
    for number in range(count):
        atoms = bulk("Cu", cubic=True)
        atoms.numbers[: 2 * (number % 2)] = 46
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + rng.normal(0, 0.015, (3, 3))), scale_atoms=True)
        atoms.rattle(0.05, rng=rng)
        frames.append(labelled(atoms))
    return frames


def strained_copper(count: int = 60) -> list[ase.Atoms]:
    """Perfect crystals of eight atoms under strain: stresses, and forces that are zero but for rounding."""
    rng = np.random.default_rng(1)
    frames = []
    for _ in range(count):
        atoms = bulk("Cu", cubic=True).repeat((2, 1, 1))
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + rng.normal(0, 0.015, (3, 3))), scale_atoms=True)
        atoms = labelled(atoms)
        atoms.calc.results["forces"] = rng.normal(0, 1e-7, (8, 3))
        frames.append(atoms)
    return frames


def inspected(folder: Path, frames: list[ase.Atoms]) -> list[Finding]:
    path = folder / "mine.traj"  # keeps NaN and every digit
    ase.io.write(path, frames)
    return inspect_file(path).findings


def scaled(**factors: float) -> Spoil:
    """All labels of a kind times a number."""

    def spoil(frames: list[ase.Atoms]) -> None:
        for atoms in frames:
            for label, factor in factors.items():
                atoms.calc.results[label] = factor * atoms.calc.results[label]

    return spoil


def on(index: int, change: Callable[[ase.Atoms], object]) -> Spoil:
    """A change of one frame."""

    def spoil(frames: list[ase.Atoms]) -> None:
        change(frames[index])

    return spoil


def _alternating(frames: list[ase.Atoms]) -> None:
    for atoms in frames[::4]:
        atoms.calc.results["energy"] += 100.0


def _half_in_kcal(frames: list[ase.Atoms]) -> None:
    scaled(energy=1 / KCAL_PER_MOL, forces=1 / KCAL_PER_MOL)(frames[::2])


def _half_of_the_forces_in_kcal(frames: list[ase.Atoms]) -> None:
    scaled(forces=1 / KCAL_PER_MOL)(frames[::2])


def _per_atom(frames: list[ase.Atoms]) -> None:
    for atoms in frames:
        atoms.calc.results["energy"] /= len(atoms)


def _shuffled(frames: list[ase.Atoms]) -> None:
    energies = [atoms.calc.results["energy"] for atoms in frames]
    for atoms, energy in zip(frames, energies[7:] + energies[:7], strict=True):
        atoms.calc.results["energy"] = energy


def _virial(frames: list[ase.Atoms]) -> None:
    for atoms in frames:
        atoms.calc.results["stress"] = -atoms.calc.results["stress"] * atoms.get_volume()


def _constant(frames: list[ase.Atoms]) -> None:
    for atoms in frames:
        atoms.calc.results["energy"] = -7.0


def _twin(frames: list[ase.Atoms]) -> None:
    frames[7] = frames[2].copy()
    frames[7].calc = SinglePointCalculator(frames[7], **frames[2].calc.results)


def _other_twin(frames: list[ase.Atoms]) -> None:
    _twin(frames)
    frames[7].calc.results["energy"] += 1.0


def _no_forces(frames: list[ase.Atoms]) -> None:
    for atoms in frames:
        atoms.calc = SinglePointCalculator(atoms, energy=atoms.calc.results["energy"])


def _single_atoms(frames: list[ase.Atoms]) -> None:
    frames += [labelled(ase.Atoms(symbol)) for symbol in "CHO"]


def _one(frames: list[ase.Atoms]) -> None:
    del frames[1:]


def _in_bohr(frames: list[ase.Atoms]) -> None:
    for atoms in frames:
        atoms.set_cell(atoms.cell / BOHR, scale_atoms=True)


def with_energy(energy: float) -> Callable[[ase.Atoms], None]:
    return lambda atoms: atoms.calc.results.update(energy=energy)


def beside(distance: float) -> Callable[[ase.Atoms], None]:
    """Atom 2 as far from atom 1, along each axis."""
    return lambda atoms: atoms.positions.__setitem__(2, atoms.positions[1] + distance)


def no_force(atoms: ase.Atoms) -> None:
    atoms.calc.results["forces"][:] = 0


def nowhere(atoms: ase.Atoms) -> None:
    atoms.positions[0] = np.nan


def far(atoms: ase.Atoms) -> None:
    atoms.positions[0] += 1e5


def hold(atoms: ase.Atoms) -> None:
    atoms.set_constraint(FixAtoms(range(len(atoms))))


def _wild_numbers(atoms: ase.Atoms) -> None:
    atoms.positions[0] = 1e300


def _element(atoms: ase.Atoms) -> None:
    atoms.numbers[0] = 119


def _flat(atoms: ase.Atoms) -> None:
    atoms.cell[2] = atoms.cell[1]


def _open(frames: list[ase.Atoms]) -> list[ase.Atoms]:
    for atoms in frames:
        atoms.pbc = False
    return frames


def _large(atoms: ase.Atoms) -> None:
    atoms.calc.results["forces"][:2] += np.array([[700.0, 0, 0], [-700.0, 0, 0]])


FAULTS: list[tuple[str, Callable[[], list[ase.Atoms]], Spoil, str, str]] = [
    # what, data, how it is spoilt, what is found, what it means and what to do
    ("forces flipped", ethanol, scaled(forces=-1), "-F.dx is -1", "wrong sign.*Multiply the forces of the file by -1$"),
    ("flipped, crystals", copper, scaled(forces=-1), "-F.dx is -", "the forces have the wrong sign"),
    ("energy in Hartree", ethanol, scaled(energy=1 / HARTREE), "-F.dx is 2[5-9]", "energies are in Hartree.*27.21"),
    ("energy in kcal/mol", ethanol, scaled(energy=1 / KCAL_PER_MOL), "-F.dx is 0.04", "energies are in kcal/mol"),
    ("Hartree, crystals", copper, scaled(energy=1 / HARTREE), "-F.dx is 2[5-9]", "energies are in Hartree"),
    ("energy per atom", ethanol, _per_atom, "-F.dx is [89]", "energies are per atom"),
    ("force in kcal", ethanol, scaled(forces=1 / KCAL_PER_MOL), "-F.dx is 2[1-5]", "forces are in kcal/mol/Å"),
    ("atomic forces", ethanol, scaled(forces=BOHR / HARTREE), "-F.dx is 0.0[12]", "in Hartree/Bohr.*data.forces_unit"),
    ("atomic units", ethanol, scaled(energy=1 / HARTREE, forces=BOHR / HARTREE), "-F.dx is 0.5", "per Bohr"),
    (
        "all in kcal", ethanol, scaled(energy=1 / KCAL_PER_MOL, forces=1 / KCAL_PER_MOL), "bonds to H",
        "forces are in kcal/mol/Å. Say data.units=kcal/mol",
    ),
    ("all in Hartree", ethanol, scaled(energy=1 / HARTREE, forces=1 / HARTREE), "bonds to H", "data.units=Hartree"),
    ("huge forces", copper, scaled(energy=99, forces=99), "half of the frames have forces", "kcal/mol/Å"),
    ("alternating", ethanol, _alternating, "one composition fall into two groups 100 eV apart", "two methods"),
    ("alternating, crystals", copper, _alternating, "one composition fall into two groups 100", "two methods"),
    ("mixed", ethanol, _half_in_kcal, "fall into two groups", "some of them in kcal/mol, the others in eV"),
    ("mixed forces", ethanol, _half_of_the_forces_in_kcal, "energies do not change as forces say", "methods or units"),
    ("shuffled", ethanol, _shuffled, "energies do not change as forces say, by", "different structures"),
    ("stress in kbar", copper, scaled(stress=10 / GPA), "strain is 1.[5-9]e[+]03", "in kbar.*stress_unit=kbar"),
    ("VASP's stress", copper, scaled(stress=-10 / GPA), "strain is -1.[5-9]e", "sign.*kbar.*n data.stress_unit=kbar"),
    ("stress in GPa", copper, scaled(stress=1 / GPA), "V stress : strain is 1[5-9]", "in GPa.*data.stress_unit=GPa"),
    ("per atom, strained", strained_copper, _per_atom, "V stress : strain is [78]", "energies are per atom, not total"),
    ("kbar, strained", strained_copper, scaled(stress=10 / GPA), "strain is 1.[5-9].*e[+]03", "in kbar"),
    ("stress flipped", copper, scaled(stress=-1), "V stress : strain is -1", "wrong sign.*stress_sign=compression$"),
    ("virial", copper, _virial, "V stress : strain is -", "it is a virial"),
    ("constant", ethanol, _constant, "all energies are -7 eV", "a placeholder"),
    ("no stress", copper, on(3, lambda a: a.calc.results["stress"].fill(0)), "exactly zero .frame 3", "a placeholder"),
    ("NaN", ethanol, on(4, with_energy(np.nan)), "energy is NaN.* .frame 4", "missing=mask"),
    ("absent", ethanol, on(5, lambda a: a.calc.results.pop("forces")), "forces absent in 1 of 200", "missing=mask"),
    ("no forces", ethanol, _no_forces, "no frame has forces; fields of the file: energy", "data.forces_key=KEY"),
    ("zero", ethanol, on(3, no_force), "all forces are zero in 1 .*frame 3", "not computed"),
    ("zero, crystal", copper, on(3, no_force), "all forces are zero in 1 .*frame 3", "not computed"),
    ("net force", ethanol, on(9, lambda a: a.calc.results["forces"][0].fill(0)), "do not add up to zero.*frame 9", ""),
    ("drift", ethanol, on(8, lambda a: a.calc.results["forces"].__iadd__(0.015)), "not quite add up.*frame 8", "loose"),
    ("large", ethanol, on(6, _large), "forces up to 70. eV/Å .frame 6", "exploded"),
    ("wrong energy", copper, on(11, with_energy(900.0)), "energies up to .*frame 11", "wrong labels"),
    ("free atoms", copper, on(11, with_energy(18.0)), "energies up to .*frame 11", "free atoms"),
    ("far", ethanol, on(2, far), "parts of structures are up to 1e[+]05 Å apart .frame 2.", "flown away"),
    ("overlap", ethanol, on(1, beside(0.2)), "atoms only 0.346 Å apart .frame 1.", "on top"),
    ("one place", copper, on(1, beside(0.0)), "at one place.*frame 1.", ""),
    ("squeezed", copper, on(1, beside(0.7)), "1.21 Å apart, less than half of a bond .frame 1.", "far from"),
    ("in Bohr", copper, _in_bohr, "half of the atoms are more than 1.", "positions are in Bohr"),
    ("NaN place", ethanol, on(3, nowhere), "positions or cell are NaN or infinite .frame 3", "Remove"),
    ("exploded", ethanol, on(3, _wild_numbers), "coordinates beyond 1e[+]06 Å.* .frame 3", "Remove"),
    ("exploded crystal", copper, on(3, _wild_numbers), "coordinates beyond 1e[+]06 Å.* .frame 3", "Remove"),
    ("element", ethanol, on(3, _element), "atomic numbers outside 1 to 118 .frame 3", "Remove"),
    ("flat cell", copper, on(3, _flat), "cell vectors are zero or linearly dependent .frame 3", "Correct their cell"),
    ("no pbc", copper, _open, "a cell that the atoms fill, but no periodic direction", "pbc=.T T T. into the file"),
    ("one frame", ethanol, _one, "only 1 frame in the file", "too few to train on"),
    ("twin", ethanol, _twin, "the geometry of an earlier frame again .frame 7", "random split"),
    ("two labels", ethanol, _other_twin, "geometry of an earlier frame with other labels .frame 7", "two methods"),
    ("all fixed", ethanol, on(5, hold), "all atoms are fixed in 1 frame .frame 5", "Remove the constraints"),
    ("atoms", ethanol, _single_atoms, "3 frames of an isolated atom", "energies exactly"),
]  # fmt: skip
NOTES = {"drift", "twin", "atoms", "squeezed", "free atoms"}


@pytest.mark.parametrize(
    ("spoil", "remedy"),
    [
        (scaled(energy=1 / HARTREE, forces=BOHR / HARTREE), "data.units=Hartree data.forces_unit=Hartree/Bohr"),
        (scaled(energy=2 / HARTREE, forces=2 * BOHR / HARTREE), "data.units=Ry data.forces_unit=Ry/Bohr"),
        (scaled(forces=1 / KCAL_PER_MOL), "Multiply the forces"),
    ],
    ids=["atomic", "rydberg", "kcal"],
)
def test_one_mistake_in_units_has_one_remedy(spoil: Spoil, remedy: str, tmp_path: Path) -> None:
    """The comparison with the energies names it, and the stiffness of bonds would name it again."""
    frames = ethanol()
    spoil(frames)
    problems = [finding for finding in inspected(tmp_path, frames) if finding.severity == "problem"]
    assert len(problems) == 1
    assert remedy in str(problems[0])


def test_perfect_strained_crystals_are_sound(tmp_path: Path) -> None:
    """Their forces, which are rounding, neither."""
    assert not [f for f in inspected(tmp_path, strained_copper()) if f.severity == "problem"]


@pytest.mark.parametrize(("frames", "spoil", "found", "means"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_faults_are_found(
    tmp_path: Path, frames: Callable[[], list[ase.Atoms]], spoil: Spoil, found: str, means: str,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    structures = frames()
    spoil(structures)
    findings = inspected(tmp_path, structures)
    severity = "note" if request.node.callspec.id in NOTES else "problem"
    assert [f for f in findings if re.search(f"^{severity}: .*{found}.*{means}", str(f))], [*map(str, findings)]


@pytest.mark.parametrize("unit", ENERGY_UNITS)
def test_the_unit_that_is_advised_is_that_of_the_file(tmp_path: Path, unit: str) -> None:
    frames = ethanol()
    scaled(energy=1 / ENERGY_UNITS[unit], forces=1 / ENERGY_UNITS[unit])(frames)
    ase.io.write(tmp_path / "mine.traj", frames)
    for read_as in ENERGY_UNITS:
        found = inspect_file(tmp_path / "mine.traj", DataConfig(units=read_as)).findings
        about = [str(finding) for finding in found if "bonds to H" in finding.found]
        assert len(about) == (read_as != unit)
        assert all(f"Say data.units={unit}" in line for line in about)
    for stiffness in (20.5, 49.0):  # of sound molecules
        factor = stiffness / 29.5 / ENERGY_UNITS[unit]  # these frames have 29.5 eV/Å^2
        frames = ethanol()
        scaled(energy=factor, forces=factor)(frames)
        ase.io.write(tmp_path / "mine.traj", frames)
        found = inspect_file(tmp_path / "mine.traj", DataConfig(units=unit)).findings
        assert not [finding for finding in found if "bonds to H" in finding.found]
    soft = ethanol()
    scaled(energy=0.3, forces=0.3)(soft)
    assert [f for f in inspected(tmp_path, soft) if "no known unit explains it" in f.means]


def test_labels_that_count_in_no_loss_are_no_problem(tmp_path: Path) -> None:
    frames = ethanol()
    frames[4].calc.results["energy"] = np.nan
    frames[5].calc.results.pop("forces")
    ase.io.write(tmp_path / "mine.traj", frames)
    found = inspect_file(tmp_path / "mine.traj", DataConfig(missing="mask"))
    assert not found.problems
    assert sum("count in no loss (data.missing=mask)" in finding.means for finding in found.findings) == 2


def test_names_of_labels() -> None:
    labels = ["dft_energy", "energy_dft", "Energy", "TotEnergy", "dftForces", "forces_PBE", "MACE_energy", "energy_ev"]
    others = ["energy_unit", "energy_cutoff", "force_field", "n_forces", "input_energy", "energy_std", "config_type"]
    assert likely_labels([*labels, *others]) == labels


@pytest.mark.parametrize(("energy", "told"), [
    (lambda size, noise: -3.5 * size + 0.1 * noise, False),
    (lambda size, noise: -3.5 + 0.1 * noise / size, True),  # by the atom
    (lambda size, noise: -0.8 + 2.9 * noise, False),  # of adsorption
])  # fmt: skip
def test_energies_by_the_atom_do_not_grow_with_the_size(
    tmp_path: Path, energy: Callable[[int, float], float], told: bool
) -> None:
    rng, frames = np.random.default_rng(0), []
    for size in [1, 2, 3, 4] * 10:
        atoms = bulk("Cu", cubic=True).repeat((size, 1, 1))
        atoms.rattle(0.05, rng=rng)
        atoms.calc = SinglePointCalculator(atoms, energy=energy(len(atoms), rng.normal()))
        frames.append(atoms)
    found = [finding for finding in inspected(tmp_path, frames) if "do not grow with the number" in finding.found]
    assert len(found) == told


def test_fields_that_may_be_labels_are_named_where_others_are_read(tmp_path: Path) -> None:
    frames = ethanol(8)
    for atoms in frames:
        atoms.info |= {"dft_energy": -5.0, "DFT_stress": np.zeros(9), "energy_unit": "eV", "free_energy": -4.0}
    ase.io.write(tmp_path / "both.extxyz", frames)

    def said(config: DataConfig) -> list[str]:
        found = inspect_file(tmp_path / "both.extxyz", config).findings
        return [finding.found for finding in found if "are not read" in finding.found]

    assert said(DataConfig()) == ["fields that may be labels and are not read: DFT_stress, dft_energy"]
    assert said(DataConfig(energy_key="dft_energy")) == ["fields that may be labels and are not read: DFT_stress"]


def test_fields_that_look_like_labels_are_a_problem(tmp_path: Path) -> None:
    frames = ethanol()
    for atoms in frames:
        atoms.info |= {"energy_unit": "eV", "energy_cutoff": 400.0, "force_field": "none"}
        atoms.calc = None
    assert not [f for f in inspected(tmp_path, frames) if f.severity == "problem"]
    for atoms in frames:
        atoms.info["dft_energy"] = -1.0
    assert any("dft_energy" in f.found and f.severity == "problem" for f in inspected(tmp_path, frames))


@pytest.mark.parametrize("frames", [ethanol, copper])
def test_sound_files_have_no_problems(tmp_path: Path, frames: Callable[[], list[ase.Atoms]]) -> None:
    assert [str(finding) for finding in inspected(tmp_path, frames()) if finding.severity == "problem"] == []


@pytest.mark.parametrize("start", [0, 360, 840])
def test_few_frames_of_a_trajectory_are_no_evidence_of_other_units(start: int) -> None:
    source, _ = read_file(FOLDER / "ethanol.npz")
    few = Subset(source, np.arange(start, start + 16), "train")
    assert not [finding for finding in findings_of(few) if finding.severity == "problem"]


def test_few_frames_show_forces_of_the_wrong_sign(tmp_path: Path) -> None:
    source, _ = read_file(FOLDER / "ethanol.npz")
    frames = []
    for system in (source[index] for index in range(16)):
        atoms = ase.Atoms(system.atomic_numbers, system.positions)
        atoms.calc = SinglePointCalculator(atoms, energy=system.energy, forces=-system.forces)
        frames.append(atoms)
    assert any("wrong sign" in finding.means for finding in inspected(tmp_path, frames))


@pytest.mark.parametrize(("name", "vacuum"), [("C6H6", 3.0), ("CH3CH2OH", 2.5), ("CH4", 2.0)])
def test_molecules_in_boxes_are_no_crystals(tmp_path: Path, name: str, vacuum: float) -> None:
    frames = [molecule(name) for _ in range(5)]
    for seed, atoms in enumerate(frames):
        atoms.rattle(0.02, seed=seed)
        atoms.center(vacuum=vacuum)
        atoms.calc = SinglePointCalculator(atoms, energy=-1.0 * seed, forces=0.0 * atoms.positions + 0.01)
    assert not [found for found in inspected(tmp_path, frames) if "no periodic direction" in found.found]


def test_scans_of_a_dimer_are_sound(tmp_path: Path) -> None:
    """Half of the distances are no bonds, and energies of one composition differ: all of one curve."""
    distances = np.concatenate([np.linspace(0.9, 1.6, 10), np.linspace(1.7, 4.5, 30)])
    frames = [ase.Atoms("N2", [(0, 0, 0), (0, 0, distance)]) for distance in distances]
    for atoms, distance in zip(frames, distances, strict=True):
        decay = np.exp(-2.7 * (distance - 1.1))
        slope = 2 * 2.7 * 9.9 * decay * (1 - decay)
        forces = [(0, 0, slope), (0, 0, -slope)]
        atoms.calc = SinglePointCalculator(atoms, energy=9.9 * ((1 - decay) ** 2 - 1), forces=forces)
    assert not [found for found in inspected(tmp_path, frames) if found.severity == "problem"]


def test_slabs_with_fixed_atoms_and_zeroed_forces(tmp_path: Path) -> None:
    frames = []
    for seed in range(12):
        atoms = fcc111("Cu", (2, 2, 3), vacuum=6)
        atoms.pbc = [True, True, False]
        start = atoms.positions.copy()
        atoms.rattle(0.05, seed=seed)
        atoms.positions[atoms.get_tags() == 3] = start[atoms.get_tags() == 3]
        labelled(atoms)
        atoms.set_constraint(FixAtoms([atom.index for atom in atoms if atom.tag == 3]))
        atoms.calc.results["forces"][atoms.constraints[0].index] = 0
        frames.append(atoms)
    found = [str(finding) for finding in inspected(tmp_path, frames)]
    assert any(line.startswith("note: forces on fixed atoms are zero in 12 frames") for line in found)
    assert any(line.startswith("note: 33% of the atoms are fixed") for line in found)
    assert not [line for line in found if "add up" in line or line.startswith("problem")]


def test_a_label_that_the_training_does_without_is_no_problem(tmp_path: Path) -> None:
    frames = ethanol()
    _no_forces(frames)
    ase.io.write(tmp_path / "mine.extxyz", frames)
    source, _ = read_file(tmp_path / "mine.extxyz")
    wanted = [
        bool([f for f in findings_of(source, required=r) if "no frame has" in f.found])
        for r in (["energy"], ["forces"])
    ]
    assert wanted == [False, True]


def test_perfect_crystals_may_have_no_forces(tmp_path: Path) -> None:
    frames = [labelled(bulk("Cu", cubic=True, a=a)) for a in np.linspace(3.5, 3.7, 9)]
    for atoms in frames:
        atoms.calc.results["forces"][:] = 0
    assert [str(finding) for finding in inspected(tmp_path, frames) if finding.severity == "problem"] == []


def test_energies_far_apart_are_no_fault_where_structures_are(tmp_path: Path) -> None:
    """Two geometries of one composition, bound and torn apart: the gap between their energies is real."""
    frames = []
    for seed in range(20):
        atoms = molecule("C2H6")
        atoms.rattle(0.02, seed=seed)
        if seed % 2:
            atoms.positions[[0, 2, 3, 4]] += [0, 0, 4.0]
        labelled(atoms)
        atoms.calc.results["energy"] -= 5.0 * (seed % 2)
        frames.append(atoms)
    assert not [finding for finding in inspected(tmp_path, frames) if "two groups" in finding.found]


def _scaled_by(factor: float, atoms: ase.Atoms, higher: float) -> ase.Atoms:
    """A larger or smaller structure, with the forces of the old one and another energy."""
    found = ase.Atoms(atoms.numbers, factor * atoms.positions)
    labels = {**atoms.calc.results, "energy": atoms.calc.results["energy"] + higher}
    found.calc = SinglePointCalculator(found, **labels)
    return found


def test_energies_of_another_program_are_told_wherever_their_structures_are(tmp_path: Path) -> None:
    """Those of a simulation lie beside those of the start, not among them."""
    frames = ethanol(40)
    frames[37:] = [_scaled_by(1.05, atoms, higher=3900.0) for atoms in frames[37:]]
    (found,) = [one for one in inspected(tmp_path, frames) if "two groups" in one.found]
    assert found.severity == "problem" and found.frames == (37, 38, 39)


def test_compressed_structures_have_any_energy(tmp_path: Path) -> None:
    frames = ethanol(40)
    frames[37:] = [_scaled_by(0.45, atoms, higher=500.0) for atoms in frames[37:]]
    found = inspected(tmp_path, frames)
    assert not [one for one in found if "two groups" in one.found or "absent" in one.found]


def _of_two_sizes() -> list[ase.Atoms]:
    """Perfect crystals of one and of twelve atoms under strain."""
    rng, frames = np.random.default_rng(1), []
    for number in range(120):
        atoms = bulk("Cu").repeat((1, 3, 4) if number % 2 else 1)
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + rng.normal(0, 0.015, (3, 3))), scale_atoms=True)
        frames.append(labelled(atoms))
    return frames


def test_a_far_higher_energy_with_far_larger_forces_is_no_other_method(tmp_path: Path) -> None:
    """As of a structure rattled further than the others; with forces like those of the others it is told."""
    frames = ethanol(40)
    frames[7].calc.results["energy"] += 6.0
    (found,) = [one for one in inspected(tmp_path, frames) if "two groups" in one.found]
    assert found.frames == (7,)
    frames[7].calc.results["forces"] *= 12.0
    assert not [one for one in inspected(tmp_path, frames) if "two groups" in one.found]


def test_energies_by_the_atom_of_crystals_of_two_sizes_are_no_mixed_stresses(tmp_path: Path) -> None:
    frames = _of_two_sizes()
    assert not [one for one in inspected(tmp_path, frames) if one.severity == "problem"]
    _per_atom(frames)
    found = [str(one) for one in inspected(tmp_path, frames) if one.severity == "problem"]
    assert any("the energies are per atom, not total" in text for text in found)
    assert not any("wrong sign" in text or "data.stress" in text for text in found)


def test_energies_by_the_atom_are_not_in_rydberg(tmp_path: Path) -> None:
    """Sixteen atoms, and a Rydberg of 13.6 eV."""
    rng, frames = np.random.default_rng(1), []
    for _ in range(60):
        atoms = bulk("Cu", cubic=True).repeat((2, 2, 1))
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + rng.normal(0, 0.015, (3, 3))), scale_atoms=True)
        atoms.rattle(0.03, rng=rng)
        frames.append(labelled(atoms))
    _per_atom(frames)
    found = [str(one) for one in inspected(tmp_path, frames) if one.severity == "problem"]
    assert found and all("the energies are per atom, not total" in text for text in found)


def test_forces_that_were_not_compared_are_told(tmp_path: Path) -> None:
    """The stress alone was: cells differ, and forces are too small to tell."""
    told = "near frames differ by their cells, so energies were compared with the stress alone"
    for size, severities in ((1e-7, []), (1e-3, ["note"])):  # eV/Å; perfect crystals have none
        frames = strained_copper()
        for atoms in frames:
            atoms.calc.results["forces"] *= size / 1e-7
        assert [one.severity for one in inspected(tmp_path, frames) if told in one.found] == severities
    assert not [one for one in inspected(tmp_path, copper()) if told in one.found]


def test_a_few_huge_forces_are_no_other_unit(tmp_path: Path) -> None:
    frames = copper()
    _large(frames[6])
    assert np.sqrt(np.mean([atoms.get_forces() ** 2 for atoms in frames])) > 20
    found = [str(finding) for finding in inspected(tmp_path, frames)]
    assert any("forces up to 7" in line and "frame 6" in line for line in found)
    assert not [line for line in found if "kcal" in line]


def test_huge_forces_of_atoms_on_top_of_each_other_are_no_other_unit(tmp_path: Path) -> None:
    frames = copper()
    for seed, atoms in enumerate(frames):
        atoms.rattle(0.8, seed=seed)
        labelled(atoms)
    assert np.median([np.sqrt(np.mean(atoms.get_forces() ** 2)) for atoms in frames]) > 8
    found = [str(finding) for finding in inspected(tmp_path, frames)]
    assert any("far from equilibrium" in line for line in found)
    assert not [line for line in found if "kcal" in line]


def test_a_trajectory_is_recognised(tmp_path: Path) -> None:
    frames, start = [], molecule("CH4").positions
    for time in range(60):
        atoms = molecule("CH4")
        noise = 0.001 * np.random.default_rng(time).normal(size=(5, 3))
        atoms.positions = start * (1 + 0.1 * np.sin(time / 20)) + noise
        frames.append(labelled(atoms))
    assert [f for f in inspected(tmp_path, frames) if "data.split.mode=blocks" in f.advice]
    shuffled = [frames[i] for i in np.random.default_rng(0).permutation(60)]
    assert not [f for f in inspected(tmp_path, shuffled) if "data.split.mode=blocks" in f.advice]


def test_numbers(tmp_path: Path) -> None:
    frames = ethanol(30)
    ase.io.write(tmp_path / "mine.traj", frames)
    found = inspect_file(tmp_path / "mine.traj")
    forces = np.concatenate([atoms.get_forces() for atoms in frames])
    assert (found.frames, found.looked_at, found.compositions, found.fixed_atoms) == (30, 30, 1, 0)
    assert found.elements == {"H": 180, "C": 60, "O": 30}
    assert found.periodicity == {"none": 30}
    assert found.labels == {"energy": 30, "forces": 30, "stress": 0}
    assert found.force_rms == pytest.approx(np.sqrt((forces**2).mean()))
    assert found.force_max == pytest.approx(np.linalg.norm(forces, axis=1).max())
    closest = min(np.min(atoms.get_all_distances()[~np.eye(9, dtype=bool)]) for atoms in frames)
    assert found.closest == pytest.approx(closest)
    assert found.energy is not None
    assert found.energy[0] == pytest.approx(min(atoms.get_potential_energy() for atoms in frames))


def test_the_command_prints_lines_or_json_and_fails_where_there_are_problems(tmp_path: Path) -> None:
    frames = ethanol(40)
    ase.io.write(tmp_path / "sound.traj", frames)
    sound = RUNNER.invoke(app, ["info", str(tmp_path / "sound.traj")])
    assert sound.exit_code == 0, sound.output
    assert "no problem found" in sound.output
    for atoms in (unlabelled := ethanol(4)):
        atoms.info["my_E"], atoms.calc = atoms.get_potential_energy(), None
    ase.io.write(tmp_path / "named.extxyz", unlabelled)
    named = RUNNER.invoke(app, ["info", str(tmp_path / "named.extxyz")])
    assert "no problem found" not in named.output
    assert named.output.splitlines()[-1].startswith("nothing to train on: no energy and no forces")
    frames[3].positions[0] = np.nan
    ase.io.write(tmp_path / "mine.traj", frames)
    printed = RUNNER.invoke(app, ["info", str(tmp_path / "mine.traj")])
    assert printed.exit_code == 1
    assert "H 234, C 78, O 39" in printed.output
    assert "problem: positions or cell are NaN or infinite (frame 3). Remove these frames\n" in printed.output
    as_json = RUNNER.invoke(app, ["info", str(tmp_path / "mine.traj"), "--json", "data.units=kcal/mol"])
    assert as_json.exit_code == 1
    found = inspect_file(tmp_path / "mine.traj", DataConfig(units="kcal/mol")).to_dict()
    assert json.loads(as_json.stdout) == json.loads(json.dumps(found))


def test_parts_of_a_file_keep_their_numbers(tmp_path: Path) -> None:
    frames = ethanol(60)
    frames[40].calc.results["forces"][:] = 0
    ase.io.write(tmp_path / "mine.traj", frames)
    source, _ = read_file(tmp_path / "mine.traj")
    part = Subset(source, np.random.default_rng(0).permutation(np.arange(20, 60)), "train")
    (zero,) = [finding for finding in findings_of(part) if "all forces are zero" in finding.found]
    assert zero.frames == (40,)


def test_large_sources_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("denskit.data.inspection.SAMPLE", 40)
    source, _ = read_file(FOLDER / "ethanol.npz")
    found = [str(finding) for finding in findings_of(Subset(source, np.arange(len(source)), "all"))]
    assert "note: 40 of 2,000 structures were looked at, evenly spaced" in found
    assert not [line for line in found if line.startswith("problem")]


SOUND = (
    "3bpa_test_300K.extxyz", "3bpa_test_600K.extxyz", "3bpa_train_300K.extxyz", "bcc_binary_test.extxyz",
    "bcc_binary_train.extxyz", "bcc_metals_1000K_2000K_test.extxyz", "bcc_metals_300K_test.extxyz",
    "bcc_metals_300K_train.extxyz", "bcc_metals_elastic.extxyz", "bcc_metals_surface.extxyz", "md17_ethanol.npz",
    "mptrj_850.extxyz", "oc20_s2ef_sample.lmdb", "oc20_s2ef_train.npz", "oc22_s2ef_train16.pkl", "oc22_s2ef_val16.pkl",
    "rmd17_aspirin_test.extxyz", "rmd17_aspirin_train.extxyz", "rmd17_ethanol_a.extxyz", "rmd17_ethanol_b.extxyz",
    "silica_cold_test.extxyz", "silica_cold_train.extxyz", "silica_hot_test.extxyz", "silica_topology_test.extxyz",
    "w_bulk_test.extxyz", "w_bulk_train.extxyz", "w_surface_test.extxyz", "water_test.extxyz", "water_train.extxyz",
    "wbe_crystals_newphase_test.extxyz", "wbe_crystals_test.extxyz", "wbe_crystals_train.extxyz",
)  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_real_data_have_no_problems(data_dir: Path, name: str) -> None:
    assert [str(finding) for finding in inspect_file(data_dir / name).problems] == []


def _first(data_dir: Path, name: str, count: int) -> list[ase.Atoms]:
    frames = ase.io.read(data_dir / name, f":{count}")
    assert isinstance(frames, list)
    return frames


@pytest.mark.parametrize(
    ("name", "count", "spoil", "words"),
    [
        ("mptrj_850.extxyz", 200, scaled(stress=10 / GPA), "the stress is in kbar. Say data.stress_unit=kbar"),
        (
            "mptrj_850.extxyz",
            850,
            scaled(energy=1 / KCAL_PER_MOL, forces=1 / KCAL_PER_MOL),
            "say data.units=kcal/mol if",
        ),
        ("bcc_metals_1000K_2000K_test.extxyz", 60, scaled(stress=-10 / GPA), "half of the stresses are above"),
        ("bcc_metals_elastic.extxyz", 121, scaled(stress=-1), "the stress has the wrong sign"),
        ("wbe_crystals_train.extxyz", 200, scaled(energy=1 / HARTREE), "the energies are in Hartree"),
        ("bcc_binary_train.extxyz", 400, scaled(forces=-1), "the forces have the wrong sign"),
        ("silica_cold_train.extxyz", 200, scaled(forces=-1), "the forces have the wrong sign"),
        ("water_train.extxyz", 80, scaled(forces=1 / KCAL_PER_MOL), "forces are in kcal/mol/Å"),
        ("3bpa_train_300K.extxyz", 500, scaled(energy=1 / KCAL_PER_MOL), "the energies are in kcal/mol"),
    ],
)
def test_faults_planted_in_real_data(
    data_dir: Path, tmp_path: Path, name: str, count: int, spoil: Spoil, words: str
) -> None:
    frames = _first(data_dir, name, count)
    spoil(frames)
    found = [str(finding).lower() for finding in inspected(tmp_path, frames) if finding.severity == "problem"]
    assert [line for line in found if words.lower() in line], found


def test_isolated_atoms_need_no_forces_and_no_stress(tmp_path: Path) -> None:
    frames = copper()
    box = ase.Atoms("Cu", cell=np.eye(3) * 15.0, pbc=True)
    box.calc = SinglePointCalculator(box, energy=-1.0)
    ase.io.write(tmp_path / "copper.extxyz", [*frames, box])
    told = [finding.found for finding in inspect_file(tmp_path / "copper.extxyz").findings]
    assert any("1 frame of an isolated atom" in found for found in told)
    assert not any("absent" in found for found in told)
