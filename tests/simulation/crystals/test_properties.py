"""Properties of crystals of a formula, compared with differences of its energy."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase
import numpy as np
import pytest
import torch
from ase.build import bulk, fcc111

from denskit.analysis.crystal_results import _rough, remarks
from denskit.batch import Batch, System
from denskit.data.base import collate
from denskit.data.writing import plain
from denskit.simulation.crystals import (
    CrystalSettings,
    elastic_constants,
    equation_of_state,
    phonons,
    relaxed_crystal,
)
from denskit.simulation.crystals.elastic import Elasticity, cubic_constants, nearly_cubic
from denskit.simulation.crystals.folder import measure_into
from denskit.simulation.crystals.phonons import thermal_properties
from denskit.simulation.potential import Evaluation
from denskit.simulation.relaxation import relax
from denskit.simulation.relaxation.cells import CellRelaxation
from denskit.simulation.relaxation.relaxer import MOST_VOLUME
from denskit.simulation.relaxation.settings import RelaxationSettings
from denskit.units import AMU, GPA
from simulation.morse import Morse

SETTINGS = CrystalSettings(fmax=1e-5, strain=0.002, supercell=4.0, volume_range=0.03)
MORSE = Morse(stress=True)


def _system(atoms: ase.Atoms) -> System:
    n = len(atoms)
    return System(
        positions=atoms.positions, atomic_numbers=atoms.numbers, cell=atoms.cell.array, pbc=np.ones(3, dtype=bool),
        fixed=np.zeros(n, dtype=bool), tags=np.zeros(n, dtype=np.int64),
    )  # fmt: skip


def _energy(positions: np.ndarray, cell: np.ndarray) -> float:
    n = len(positions)
    atoms = ase.Atoms(numbers=[29] * n, positions=positions, cell=cell, pbc=True)
    return float(MORSE(collate([_system(atoms)], torch.float64)[0]).energy[0])


def test_a_maximum_of_the_energy_is_no_equilibrium(crystal: System) -> None:
    """As of a poor model far from what it was trained on."""

    class Inverted:
        def __call__(self, *arguments: object, **named: object) -> Evaluation:
            found = MORSE(*arguments, **named)  # type: ignore[arg-type]
            return replace(found, energy=-found.energy, forces=-found.forces)

        def __getattr__(self, name: str) -> object:
            return getattr(MORSE, name)

    with pytest.raises(ValueError, match="the energy has no minimum but a maximum, at"):
        equation_of_state(Inverted(), crystal, SETTINGS)  # type: ignore[arg-type]


@pytest.mark.parametrize(("wanted", "package"), [({"vibrations": True}, "phonopy"), ({"heat": True}, "phono3py")])
def test_a_missing_program_is_told_before_the_first_crystal(
    wanted: dict[str, bool], package: str, crystal: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=f"need(s)? {package}: pip install"):
        measure_into(tmp_path / "out", MORSE, [crystal], SETTINGS, **wanted)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def crystal() -> System:
    """Face-centred cubic, four atoms, started from a cell that is not the minimum."""
    return relaxed_crystal(MORSE, _system(bulk("Cu", cubic=True, a=3.0)), SETTINGS)


@pytest.fixture(scope="module")
def elastic(crystal: System) -> Elasticity:
    return elastic_constants(MORSE, crystal, SETTINGS)


def test_elastic_constants_are_second_derivatives_of_the_energy(crystal: System, elastic: Elasticity) -> None:
    def energy(strain: np.ndarray) -> float:
        change = np.eye(3) + strain
        return _energy(crystal.positions @ change, crystal.cell @ change)

    volume, step = abs(np.linalg.det(crystal.cell)), 2e-3
    tension, shear = np.diag([step, 0, 0]), np.array([[0, step / 2, 0], [step / 2, 0, 0], [0, 0, 0]])
    for strain, found in ((tension, elastic.constants[0, 0]), (shear, elastic.constants[5, 5])):
        second = (energy(strain) + energy(-strain) - 2 * energy(0 * strain)) / step**2 / volume / GPA
        assert found == pytest.approx(second, rel=2e-3)


def test_a_cubic_crystal_has_three_constants(elastic: Elasticity) -> None:
    c = elastic.constants
    c11, c12, c44 = c[0, 0], c[0, 1], c[3, 3]
    expected = np.diag([c11] * 3 + [c44] * 3)
    expected[:3, :3] += c12 * (1 - np.eye(3))
    np.testing.assert_allclose(c, expected, atol=1e-3 * c11)
    assert elastic.stable
    assert elastic.asymmetry < 1e-3 * c11
    assert elastic.bulk_modulus == pytest.approx((c11 + 2 * c12) / 3, rel=1e-6)


def test_constants_of_a_turned_primitive_cell_are_those_of_the_conventional_one(elastic: Elasticity) -> None:
    pytest.importorskip("spglib")
    turned = bulk("Cu", a=3.0)
    turned.rotate(40, (1, 2, 3), rotate_cell=True)
    primitive = relaxed_crystal(MORSE, _system(turned), SETTINGS)
    own = elastic_constants(MORSE, primitive, SETTINGS).constants
    c = elastic.constants
    assert own[0, 0] != pytest.approx(c[0, 0], rel=0.02)
    assert cubic_constants(own, primitive) == pytest.approx([c[0, 0], c[0, 1], c[3, 3]], rel=1e-3)
    stretched = replace(primitive, positions=primitive.positions * [1, 1, 1.1], cell=primitive.cell * [1, 1, 1.1])
    assert cubic_constants(own, stretched) is None


def test_a_crystal_that_is_cubic_but_for_its_relaxation_is_told(tmp_path: Path) -> None:
    pytest.importorskip("spglib")
    copper = _system(bulk("Cu", cubic=True, a=2.7))
    copper.positions[1] += [0.16, 0.05, 0.0]
    roughly, fully = SETTINGS.model_copy(update={"fmax": 0.03}), SETTINGS.model_copy(update={"fmax": 1e-6})
    (found,) = measure_into(tmp_path / "roughly", MORSE, [copper], roughly) or [{}]
    assert found["cubic_C11_GPa"] is None
    assert found["nearly_cubic"].endswith(" to 0.001 Å and Fm-3m (225) to 0.1 Å")
    (remark,) = [text for text in remarks(found) if "relax it further (--fmax 1e-6)" in text]
    assert "no C11, C12, C44 of a cubic crystal, since its space group is " + found["nearly_cubic"] in remark
    (found,) = measure_into(tmp_path / "fully", MORSE, [copper], fully) or [{}]
    assert found["cubic_C11_GPa"] > 0 and "nearly_cubic" not in found
    titanium = _system(bulk("Ti", "hcp", a=2.1, c=3.43))
    assert nearly_cubic(titanium) == "", "no cubic crystal at any tolerance"


def test_the_equation_of_state_has_the_bulk_modulus_of_the_elastic_constants(
    crystal: System, elastic: Elasticity
) -> None:
    found = equation_of_state(MORSE, crystal, SETTINGS)
    assert found.bulk_modulus == pytest.approx(elastic.bulk_modulus, rel=0.02)
    assert found.volume == pytest.approx(abs(np.linalg.det(crystal.cell)) / 4, rel=1e-3)
    assert found.energy == pytest.approx((crystal.energy or 0.0) / 4, abs=1e-4)
    assert found.residual < 1e-3


def test_averages_of_an_isotropic_solid() -> None:
    bulk_modulus, shear = 100.0, 40.0
    c = np.diag([4 / 3 * shear] * 3 + [shear] * 3)
    c[:3, :3] += bulk_modulus - 2 / 3 * shear * (1 - np.eye(3))
    found = Elasticity.of(c)
    assert (found.bulk_modulus, found.shear_modulus) == pytest.approx((bulk_modulus, shear))
    assert found.youngs_modulus == pytest.approx(9 * bulk_modulus * shear / (3 * bulk_modulus + shear))
    assert found.poisson_ratio == pytest.approx((3 * bulk_modulus - 2 * shear) / (6 * bulk_modulus + 2 * shear))
    c[3, 3] = -1.0
    unstable = Elasticity.of(c)
    assert not unstable.stable
    averages = (unstable.bulk_modulus, unstable.shear_modulus, unstable.youngs_modulus, unstable.poisson_ratio)
    assert averages == (None, None, None, None), "without a compliance there is no average of Hill"
    with pytest.raises(ValueError, match="all elastic constants are zero"):
        Elasticity.of(np.zeros((6, 6)))


def test_atoms_too_near_for_spglib_are_a_crystal_without_symmetry() -> None:
    """Once phonopy is imported, spglib raises an error of its own."""
    pytest.importorskip("spglib")
    copper = _system(bulk("Cu", cubic=True, a=3.0))
    near = replace(copper, positions=copper.positions.copy())
    near.positions[1] = near.positions[0] + [0, 0, 0.01]
    phonons(MORSE, copper, SETTINGS)
    assert cubic_constants(np.eye(6), near) is None and nearly_cubic(near) == ""


def test_an_error_of_spglib_does_not_end_the_other_crystals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spglib = pytest.importorskip("spglib")
    if not hasattr(spglib, "SpglibError"):
        pytest.skip("this spglib raises no error of its own")

    def fails_on_silver(potential: Morse, crystal: System, settings: CrystalSettings, **more: Any) -> Any:
        if 47 in crystal.atomic_numbers:
            raise spglib.SpglibError("too close distance between atoms")
        return phonons(potential, crystal, settings, **more)

    monkeypatch.setattr("denskit.simulation.crystals.folder.phonons", fails_on_silver)
    crystals = [_system(bulk(symbol, cubic=True, a=3.0)) for symbol in ("Cu", "Ag", "Cu")]
    found = measure_into(tmp_path, MORSE, crystals, SETTINGS, moduli=False, vibrations=True) or []
    assert [one.get("error") for one in found] == [None, "too close distance between atoms", None]


class WithoutMemory(Morse):
    def __call__(self, batch: Batch) -> Evaluation:
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_crystal_that_ran_out_of_memory_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_supercells(potential: Morse, crystal: System, settings: CrystalSettings) -> Elasticity:
        raise torch.OutOfMemoryError("CUDA out of memory")

    copper = _system(bulk("Cu", a=3.0))
    with pytest.raises(ValueError, match="out of memory with crystal 0. Continue with --resume"):
        measure_into(tmp_path, WithoutMemory(stress=True), [copper], SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr("denskit.simulation.crystals.folder.elastic_constants", in_supercells)
        with pytest.raises(ValueError, match="The system said: CUDA out of memory"):
            measure_into(tmp_path, MORSE, [copper], SETTINGS, resume=True)
    (found,) = measure_into(tmp_path, MORSE, [copper], SETTINGS, resume=True) or [{}]
    assert "error" not in found and found["bulk_modulus_GPa"] > 0


def test_phonons_of_a_left_handed_cell(crystal: System) -> None:
    """The same crystal with two lattice vectors exchanged."""
    pytest.importorskip("phonopy")
    other = replace(crystal, cell=crystal.cell[[1, 0, 2]])
    found, expected = (phonons(MORSE, each, SETTINGS) for each in (other, crystal))
    assert np.linalg.det(crystal.cell) * np.linalg.det(other.cell) < 0
    assert found.largest == pytest.approx(expected.largest, rel=5e-3)  # the meshes differ
    assert found.heat_capacity == pytest.approx(expected.heat_capacity, rel=1e-3)


def test_phonons_are_those_of_the_hessian(crystal: System) -> None:
    """The modes of the four-atom cell at Gamma, from second differences of the energy."""
    pytest.importorskip("phonopy")
    found = phonons(MORSE, crystal, SETTINGS)
    n, step = len(crystal), 1e-3
    hessian = np.zeros((3 * n, 3 * n))
    for i in range(3 * n):
        for j in range(i + 1):
            corners = []
            for one, other in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
                moved = crystal.positions.flatten()
                moved[i] += one * step
                moved[j] += other * step
                corners.append(one * other * _energy(moved.reshape(-1, 3), crystal.cell))
            hessian[i, j] = hessian[j, i] = sum(corners) / (4 * step**2)
    masses = ase.Atoms("Cu").get_masses()[0] * AMU
    values = np.linalg.eigvalsh(hessian) / masses
    own = 1000 * np.sqrt(np.abs(values)) * np.sign(values) / (2 * np.pi)  # THz
    modes = found.phonopy
    modes.run_qpoints([[0, 0, 0], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]])  # those folded onto Gamma
    theirs = np.sort(modes.qpoints.frequencies.flatten())
    np.testing.assert_allclose(theirs, np.sort(own), atol=0.02 * own.max())
    assert found.stable
    assert 3 * 8.314 * 0.5 < found.heat_capacity <= 3 * 8.3145


def test_the_free_energy_does_not_depend_on_the_rounding_of_translations(crystal: System) -> None:
    """Each atom is held, or pushed away, by a spring of 1e-11 eV/Å^2, which moves frequencies at Gamma about 0."""
    pytest.importorskip("phonopy")
    found = phonons(MORSE, crystal, SETTINGS)
    modes = found.phonopy
    exact = np.array(modes.force_constants)
    for stiffness in (1e-11, -1e-11):
        constants = exact.copy()
        assert constants.shape[0] == constants.shape[1], "of all atoms of the supercell"
        constants[np.arange(len(constants)), np.arange(len(constants))] += stiffness * np.eye(3)
        modes.force_constants = constants
        modes.run_mesh(60.0)
        translations = np.sort(np.abs(modes.mesh.frequencies), axis=None)[:3]
        assert (translations > 1e-6).all() and (translations < 1e-3).all(), "THz"
        assert thermal_properties(modes) == pytest.approx((found.heat_capacity, found.free_energy), rel=1e-9)
    frequencies, weights = modes.mesh.frequencies, modes.mesh.weights
    kept = frequencies > 0.01  # THz
    quanta = 4.135667696 * np.where(kept, frequencies, 1.0)  # meV
    heat = 1000 * 8.617333262e-5 * 300.0  # meV
    each = np.where(kept, quanta / 2 + heat * np.log1p(-np.exp(-quanta / heat)), 0.0).sum(1)
    assert found.free_energy == pytest.approx(0.0964853321 * (weights @ each) / weights.sum(), rel=1e-4)  # kJ/mol


def _of_mass(*masses: float | None) -> Callable[[System], ase.Atoms]:
    """Crystals as their file has them, with a mass (amu) for the atoms of each, None: that of the element."""

    def original(system: System) -> ase.Atoms:
        atoms = plain(system)
        if (mass := masses[system.index]) is not None:
            atoms.set_masses([mass] * len(atoms))
        return atoms

    return original


def test_masses_of_the_file_are_those_of_the_phonons(tmp_path: Path) -> None:
    pytest.importorskip("phonopy")
    said: list[str] = []
    copper = _system(bulk("Cu", a=3.0))
    source = [copper, replace(copper, index=1)]
    natural = float(ase.Atoms("Cu").get_masses()[0])
    light, usual = measure_into(
        tmp_path / "out", MORSE, source, SETTINGS, moduli=False, vibrations=True,
        original=_of_mass(natural / 4, None), say=said.append,
    ) or [{}, {}]  # fmt: skip
    assert light["phonon_largest_THz"] == pytest.approx(2 * usual["phonon_largest_THz"], rel=1e-4)
    assert said == ["note: 1 structure with own masses, as of isotopes, which are used"]
    with pytest.raises(
        ValueError, match=r"structure 1, atom 0 \(Cu\) has a mass of 0 amu; wanted is a positive number"
    ):
        measure_into(
            tmp_path / "wrong", MORSE, source, SETTINGS, moduli=False, vibrations=True, original=_of_mass(None, 0.0)
        )
    assert not (tmp_path / "wrong").exists()


def test_several_masses_of_one_element_are_refused(crystal: System) -> None:
    """Its primitive cell for phonopy would have one atom, with the mass of the first."""
    pytest.importorskip("phonopy")
    with pytest.raises(
        ValueError, match=r"its atoms of Cu have masses from 63 to 65 amu, .* one mass for each element"
    ):
        phonons(MORSE, crystal, SETTINGS, masses=np.array([63.0, 65.0, 63.0, 65.0]))


def test_a_molecule_is_refused() -> None:
    molecule = _system(bulk("Cu"))
    molecule.pbc[:] = False
    with pytest.raises(ValueError, match="not periodic, so it has no volume"):
        relaxed_crystal(MORSE, molecule, SETTINGS)


def test_a_slab_in_a_periodic_box_is_warned_of(tmp_path: Path) -> None:
    said: list[str] = []
    slab = _system(fcc111("Cu", (1, 1, 3), a=3.0, vacuum=6.0, periodic=True))
    once = SETTINGS.model_copy(update={"steps": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # not a second time
        measure_into(tmp_path, MORSE, [_system(bulk("Cu", a=3.0)), slab], once, say=said.append)
    (warning,) = [text for text in said if "vacuum" in text]
    assert warning.startswith("crystal 1: warning: it has vacuum")


def test_fixed_atoms_are_released(tmp_path: Path) -> None:
    """Held beside its site, an atom would leave a crystal that is no minimum and counts as relaxed."""
    copper = _system(bulk("Cu", cubic=True, a=2.7))
    beside = np.array([[0.1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]])
    held = replace(copper, positions=copper.positions + beside, fixed=np.array([True, True, False, False]))
    said: list[str] = []
    found, expected = measure_into(tmp_path, MORSE, [held, copper], SETTINGS, say=said.append) or [{}, {}]
    assert found["energy_eV_per_atom"] == pytest.approx(expected["energy_eV_per_atom"], abs=1e-6)
    assert found["elastic_constants_GPa"][3][3] == pytest.approx(expected["elastic_constants_GPa"][3][3], rel=1e-3)
    assert said == ["crystal 0: note: 2 fixed atoms may move: properties are those of a crystal with free atoms"]


def test_a_cell_without_volume_is_refused_alone() -> None:
    flat = _system(bulk("Cu", cubic=True))
    flat.cell[2] = flat.cell[1]
    with pytest.raises(ValueError, match="^as given, periodic along .* has no volume there"):
        relaxed_crystal(MORSE, flat, SETTINGS)


def test_a_relaxation_that_does_not_converge_is_an_error() -> None:
    crystal = _system(bulk("Cu", cubic=True, a=3.3))
    with pytest.raises(ValueError, match="did not converge to 1e-05 eV/Å"):
        relaxed_crystal(MORSE, crystal, SETTINGS.model_copy(update={"steps": 1}))


@pytest.mark.parametrize(("a", "message"), [(4.0, "took the volume from .* does not know"), (4.8, "times the first")])
def test_a_crystal_that_falls_apart_is_an_error(a: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        relaxed_crystal(MORSE, _system(bulk("Cu", cubic=True, a=a)), SETTINGS)


def test_a_cell_without_neighbours_is_an_error_and_the_others_go_on(tmp_path: Path) -> None:
    """Such as one whose lengths are in another unit."""
    copper, empty = _system(bulk("Cu", cubic=True, a=3.1)), _system(bulk("Cu", cubic=True, a=40))
    first, second, third = measure_into(tmp_path, MORSE, [copper, empty, copper], SETTINGS)
    assert "does not change with the volume: no atom has a neighbour" in second["error"]
    assert "error" not in first and third["bulk_modulus_GPa"] == first["bulk_modulus_GPa"]
    assert first["elastic_bulk_modulus_GPa"] == pytest.approx(first["bulk_modulus_GPa"], rel=0.02)
    with pytest.raises(ValueError, match="all elastic constants are zero"):
        Elasticity.of(np.zeros((6, 6)))


def test_a_cell_that_shrinks_is_not_evaluated_once_more() -> None:
    """It may have more neighbours than fit into the memory."""

    class Full(Morse):
        def __call__(self, batch: Batch) -> Evaluation:
            if bool((batch.cell.det() < 29.8 / MOST_VOLUME).any()):  # 3.1^3 Å^3
                raise MemoryError
            return super().__call__(batch)

    settings = RelaxationSettings(cell=CellRelaxation(hydrostatic=True, pressure=50_000 * GPA), steps=300)
    (found,) = relax(Full(stress=True), [_system(bulk("Cu", cubic=True, a=3.1))], settings)
    assert found.status == "exploded"


def test_bulk_moduli_are_compared_under_uniform_strain() -> None:
    """Hill's average of an anisotropic crystal is another: here graphite's, 161 and not 287 GPa."""
    graphite = np.zeros((6, 6))
    graphite[:3, :3] = [[1109, 139, 0], [139, 1109, 0], [0, 0, 38.7]]
    smooth = {"bulk_modulus_GPa": 281.6, "bulk_modulus_derivative": 4.0, "elastic_constants_GPa": graphite.tolist()}
    assert _rough(smooth) == ""
    assert "281.6 GPa by the equation of state and 140.8 GPa" in _rough(
        smooth | {"elastic_constants_GPa": (graphite / 2).tolist()}
    )
    assert "is -3.0 (2 to 8 in most crystals)" in _rough(smooth | {"bulk_modulus_derivative": -3.0})


def test_a_relaxation_under_an_absurd_pressure_ends() -> None:
    """50,000 GPa, which were kbar: it would shrink for ever, with ever more neighbours."""
    settings = RelaxationSettings(cell=CellRelaxation(hydrostatic=True, pressure=50_000 * GPA), steps=300)
    (found,) = relax(MORSE, [_system(bulk("Cu", cubic=True, a=3.1))], settings)
    assert found.status == "exploded" and "times the first: a pressure in another unit" in found.message
