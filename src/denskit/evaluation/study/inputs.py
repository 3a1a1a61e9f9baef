"""The files that a study reads, by content: runs on two contents of one file must not stand in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from denskit.data import LoadedData, load_data
from denskit.data.base import Lazy
from denskit.data.config import DataConfig
from denskit.data.inspection import findings_of
from denskit.data.loading import repeated, warnings_of_test
from denskit.data.readers.formats import is_there
from denskit.evaluation.study.config import FRAMES, StudyConfig, StudyRun, runs_of
from denskit.reading.remote import address_of
from denskit.training.inputs import digest_of, files_of
from denskit.training.settings import RunConfig


def training_files(config: RunConfig) -> dict[str, str]:
    """SHA-256 of the files on this machine, by absolute path, that a training reads."""
    found = {str(Path(name).expanduser().resolve()): digest_of(name) for _, name in files_of(config)}
    return {name: content for name, content in found.items() if content is not None}


def require_files(study: StudyConfig) -> None:
    """Raise FileNotFoundError where a file to judge runs on is not there: they are read after the training only."""
    relaxed = None if study.relaxation is None else study.relaxation.path
    for name, file in [*study.tests.items(), ("relaxation.path", relaxed)]:
        if file is not None and address_of(file) is None and not is_there(Path(file).expanduser()):
            raise FileNotFoundError(f"{study.title}: {name}: no file {file} to judge the trained models on")


def require_same_inputs(begun: Iterable[Mapping[str, str]]) -> None:
    """Raise ValueError where a file is not what it was.  ``begun``: :func:`training_files` of runs when they began."""
    recorded = (item for files in begun for item in files.items())
    changed = Counter(name for name, before in recorded if digest_of(name) not in (before, None))
    if changed:
        told = "; ".join(f"{name}, which {count} runs have trained on" for name, count in changed.items())
        raise ValueError(
            f"these files have changed: {told}. Runs on different data are no comparison: bring the files back, or "
            "give another folder with --output (nothing changed)"
        )


def problems_of(study: StudyConfig) -> list[str]:
    """What ``denskit info`` calls problems in the training structures of the study, and copies of them by which runs
    are judged (of the first seed)."""
    found: list[str] = []
    read: list[DataConfig] = []
    numbers = study.axes.get(FRAMES, ())
    largest = {FRAMES: max(numbers)} if numbers else {}
    for run in runs_of(study):
        config = run.config()
        if (data := config.data.model_copy(update={"split": type(config.data.split)()})) not in read:
            read.append(data)
            loaded = _divided(run, largest)
            train = loaded.train
            findings = findings_of(train, config.data.missing, config.required_labels)
            found += [f"{train.name}: {finding}" for finding in findings if finding.severity == "problem"]
            inside = [part for part in loaded.judged.values() if not isinstance(part, Lazy)]
            found += [f"warning: {text}" for text in repeated(train, inside)]
            found += warnings_of_test(config.data, loaded)
    return list(dict.fromkeys(found))


def _divided(run: StudyRun, largest: Mapping[str, Any]) -> LoadedData:
    """The structures of a run, divided as for the ``largest`` number to train on, where there are so many."""
    config = run.config(more=largest)
    try:
        return load_data(config.data, config.seed, config.required_labels)
    except ValueError:
        if not largest:
            raise
        return _divided(run, {})  # there are fewer, which is said of the run that wants so many
