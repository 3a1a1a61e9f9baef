"""Atoms on top of each other are found and named, also through a periodic boundary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from denskit.batch import System
from denskit.data.overlaps import overlap_warnings, overlaps


def test_overlapping_atoms_are_named(systems: dict[str, System]) -> None:
    sound = [systems["ethanol"], systems["copper"], systems["slab"]]
    assert overlap_warnings(sound, "a.extxyz") == []
    copper = systems["copper"]
    moved = copper.positions.copy()
    moved[2] = moved[0] + copper.cell[1] + [0.0, 0.0, 0.3]
    double = replace(copper, positions=moved, index=7)
    ((found, one, other),) = overlaps([*sound, double])
    assert (found.index, {one, other}) == (7, {0, 2})
    (warning,) = overlap_warnings([*sound, double], "a.extxyz")
    assert "a.extxyz: in frame 7" in warning and "(Cu)" in warning


def test_what_no_search_takes_is_passed_over(systems: dict[str, System]) -> None:
    copper = systems["copper"]
    flat = replace(copper, cell=np.diag([3.6, 3.6, 0.0]))
    lost = replace(copper, positions=np.full_like(copper.positions, np.nan))
    assert overlaps([flat, lost]) == []
