"""The weight of the noise in a study's trainings with DeNS, where its settings do not give it.

A training takes it by its structures, its length and the other settings of the task.  So trainings that are compared
may differ in it, too, which no line of the study says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from denskit.data import load_data
from denskit.data.base import Source
from denskit.evaluation.study.config import StudyConfig
from denskit.evaluation.study.running import StudyFolder
from denskit.evaluation.study.runs import StudyRun, runs_of
from denskit.tasks import DeNSConfig
from denskit.training.fitted_denoising import fitted_weight
from denskit.training.load_config import load_config
from denskit.training.run_folder import RunFolder
from denskit.training.settings import LENGTHS, RunConfig


@dataclass(frozen=True)
class Weighed:
    """A training and the weight of the noise that it takes, or has taken."""

    run: StudyRun
    config: RunConfig
    weight: float
    said: Sequence[str] = ()  # of a weight for some molecules

    def trains_as(self, other: Weighed) -> bool:
        """Whether both have the same structures, and settings of the length."""
        mine, others = ([one.config.data, *(getattr(one.config.training, name) for name in LENGTHS)]
                        for one in (self, other))  # fmt: skip
        return mine == others


def left_open(study: StudyConfig, seeds: Sequence[int]) -> Iterator[tuple[StudyRun, RunConfig]]:
    """Runs with DeNS of these seeds whose settings give no weight of the noise, and their configurations."""
    for run in runs_of(study.model_copy(update={"seeds": seeds})):
        config = run.config()
        task = config.task
        if isinstance(task, DeNSConfig) and task.probability > 0 and "coefficient" not in task.model_fields_set:
            yield run, config


def weights_taken(study: StudyConfig, folder: StudyFolder) -> list[Weighed]:
    """The weights of runs that have begun, where the study leaves them open."""
    taken = ((run, config, _taken(folder, run)) for run, config in left_open(study, study.seeds))
    return [Weighed(run, config, weight) for run, config, weight in taken if weight is not None]


def weights_to_take(study: StudyConfig, folder: StudyFolder) -> list[Weighed]:
    """The weights of the runs of the first seed, where the study leaves them open.  Those that have begun keep theirs.

    Raises as :func:`denskit.data.load_data`, and for data that do not fit the settings.
    """
    found: list[Weighed] = []
    loaded: dict[str, Source] = {}
    for run, config in left_open(study, study.seeds[:1]):
        said: list[str] = []
        if (weight := _taken(folder, run)) is None:
            if (data := config.data.model_dump_json()) not in loaded:
                loaded[data] = load_data(config.data, config.seed, config.required_labels).train
            weight, said = fitted_weight(config, loaded[data])
        found.append(Weighed(run, config, weight, said))
    return found


def _taken(folder: StudyFolder, run: StudyRun) -> float | None:
    """The weight with which a run has begun."""
    if not RunFolder(folder.run(run)).config.is_file():
        return None
    task = load_config(folder.run(run)).task
    return task.coefficient if isinstance(task, DeNSConfig) else None


def unequal_weights(weighed: Sequence[Weighed]) -> tuple[str, str] | None:
    """That trainings take different weights of the noise, which ones, and how they take one; None where they do not.

    A "warning" where some of these have the same structures and length, so that only settings are compared, else a
    "note".
    """
    if len({one.weight for one in weighed}) < 2:
        return None
    alike = any(
        one.weight != other.weight and one.trains_as(other) for one, other in itertools.combinations(weighed, 2)
    )
    named = "; ".join(f"{weight:g} for {', '.join(labels)}" for weight, labels in _by_weight(weighed).items())
    follows = "the other settings, so these differ in two things" if alike else "structures and length"
    return "warning" if alike else "note", (
        f"the weight of the noise is not given, and follows {follows}: {named}. For one weight write it into each, "
        f"such as task.coefficient: {min(one.weight for one in weighed):g}"
    )


def _by_weight(weighed: Sequence[Weighed]) -> Mapping[float, list[str]]:
    """The trainings of each weight, largest first, in words that have only axes on which the weight depends."""
    labels: dict[float, dict[str, None]] = {}
    for variant in dict.fromkeys(one.run.variant for one in weighed):
        own = [one for one in weighed if one.run.variant == variant]
        for axis in own[0].run.point:
            shorter = [replace(one, run=replace(one.run, point=_without(axis, one.run))) for one in own]
            if all(a.weight == b.weight for a, b in itertools.combinations(shorter, 2) if a.run.label == b.run.label):
                own = shorter
        for one in own:
            labels.setdefault(one.weight, {})[f"'{one.run.label}'"] = None
    return {weight: [*labels[weight]] for weight in sorted(labels, reverse=True)}


def _without(axis: str, run: StudyRun) -> dict[str, object]:
    return {key: value for key, value in run.point.items() if key != axis}
