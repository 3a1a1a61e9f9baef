"""Frames in memory are read as those of a file are, and written with all their digits."""

from __future__ import annotations

from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms, FixCartesian

from denskit.data.frames import exact_extxyz, structures_of
from denskit.data.loading import read_file


def labelled(atoms: ase.Atoms, seed: int, **more: object) -> ase.Atoms:
    rng = np.random.default_rng(seed)
    atoms.rattle(0.1, rng=rng)
    atoms.calc = SinglePointCalculator(
        atoms, energy=rng.normal() * 1e4, forces=rng.normal(size=(len(atoms), 3)), **more
    )
    return atoms


def frames() -> list[ase.Atoms]:
    """A molecule, a crystal with stress, a slab with tags and fixed atoms; fields of all kinds."""
    rng = np.random.default_rng(7)
    ethanol, copper = labelled(molecule("CH3CH2OH"), 1), labelled(bulk("Cu", cubic=True), 2, stress=rng.normal(size=6))
    ethanol.info |= {"config_type": "two words", "weight": 0.1, "name": "a\nb", "flag": True}
    ethanol.set_initial_charges(rng.normal(size=9))
    ethanol.new_array("kind", np.array(["first", *["other"] * 8]))
    slab = fcc111("Cu", size=(2, 2, 2), vacuum=6.0)
    add_adsorbate(slab, "O", 1.5)
    slab.set_constraint([FixAtoms([0, 1]), FixCartesian(2, (True, False, True))])
    return [ethanol, copper, labelled(slab, 3)]


def test_written_frames_are_read_back_with_the_same_bits(tmp_path: Path) -> None:
    given = frames()
    path = tmp_path / "frames.extxyz"
    path.write_text("".join(exact_extxyz(given)), encoding="utf-8")
    (held, _), (read, _) = structures_of(given), read_file(path)
    for name in ("starts", "positions", "atomic_numbers", "cell", "pbc", "fixed", "tags", "energy", "forces", "stress"):
        np.testing.assert_array_equal(getattr(held, name), getattr(read, name), err_msg=name)
    again = ase.io.read(path, ":")
    assert {**given[0].info, "name": "a b"} == again[0].info
    for one, other in zip(given, again, strict=True):
        assert sorted(one.arrays) == sorted(other.arrays)
        for name, rows in one.arrays.items():
            np.testing.assert_array_equal(rows, other.arrays[name], err_msg=name)


def test_constraints_of_atoms_that_are_not_there_are_told() -> None:
    """ASE gives an OUTCAR those of a CONTCAR beside it, which may be of another structure."""
    water = labelled(molecule("H2O"), 0)
    water.set_constraint(FixAtoms([0]))
    water.constraints[0].index = np.array([0, 7])
    read, messages = structures_of([water])
    assert not read.fixed.any()
    assert "constraints FixAtoms of atoms that it does not have, as of a CONTCAR" in " ".join(messages)


def test_frames_of_relaxations_are_grouped_by_their_sid() -> None:
    def named(*fields: dict[str, object]) -> list[ase.Atoms]:
        given = [labelled(molecule("H2O"), seed) for seed in range(len(fields))]
        for atoms, field in zip(given, fields, strict=True):
            atoms.info |= field
        return given

    structures, _ = structures_of(named({"sid": 7, "fid": 0}, {"sid": 7, "fid": 3}, {"sid": "b", "fid": 1}))
    assert structures.sids == structures.group_names() == ("7", "7", "b")
    assert [system.fid for system in structures] == [0, 3, 1]
    for fields in (({"sid": 7}, {"sid": 8}), ({"sid": 7}, {"sid": 7}, {})):
        structures, _ = structures_of(named(*fields))
        assert structures.group_names() == (), "no structure of another frame's system, or one of none"
    structures, _ = structures_of(named({"sid": 1, "fid": "last"}, {"sid": 1, "fid": 2}))
    assert [system.fid for system in structures] == [None, None]


def test_reference_labels_win_as_in_a_file() -> None:
    atoms = molecule("H2O")
    atoms.info["REF_energy"], atoms.arrays["REF_forces"] = -5.5, np.ones((3, 3))
    structures, messages = structures_of([labelled(atoms, 1)])
    assert structures[0].energy == -5.5
    assert any("REF_energy (not energy)" in message for message in messages)


def test_results_of_another_geometry_are_refused() -> None:
    shared, given = EMT(), []
    for index in range(2):
        atoms = bulk("Cu", cubic=True)
        atoms.rattle(0.1, seed=index)
        atoms.calc = shared
        atoms.get_potential_energy()
        given.append(atoms)
    with pytest.raises(ValueError, match="frame 0: the results of its calculator belong to another geometry"):
        structures_of(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [([], "no atoms were given"), ([molecule("H2O"), "H2O"], "frame 1: found str; wanted ase.Atoms")],
)
def test_what_is_no_list_of_atoms_is_named(given: list[object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        structures_of(given)
