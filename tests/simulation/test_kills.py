"""Relaxations, simulations and studies killed by SIGKILL between any two of their operations on files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from denskit.files import locked
from killing import leftovers, posix, run, spread
from simulation.jobs import relax_clusters, simulate, study_water

pytestmark = pytest.mark.one_thread
JOBS = {"relax": relax_clusters, "md": simulate, "study": study_water}
TIMES = {"summary.json"}  # of relaxations: how long the last run took
POINTS = 3


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.name not in TIMES
        and path.is_file()
    }  # fmt: skip


@posix
@pytest.mark.parametrize("name", JOBS)
def test_a_killed_job_ends_as_one_that_was_not(tmp_path: Path, name: str) -> None:
    """Killed at points spread over it, every second time once more while it goes on: the files are the same."""
    job, whole = JOBS[name], tmp_path / "whole"
    operations = run(whole, job, whole)
    for number, point in enumerate(spread(operations, POINTS)):
        folder = tmp_path / f"killed_{point}"
        run(folder, job, folder, kill_at=point)
        if number % 2:
            run(folder, job, folder, resume=True, kill_at=3)
        run(folder, job, folder, resume=True)
        found, expected = _files(folder), _files(whole)
        assert found.keys() == expected.keys(), point
        assert [path for path in expected if found[path] != expected[path]] == [], point
        assert not leftovers(folder)


@posix
@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_not_joined_by_another(tmp_path: Path, name: str) -> None:
    job: Callable[..., Any] = JOBS[name]
    job(tmp_path / "run")
    before = _files(tmp_path / "run")
    with locked(tmp_path / "run"), pytest.raises(ValueError, match="run is in use by process"):
        job(tmp_path / "run", resume=True)
    assert _files(tmp_path / "run") == before


def test_relaxing_begins_where_there_is_nothing_to_resume(tmp_path: Path) -> None:
    relax_clusters(tmp_path / "new", resume=True)
    assert (tmp_path / "new" / "relaxed.extxyz").is_file()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="other is not empty and holds no relaxation"):
        relax_clusters(tmp_path / "other", resume=True)
