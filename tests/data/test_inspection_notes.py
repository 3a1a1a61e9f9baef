"""A note tells where energies cannot be compared with forces."""

from __future__ import annotations

import re

import numpy as np
import pytest

from denskit.data.base import Subset
from denskit.data.datasets.embedded import FOLDER
from denskit.data.inspection import findings_of
from denskit.data.loading import read_file

JUDGED = "signs and units were judged by sizes, and by bonds to H, alone"


@pytest.mark.parametrize(
    ("places", "found"),
    [
        (range(200), None),
        (range(0, 700, 28), "pairs of near frames, correlation 0.*: too few, or too far apart, to compare"),
        (range(0, 2000, 500), "no frames are near enough"),
    ],
    ids=["compared", "unclear", "none"],
)
def test_comparisons_that_tell_nothing_are_noted(places: range, found: str | None) -> None:
    source, _ = read_file(FOLDER / "ethanol.npz")
    findings = findings_of(Subset(source, np.array(places), "train"))
    notes = [str(finding) for finding in findings if finding.means == JUDGED]
    assert not [finding for finding in findings if finding.severity == "problem"]
    assert [bool(re.search(f"note: .*{found}", note)) for note in notes] == [True] * (found is not None)
