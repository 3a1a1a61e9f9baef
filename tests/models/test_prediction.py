"""The one batch loop over a source."""

from __future__ import annotations

import pytest

from denskit.models import prediction


def test_large_structures_come_in_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "MOST_ATOMS", 10)
    systems = [list(range(size)) for size in (3, 3, 3, 3, 12, 2, 8, 1)]
    groups = [[len(system) for system in group] for group in prediction._groups(systems, 3)]  # type: ignore[arg-type]
    assert groups == [[3, 3, 3], [3], [12], [2, 8], [1]]
