"""Errors of committees in a study: the mean of the models of one variant that differ in the seed alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from denskit.data import load_data
from denskit.evaluation.evaluate import evaluate
from denskit.evaluation.study.config import FRAMES, TEST, StudyConfig
from denskit.evaluation.study.judges import Errors, asked_of
from denskit.evaluation.study.running import StudyFolder
from denskit.evaluation.study.runs import StudyRun, runs_of
from denskit.files import write_json
from denskit.reading.documents import read_json
from denskit.training.inputs import digest_of
from denskit.training.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Committee:
    """The models of one variant at one point of the axes, and the errors of their mean."""

    runs: tuple[StudyRun, ...]
    errors: dict[str, Errors]  # test -> metric -> value


def require_one_split(study: StudyConfig) -> None:
    """Raise ValueError where seeds divide the data differently: the mean would have seen more than each model."""
    if not study.committees:
        return
    if len(study.seeds) < 2:
        raise ValueError("committees: a mean of models needs at least two seeds")
    for first, second, *_ in _groups(runs_of(study)):
        if FRAMES in study.axes or _split_of(first) != _split_of(second):
            raise ValueError(
                f"committees: {first.label}: each seed divides the data anew, so that the mean of its models would "
                "have seen more structures than one model. Add data.split.seed: 0 to the settings, and no axis "
                f"{FRAMES}, or give data.train and data.valid"
            )


def committees_of(study: StudyConfig, folder: StudyFolder, say: Callable[[str], None]) -> list[Committee]:
    """Judge the mean of all finished models of each variant and point; what was judged before is not judged again."""
    if not study.committees:
        return []
    finished = (run for run in runs_of(study) if folder.finished(study, run))
    return [_judged(study, folder, runs, say) for runs in _groups(finished) if len(runs) > 1]


def _groups(runs: Iterable[StudyRun]) -> list[list[StudyRun]]:
    """Runs that differ in the seed alone, together."""
    groups: dict[str, list[StudyRun]] = {}
    for run in runs:
        groups.setdefault(_name(run), []).append(run)
    return list(groups.values())


def _judged(study: StudyConfig, folder: StudyFolder, runs: list[StudyRun], say: Callable[[str], None]) -> Committee:
    path = folder.path / "committees" / f"{_name(runs[0])}.json"
    asked = {name: what for name, what in asked_of(study).items() if name in study.tests}
    members = {run.name: digest_of(str(RunFolder(folder.run(run)).model)) for run in runs}
    kept: dict[str, Any] = read_json(path) if path.is_file() else {}
    errors: dict[str, Errors] = kept["errors"] if (kept.get("members"), kept.get("tests")) == (members, asked) else {}
    wanted = [TEST] if all(TEST in folder.judged(run)["errors"] for run in runs) else []
    for name in [*wanted, *study.tests]:
        if name not in errors:
            say(f"judging the mean of {len(runs)} models: {runs[0].label}: {name}")
            with warnings.catch_warnings():  # whether a member has seen the test, which one split excludes
                warnings.filterwarnings("ignore", "whether .* has trained on")
                errors[name] = evaluate([folder.run(run) for run in runs], study.tests.get(name))
            path.parent.mkdir(exist_ok=True)
            write_json(path, {"members": members, "tests": asked, "errors": errors})
    return Committee(runs=tuple(runs), errors=errors)


def _split_of(run: StudyRun) -> object:
    """What divides the data of a run; equal where two runs train, validate and test on the same structures."""
    config = run.config()
    if config.data.split.seed is not None or config.data.split.file:
        return config.data.split
    splits = load_data(config.data, config.seed, config.required_labels).splits
    return splits and [getattr(splits, part).tolist() for part in ("train", "valid", "test")]


def _name(run: StudyRun) -> str:
    """Name of a run without its seed."""
    return run.name.removesuffix(f"_seed-{run.seed}")
