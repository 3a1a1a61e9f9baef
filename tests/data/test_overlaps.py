"""Atoms on top of each other are found and named, also through a periodic boundary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from denskit.batch import System
from denskit.data.base import Subset
from denskit.data.inspection import findings_of
from denskit.data.overlaps import geometry_warnings, overlaps
from denskit.data.records import joined, numbered_in
from denskit.data.structure_arrays import StructureArrays


def test_overlapping_atoms_are_named(systems: dict[str, System]) -> None:
    sound = [systems["ethanol"], systems["copper"], systems["slab"]]
    assert geometry_warnings(sound, "a.extxyz") == []
    copper = systems["copper"]
    moved = copper.positions.copy()
    moved[2] = moved[0] + copper.cell[1] + [0.0, 0.0, 0.3]
    double = replace(copper, positions=moved, index=7)
    ((found, one, other),) = overlaps([*sound, double])
    assert (found.index, {one, other}) == (7, {0, 2})
    (warning,) = geometry_warnings([*sound, double], "a.extxyz")
    assert "a.extxyz: in frame 7 (counted from 0), atoms" in warning and "(Cu)" in warning
    (warning,) = geometry_warnings([double, *sound, double], "a.extxyz")
    assert "in frames 7, 7 (counted from 0), atoms are nearer than any bond" in warning


def test_parts_far_apart_are_named(systems: dict[str, System]) -> None:
    ethanol, slab = systems["ethanol"], systems["slab"]
    apart = ethanol.positions.copy()
    apart[:3, 0] += 31.6 - (apart[:3, 0].min() - apart[3:, 0].max())
    torn = replace(ethanol, positions=apart, index=4)
    (warning,) = geometry_warnings([ethanol, slab, torn], "a.extxyz")
    assert "in frame 4 (counted from 0), parts of the structure are up to 31.6 Å apart" in warning
    boxed = replace(torn, cell=np.eye(3) * 90, pbc=np.ones(3, dtype=bool))
    lost = replace(torn, positions=np.full_like(apart, np.nan))
    assert geometry_warnings([boxed, lost], "a.extxyz") == []


def test_frames_of_several_files_are_named_by_their_file(systems: dict[str, System]) -> None:
    copper = systems["copper"]
    moved = copper.positions.copy()
    moved[2] = moved[0] + [0.0, 0.0, 0.3]
    double = replace(copper, positions=moved)
    one = StructureArrays.from_systems([copper, copper], name="one.extxyz")
    other = StructureArrays.from_systems([copper, double], name="other.extxyz")
    both = joined([one, other])
    (warning,) = geometry_warnings(both, "both")
    assert "in frame 1 of other.extxyz (counted from 0)" in warning
    assert numbered_in(Subset(both, np.arange(4), "part"), [0, 2, 3]) == (
        "frame 0 of one.extxyz, frames 0, 1 of other.extxyz (counted from 0)"
    )
    found = [str(finding) for finding in findings_of(both)]
    assert any("(frame 1 of other.extxyz)" in line and "on top of each other" in line for line in found), found


def test_what_no_search_takes_is_passed_over(systems: dict[str, System]) -> None:
    copper = systems["copper"]
    flat = replace(copper, cell=np.diag([3.6, 3.6, 0.0]))
    lost = replace(copper, positions=np.full_like(copper.positions, np.nan))
    assert overlaps([flat, lost]) == []
