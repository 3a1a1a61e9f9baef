"""The data of a study: its files, by content; its splits; whether variants were judged on the same structures.

``data.split.train=50`` alone gives all other structures to the test split, so that each number has another test set.
Here the largest number is divided as usual; smaller training sets are nested in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from denskit.data import LoadedData, load_data
from denskit.data.base import Lazy, known_elements
from denskit.data.config import DataConfig
from denskit.data.inspection import findings_of
from denskit.data.loading import repeated, warnings_of_test
from denskit.data.readers.formats import is_there
from denskit.data.splits import Splits, content_in_words, rare_first
from denskit.evaluation.study.config import FRAMES, StudyConfig, file_name
from denskit.evaluation.study.results import Found
from denskit.evaluation.study.runs import StudyRun, runs_of
from denskit.reading.remote import address_of
from denskit.settings import dotted
from denskit.training.inputs import digest_of, files_of, structures_of
from denskit.training.load_config import load_config
from denskit.training.run_folder import RunFolder
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


def require_given(study: StudyConfig) -> None:
    """Raise ValueError where the study has no data of its own, and none were given."""
    of_data = [key for key in study.needs if key.startswith("data.")]
    given = {key for key, _ in dotted(study.settings)}
    if of_data and not given.intersection(["data.path", *of_data]):
        wanted = " ".join(f"{key}={example}" for key, example in study.needs.items())
        raise ValueError(f"{study.title}: no data given; add your files to the command, such as {wanted}")


def require_settings(study: StudyConfig) -> None:
    """Raise ValueError where the settings of a run make no sense, FileNotFoundError where a file that it learns from or
    is judged on is not there.  No structures are read."""
    for run in runs_of(study):
        if run.seed != study.seeds[0]:  # the others differ in nothing else
            continue
        config = run.config()
        for key, file in [*structures_of(config), ("data.test", config.data.test)]:
            if file is not None and address_of(file) is None and not is_there(Path(file).expanduser()):
                raise FileNotFoundError(f"{study.title}: {run.label}: {key}: no file {file}")


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


def split_settings(study: StudyConfig, run: StudyRun, folder: Path) -> dict[str, Any]:
    """Settings that give a run its structures; writes the split file if it is missing.

    Raises ValueError for fewer structures than asked, and where there is no file to divide.
    """
    if FRAMES not in study.axes:
        return {}
    numbers = study.axes[FRAMES]
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        raise ValueError(f"axes: {FRAMES}: {list(numbers)}; numbers of frames are wanted")
    reference = next(other for other in runs_of(study) if (other.point, other.seed) == (run.point, run.seed))
    shared = run.config().data == reference.config().data  # else it divides other data, or otherwise
    path = folder / f"{run.name.removeprefix(file_name(run.variant)) if shared else run.name}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _nested(run, largest=max(numbers)).save(path)
    return {"data.split.file": str(path.resolve())}


def _nested(run: StudyRun, *, largest: int) -> Splits:
    config = run.config(more={FRAMES: largest})
    data = load_data(config.data, config.seed, config.required_labels)
    splits = data.splits
    if splits is None:
        raise ValueError(f"axes: {FRAMES} divides one file (data.path, or data.train without data.valid); found none")
    if len(splits.train) < run.point[FRAMES]:
        raise ValueError(
            f"axes: {FRAMES}: {run.label} gets {len(splits.train)} training structures, since {splits.how}; "
            "give smaller numbers or data.split.mode=random"
        )
    order = np.random.default_rng(run.seed).permutation(len(splits.train))
    if elements := known_elements(data.train):  # the smallest sets have all elements, too, where they can
        order = rare_first(order, [elements[place] for place in order])
    chosen = np.sort(splits.train[order[: run.point[FRAMES]]])
    return replace(splits, train=chosen, how=f"{len(chosen)} of {len(splits.train)} training frames, {splits.how}")


_JUDGED = {"test": "tested on different structures (test)", "valid": "validated on different structures"}


def of_other_structures(found: Sequence[Found], part: Literal["test", "valid"]) -> str:
    """A warning where variants were judged on different structures, with those that were judged on the same together;
    empty where not, or not known.

    The seeds of a variant may be: with those of another they are compared seed by seed, if they have one in common.
    """
    judged: dict[str, dict[int, str]] = {}
    contents: dict[str, str] = {}  # of files, which may be large, and the same for many runs
    for run in found:
        given = getattr(load_config(run.folder).data, part)
        if given is not None:
            if given not in contents:
                contents[given] = content_in_words(Path(given)) if is_there(Path(given)) else given
            judged.setdefault(run.variant, {})[run.seed] = contents[given]
        elif (splits := RunFolder(run.folder).divided()) is not None:
            structures = [splits.sha256, getattr(splits, part).tolist()]
            judged.setdefault(run.variant, {})[run.seed] = json.dumps(structures)
    alike: list[list[str]] = []
    for variant, own in judged.items():
        group = next((group for group in alike if all(_of_the_same(own, judged[other]) for other in group)), None)
        if group is None:
            alike.append(group := [])
        group.append(variant)
    if len(alike) < 2:
        return ""
    first, *others = (", ".join(map(repr, group)) for group in alike)
    groups = "; ".join([f"{first} on some", *(f"{group} on others" for group in others)])
    return f"{_JUDGED[part]}, {groups}: differences between these say little"


def _of_the_same(one: Mapping[int, str], other: Mapping[int, str]) -> bool:
    """Whether two variants were judged on the same structures, which are given by seed."""
    if common := one.keys() & other.keys():
        return all(one[seed] == other[seed] for seed in common)
    return bool(set(one.values()) & set(other.values()))
