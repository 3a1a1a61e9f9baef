"""The runs of a study: its variants at the points of its axes, for each seed."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from denskit.evaluation.study.config import (
    FRAMES,
    LENGTH_KEYS,
    LR,
    StudyConfig,
    describe,
    file_name,
    last_part,
    overrides,
    short,
    without_lengths,
)
from denskit.settings import dotted
from denskit.training.fitted_settings import rows_for
from denskit.training.load_config import OVERRIDE, load_config, nearest
from denskit.training.settings import RunConfig, SizeRow


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One training of a study."""

    variant: str
    point: Mapping[str, Any]  # axis -> value
    seed: int
    base: str
    settings: Mapping[str, Any]  # dotted keys, without output
    cell: str  # runs of one cell have steps of one cost: variant, point and model's size, less what keeps it

    @property
    def name(self) -> str:
        """Name of the run's folder: variant, point, seed."""
        parts = [self.variant, *(f"{last_part(key)}-{short(value)}" for key, value in self.point.items())]
        return "_".join([*map(file_name, parts), f"seed-{self.seed}"])

    @property
    def label(self) -> str:
        """The run in words."""
        return ", ".join(filter(None, [self.variant, describe(self.point)]))

    def config(self, output: Path = Path("unused"), more: Mapping[str, Any] | None = None) -> RunConfig:
        """The configuration of the run.  Raises ValueError naming the variant for unknown settings and presets."""
        settings = dict(dotted({**self.settings, **(more or {})}))
        if "data.split.file" in settings:  # it replaces all that divides the data
            settings = {k: v for k, v in settings.items() if k == "data.split.file" or not k.startswith("data.split.")}
        try:
            return load_config(self.base, [*overrides(settings), f"output={output}"])
        except (ValueError, OSError) as error:
            said = re.sub(f"^{OVERRIDE}: ", "", str(error), flags=re.MULTILINE)  # they are settings of the study
            raise ValueError(f"variant {self.variant!r}: {said}") from error


def runs_of(study: StudyConfig) -> list[StudyRun]:
    """All runs, the variants of one seed together, so that an unfinished study has complete pairs.

    Raises ValueError where two runs would share a folder, or a time budget would give each its own length.
    """
    runs = [
        StudyRun(
            variant=variant,
            point=point,
            seed=seed,
            base=changes.get("base", study.base),
            settings={**_layered(study.settings, changes, _settings_of(study, point)), "seed": seed},
            cell=_cell_of(study, variant, changes.get("base", study.base), point),
        )
        for seed in study.seeds
        for point in points_of(study)
        for variant, changes in study.variants.items()
    ]  # fmt: skip
    if any("training.budget" in run.settings for run in runs):
        raise ValueError(
            f"{study.title}: training.budget gives every run a length of its own, so runs cannot be compared; give "
            "training.max_steps (denskit study FILE --question dens --hours 2 chooses it)"
        )
    for name, count in Counter(run.name for run in runs).items():
        if count > 1:
            raise ValueError(
                f"{study.title}: {count} runs would share the folder {name}: names of variants, and files of an axis, "
                "must differ in more than signs, spaces and folders"
            )
    return runs


def find_run(study: StudyConfig, which: str) -> StudyRun:
    """The run of a number, in the order of :func:`runs_of`, or of a name.  Raises ValueError where there is none."""
    runs = runs_of(study)
    if which.isdecimal():
        if int(which) >= len(runs):
            raise ValueError(f"{study.title}: no run {which}; it has runs 0 to {len(runs) - 1}")
        return runs[int(which)]
    by_name = {run.name: run for run in runs}
    if which not in by_name:
        raise ValueError(f"{study.title}: no run {which!r}{nearest(which, by_name)}")
    return by_name[which]


def _cell_of(study: StudyConfig, variant: str, base: str, point: Mapping[str, Any]) -> str:
    same_cost = {FRAMES} if isinstance(study.axes.get(LR), dict) else {FRAMES, LR}  # a rate may bring other settings
    rows = {number: _row_of(base, number) for number in study.axes.get(FRAMES, ())}
    sized = [f"sizes={rows[point[FRAMES]]}"] if len({*rows.values()}) > 1 else []  # small data get a smaller model
    return "_".join([variant, *(f"{key}={value}" for key, value in point.items() if key not in same_cost), *sized])


def _row_of(base: str, frames: Any) -> int | None:
    """The row of ``sizes`` for so many training structures; None where the preset has none."""
    sizes = _sizes(base) if isinstance(frames, int) else ()
    return sizes.index(rows_for(sizes, frames)[0]) if sizes else None


@cache
def _sizes(base: str) -> tuple[SizeRow, ...]:
    try:
        return load_config(base).sizes
    except (ValueError, OSError):  # it wants further settings, which its runs have
        return ()


def points_of(study: StudyConfig) -> Iterator[dict[str, Any]]:
    """All combinations of the axes' values; one empty combination where there are no axes."""
    for values in itertools.product(*study.axes.values()):
        yield dict(zip(study.axes, values, strict=True))


def _layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with dotted keys of which the later layers hold, without "base".  A layer that says how long to train
    replaces all that those before it say of it: else the shorter of ``epochs`` and ``max_steps`` would hold, whoever
    gave it."""
    found: dict[str, Any] = {}
    for layer in layers:
        settings = dict(dotted(layer))
        if LENGTH_KEYS & settings.keys():
            found = without_lengths(found)
        found |= settings
    return {key: value for key, value in found.items() if key != "base"}


def _settings_of(study: StudyConfig, point: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a point: its values, and what goes with them."""
    settings = dict(point)
    for axis, value in point.items():
        values = study.axes[axis]
        if isinstance(values, dict):
            settings.update(values[value])
    return settings
