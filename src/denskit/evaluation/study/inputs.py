"""The files that a study reads, by content: runs on two contents of one file must not stand in one table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from denskit.data.splits import identity_of
from denskit.evaluation.study.config import StudyConfig
from denskit.reading.remote import address_of
from denskit.training.run_folder import model_file
from denskit.training.settings import RunConfig


def content_of(name: str | Path) -> str | None:
    """SHA-256 of a file or of a folder of shards on this machine; None where there is none."""
    path = Path(name).expanduser().resolve()
    if address_of(name) is not None or not path.exists():
        return None
    about = path.stat()
    return _content(path, about.st_mtime_ns, about.st_size)


def training_files(config: RunConfig) -> dict[str, str]:
    """SHA-256 of the files on this machine, by absolute path, that a training reads."""
    found = {str(Path(name).expanduser().resolve()): content_of(name) for name in _names(config)}
    return {name: content for name, content in found.items() if content is not None}


def require_files(study: StudyConfig) -> None:
    """Raise FileNotFoundError where a file to judge runs on is not there: they are read after the training only."""
    relaxed = None if study.relaxation is None else study.relaxation.path
    for name, file in [*study.tests.items(), ("relaxation.path", relaxed)]:
        if file is not None and address_of(file) is None and not Path(file).expanduser().exists():
            raise FileNotFoundError(f"{study.title}: {name}: no file {file} to judge the trained models on")


def require_same_inputs(begun: Iterable[Mapping[str, str]]) -> None:
    """Raise ValueError where a file is not what it was.  ``begun``: :func:`training_files` of runs when they began."""
    changed: dict[str, int] = {}
    for files in begun:
        for name, before in files.items():
            if content_of(name) not in (before, None):
                changed[name] = changed.get(name, 0) + 1
    if changed:
        told = "; ".join(f"{name}, which {count} runs have trained on" for name, count in changed.items())
        raise ValueError(
            f"these files have changed: {told}. Runs on different data are no comparison: bring the files back, or "
            "give another folder with --output (nothing changed)"
        )


@lru_cache(maxsize=1000)
def _content(path: Path, modified: int, size: int) -> str:
    return identity_of(path)[1]


def _names(config: RunConfig) -> Iterator[str]:
    data, training = config.data, config.training
    given = [
        *(part.path for part in data.parts),
        data.valid,
        data.test,
        data.oc20_ref,
        data.split.file,
        training.replay,
    ]
    given += [data.references] if isinstance(data.references, str) else []  # a file, or a word that names no file
    if training.init_from is not None and Path(training.init_from).exists():
        given.append(str(model_file(training.init_from)))
    yield from (str(name) for name in given if name is not None)
