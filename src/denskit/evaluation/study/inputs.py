"""The files that a study reads.  Runs on two contents of one file must not stand in one table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from denskit.evaluation.study.config import StudyConfig
from denskit.files import identity
from denskit.reading.remote import address_of
from denskit.training.settings import RunConfig


def contents(study: StudyConfig, config: RunConfig) -> dict[str, str]:
    """SHA-256, by name, of the files on this machine that a run with this configuration is trained and judged on."""
    return {name: identity(path)[1] for name in sorted(set(_names(study, config))) if (path := _path(name)).exists()}


def require_files(study: StudyConfig) -> None:
    """Raise FileNotFoundError where a file to judge runs on is not there: they are read after the training only."""
    relaxed = None if study.relaxation is None else study.relaxation.path
    for name, file in [*study.tests.items(), ("relaxation.path", relaxed)]:
        if file is not None and address_of(file) is None and not _path(file).exists():
            raise FileNotFoundError(f"{study.title}: {name}: no file {file} to judge the trained models on")


def require_same_inputs(results: Iterable[Mapping[str, Any]]) -> None:
    """Raise ValueError where a file is not what it was for a finished run.

    results: what the finished runs wrote; those of earlier versions do not say what they read.
    """
    now: dict[str, str] = {}
    changed: dict[str, int] = {}
    for result in results:
        for name, before in result.get("files", {}).items():
            if name not in now:
                now[name] = identity(_path(name))[1] if _path(name).exists() else before
            changed[name] = changed.get(name, 0) + (now[name] != before)
    told = [f"{name}, which {count} finished runs have read" for name, count in changed.items() if count]
    if told:
        raise ValueError(
            f"these files have changed: {'; '.join(told)}. Runs on different data are no comparison: bring the files "
            "back, or give another folder with --output (nothing changed)"
        )


def _path(name: str) -> Path:
    return Path(name).expanduser()


def _names(study: StudyConfig, config: RunConfig) -> Iterator[str]:
    data = config.data
    given = [*(part.path for part in data.parts), data.valid, data.test, *study.tests.values()]
    if study.relaxation is not None:
        given.append(study.relaxation.path)
    yield from (name for name in given if name is not None)
