"""A study: variants of one configuration, axes, seeds."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from denskit.files import atomic_write
from denskit.presets import study_names, study_text
from denskit.reading.documents import parse_yaml, value_of_word
from denskit.settings import Seed, Settings, dotted, problems_in
from denskit.simulation.stability.protocol import StudySettings
from denskit.training.load_config import nearest
from denskit.training.settings import LENGTHS

FRAMES = "data.split.train"  # an axis over it keeps validation and test frames
LR = "training.lr"
TEST, SIMULATION, RELAXATION = "test", "simulation", "relaxation"  # what runs are judged on, beside files
WRITTEN = "# Written by denskit study, with what the command line gave"
MEAN = "mean of the tests"
LENGTH_KEYS = {f"training.{name}" for name in LENGTHS}
_DECIDES_VALIDATION = ("training.best_by", "training.evaluate_structures")
_NOT_ON_THE_COMMAND_LINE = ("settings", "variants", "published")  # so a key of these is a setting of all runs
_MOST_SEEDS = 1000  # as a number, which may be one seed that is meant
_WITH_PARTS = ("axes", "tests", "simulation", "relaxation")
METRICS = {  # key in the results: name and unit for people
    "energy_mae_meV": "energy (meV)",
    "forces_mae_meV_per_A": "forces (meV/Å)",
    "stress_mae_meV_per_A3": "stress (meV/Å³)",
    "stability_ps": "stability (ps)",
    "h_of_r_error": "error of h(r)",
    "distance_mean_A": "distance (Å)",
}
ENERGY, FORCES, STRESS = "energy_mae_meV", "forces_mae_meV_per_A", "stress_mae_meV_per_A3"


Numbers = float | tuple[float, float] | dict[str, float]  # forces; energies and forces; by metric
Published = Numbers | dict[str, Numbers]  # of one test, or by test


class Relaxations(Settings):
    """Relaxations with each trained model, judged by the energies and structures at their ends (IS2RE, IS2RS)."""

    path: str | None = None
    """Structures with relaxed references (LMDB, aselmdb, shards), or whole relaxations; default: the test split."""
    first_frames: bool = False
    """The file holds relaxations (frames with sid and fid): the first frame of each is relaxed."""
    protocol: Literal["oc20-2021", "oc20-2024", "matbench-discovery"] = "oc20-2024"
    """As `denskit relax --protocol`."""
    steps: int | None = Field(default=None, ge=1)
    """Most moves of a structure, instead of the protocol's."""


class StudyConfig(Settings):
    """A study file (YAML)."""

    title: str
    """One line, printed above the results; a file without it has its own name as title."""
    base: str = "equiformer"
    """Preset or YAML file that every run starts from."""
    settings: dict[str, Any] = Field(default={})
    """Settings of all runs, as dotted keys: {data.path: mine.extxyz, training.max_steps: 10000}."""
    variants: dict[str, dict[str, Any]] = Field(min_length=1)
    """Compared variants: name -> settings; "base" in them names another preset. The first one is the reference."""
    axes: dict[str, tuple[Any, ...] | dict[Any, dict[str, Any]]] = Field(default={})
    """Settings that vary besides: dotted key -> values, such as {data.split.train: [50, 200, 950]}; or each value with
    settings that go with it: {data.split.train: {50: {training.max_steps: 6000}, 200: {training.max_steps: 20000}}}."""
    best_of: tuple[str, ...] = Field(default=())
    """Axes of settings to tune, such as [training.lr]: the table also has each variant at the value whose runs have the
    lowest validation error."""
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2))
    """Repetitions. A seed fixes split, order, corruption and initial weights: variants are compared in pairs."""
    tests: dict[str, str] = Field(default={})
    """More files to judge on, besides the test split: name -> file."""
    mean_of_tests: bool = False
    """Also the mean of each error over the files of ``tests``, as published for OC20's four validation sets."""
    committees: bool = False
    """Also judge, for each variant, the mean of the models of all seeds; they must train on one split
    (data.split.seed)."""
    simulation: StudySettings | None = None
    """Simulations with each trained model as by `denskit stability`: {} (published), {length: 20, seeds: 3}."""
    relaxation: Relaxations | None = None
    """Relaxations with each trained model: {path: FILE}, {first_frames: true}."""
    published: dict[str, dict[str, Published]] = Field(default={})
    """Published numbers for comparison: variant -> {value of the axes, or "": numbers}; a force MAE in meV/Å, a list of
    the MAE of energies (meV) and forces, or several such as {energy_mae_meV: 5.3, forces_mae_meV_per_A: 7.2,
    stability_ps: 300, h_of_r_error: 0.02}.  They are of the mean of the tests, if the study has it, else of the test
    split; of others with their names, {test: [433, 22.9], ood: [629, 30.7]}."""

    needs: dict[str, str] = Field(default={})
    """What has to be given besides, with examples, for a study whose data have no place of their own:
    {data.train: s2ef/2M/train, tests.id: s2ef/all/val_id}."""

    @field_validator("published", mode="before")
    @classmethod
    def _keys_of_text(cls, value: object) -> object:
        """Values of axes may be numbers."""
        if not isinstance(value, dict):
            return value
        return {name: {str(key): number for key, number in points.items()} if isinstance(points, dict) else points
                for name, points in value.items()}  # fmt: skip

    @field_validator("seeds", mode="before")
    @classmethod
    def _count_of_seeds(cls, value: object) -> object:
        count = value if isinstance(value, int) and not isinstance(value, bool) else None
        if value in ([], ()) or (count is not None and not 1 <= count <= _MOST_SEEDS):
            raise ValueError(f"wanted their number, 1 to {_MOST_SEEDS}, or a list such as [0, 1, 2]")
        return value if count is None else tuple(range(count))

    @field_validator("variants", mode="before")
    @classmethod
    def _nothing_changed(cls, variants: object) -> object:
        """``plain:`` alone is a variant without settings of its own, as ``plain: {}``."""
        if not isinstance(variants, Mapping):
            return variants
        return {name: {} if settings is None else settings for name, settings in variants.items()}

    @field_validator("axes", mode="before")
    @classmethod
    def _lists_or_settings(cls, axes: object) -> object:
        for key, values in axes.items() if isinstance(axes, Mapping) else ():
            if isinstance(values, Mapping):
                wrong = [value for value, settings in values.items() if not isinstance(settings, Mapping)]
                if wrong:
                    raise ValueError(
                        f"{key}: {wrong[0]}: found {values[wrong[0]]!r}; wanted settings that go with this value, such "
                        "as {training.max_steps: 6000}, or {}"
                    )
            elif not isinstance(values, list | tuple):
                raise ValueError(f"{key}: found {values!r}; wanted a list of values, such as [50, 200]")
        return axes

    @model_validator(mode="after")
    def _makes_sense(self) -> StudyConfig:
        together = [
            settings for values in self.axes.values() if isinstance(values, dict) for settings in values.values()
        ]
        places = [("settings", self.settings), ("axes", self.axes), *self.variants.items()]
        for place, keys in [*places, *(("axes", settings) for settings in together)]:
            if "seed" in keys:
                raise ValueError(f"{place}: seed is set for each run; list seeds under seeds:")
            if "output" in keys:
                raise ValueError(
                    f"{place}: output is set for each run; the study's folder is denskit study ... -o FOLDER"
                )
        empty = [key for key, values in self.axes.items() if not values]
        if empty:
            raise ValueError(f"axes: {empty[0]} has no values")
        axes = {*self.axes, *(key for settings in together for key, _ in dotted(settings))}
        hidden = [(name, key) for name, settings in self.variants.items() for key, _ in dotted(settings) if key in axes]
        if hidden:
            name, key = hidden[0]
            raise ValueError(f"variants: {name}: {key} is an axis, too, whose values would replace it; choose one")
        for key, values in self.axes.items():
            twice = next((pair for pair in itertools.combinations(values, 2) if _are_one(*pair)), None)
            if twice is not None:
                raise ValueError(f"axes: {key}: {twice[0]!r} and {twice[1]!r} are one value")
        untuned = [key for key in self.best_of if key not in self.axes]
        if untuned:
            raise ValueError(f"best_of: {untuned[0]} is no axis; list its values: axes.{untuned[0]}=[...]")
        unfair = [key for key in self.best_of if key.startswith("data.") or key in _DECIDES_VALIDATION]
        if unfair:
            raise ValueError(
                f"best_of: {unfair[0]} changes what the validation errors are, so they choose no value of it"
            )
        for name in (TEST, SIMULATION, RELAXATION):
            if name in self.tests:
                raise ValueError(f"tests: {name} is the name of the study's own {name}; give the file another name")
        unknown = sorted(set(self.published) - set(self.variants))
        if unknown:
            raise ValueError(f"published: {unknown[0]!r} is no variant{nearest(unknown[0], self.variants)}")
        numbers = [number for points in self.published.values() for number in points.values()]
        judged = {"", TEST, SIMULATION, RELAXATION, MEAN, *self.tests}
        of_tests = [(test, part) for number in numbers for test, part in by_test(number, "").items()]
        named = {name for _, part in of_tests if isinstance(part, dict) for name in part}
        named |= {test for test, part in of_tests if isinstance(part, float | int) and test not in judged}
        wrong = sorted(named - set(METRICS))
        if wrong:
            raise ValueError(f"published: no error {wrong[0]!r}{nearest(wrong[0], METRICS)}")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: {list(self.seeds)} has one twice")
        return self


def by_test(published: Published, default: str) -> Mapping[str, Numbers]:
    """Published numbers by test; ``default``: the test of numbers without one, by metric or alone."""
    named = isinstance(published, dict) and not published.keys() <= METRICS.keys()
    return published if named else {default: published}  # type: ignore[dict-item,return-value]


def _are_one(one: object, other: object) -> bool:
    """Whether a setting takes two values as one: also a number and a text such as "1e-3", which is text in YAML."""
    try:
        if not (isinstance(one, str) and isinstance(other, str)):  # two texts may be names of files
            return float(str(one)) == float(str(other))
    except ValueError:
        pass
    return str(one) == str(other)


def file_name(text: str) -> str:
    """The text without signs that files may not have in their names."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-")


def last_part(key: str) -> str:
    """``lr`` of ``training.lr``."""
    return key.rsplit(".", 1)[-1]


def describe(values: Mapping[str, Any]) -> str:
    """Values of the axes in words: ``train 50, sigma 0.1``."""
    return ", ".join(f"{last_part(key)} {short(value)}" for key, value in values.items())


def short(value: Any) -> str:
    """A value as text, a path without its folder and ending."""
    return Path(value).stem if isinstance(value, str) and "/" in value else str(value)


def overrides(settings: Mapping[str, Any]) -> list[str]:
    """Settings as ``key=value`` with YAML values."""
    return [f"{key}={yaml.safe_dump(value, default_flow_style=True).strip().removesuffix('...').strip()}"
            for key, value in settings.items()]  # fmt: skip


def changed(study: StudyConfig, overrides: Sequence[str]) -> StudyConfig:
    """The study with ``key=value`` (YAML values): of the study itself (``seeds=5``, ``tests.hot=FILE``,
    ``axes.data.split.train=[25, 50]``), else a setting of all runs, also where an axis or its values set it.

    Raises ValueError where one makes no sense or would have no effect.
    """
    values, given = study.model_dump(exclude_unset=True), dict[str, Any]()
    for override in overrides:
        key, equals, text = override.partition("=")
        if not (key and equals):
            raise ValueError(f"{override!r}: write key.sub=value, such as data.path=mine.extxyz")
        value = parse_yaml(f"value: {value_of_word(text)}", override)["value"]  # as of a file: 1e-3 is a number
        field, _, name = key.partition(".")
        if field not in StudyConfig.model_fields or field in _NOT_ON_THE_COMMAND_LINE:
            given[key] = value
        elif name and field not in _WITH_PARTS:
            raise ValueError(f"{override!r}: {field} has no parts; write {field}=...")
        elif name:
            values[field] = {**(values.get(field) or {}), name: value}
        else:
            values[field] = value
    try:
        found = StudyConfig.model_validate(values)
        return StudyConfig.model_validate({**values, **_for_all_runs(found, given)})
    except ValidationError as error:
        raise ValueError(f"{study.title}: {problems_in(error)}") from None


def _for_all_runs(study: StudyConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """What becomes of a study where ``given`` holds for all runs: of an axis this value is left, and no axis where it
    was tuned; settings that go with the values of an axis are taken from them.

    Raises ValueError for a setting that every variant has, a part of which is an axis, or that wants others.
    """
    settings, axes, tuned = dict(study.settings), dict[str, Any](study.axes), list(study.best_of)
    given = dict(itertools.chain.from_iterable(_beside_axes(key, value, axes) for key, value in given.items()))
    if LENGTH_KEYS & given.keys() - axes.keys():
        settings = without_lengths(settings)
    for key, value in sorted(given.items(), key=lambda item: item[0] in axes):
        replaced = LENGTH_KEYS if key in LENGTH_KEYS else {key}
        if all(replaced & dict(dotted(changes)).keys() for changes in study.variants.values()):
            own = "length" if key in LENGTH_KEYS else key
            raise ValueError(f"{key}={value}: every variant of the study has its own {own}, so this has no effect")
        if other := next((axis for axis in axes if axis in replaced and axis != key), None):
            raise ValueError(
                f"{key}={value}: {other} is an axis of the study, so this has no effect; write {other}=..."
            )
        if part := next((axis for axis in axes if axis.startswith(f"{key}.")), None):
            raise ValueError(f"{key}={value}: {part} is an axis of the study; write {part}=...")
        if key in axes:
            axes[key] = _left_of(key, axes[key], value)
            if key in tuned:
                tuned.remove(key)
                left = axes.pop(key)
                settings |= {key: value, **(left[next(iter(left))] if isinstance(left, Mapping) else {})}
            continue
        settings[key] = value
        for axis, values in axes.items():
            if isinstance(values, dict) and any(replaced & dict(dotted(more)).keys() for more in values.values()):
                axes[axis] = {
                    at: {name: one for name, one in dotted(more) if name not in replaced} for at, more in values.items()
                }
    changed = {"settings": settings, "axes": axes, "best_of": tuned}
    return {name: found for name, found in changed.items() if found or name in study.model_fields_set}


def _beside_axes(key: str, value: object, axes: Collection[str]) -> Iterator[tuple[str, Any]]:
    """A setting; one with parts, such as ``data.split={valid: 10}``, by them where other parts are axes."""
    parts = dict(dotted({key: value}))
    inside = {axis for axis in axes if axis.startswith(f"{key}.")}
    yield from parts.items() if isinstance(value, Mapping) and inside and not inside & parts.keys() else [(key, value)]


def _left_of(axis: str, values: Sequence[Any] | Mapping[Any, Any], value: object) -> Sequence[Any] | Mapping[Any, Any]:
    """The one value of an axis, with the settings that go with it.  Raises ValueError where it has none."""
    if not isinstance(values, Mapping) or not any(values.values()):
        return [value]
    same = [at for at in values if _are_one(at, value)]
    if not same:
        own = ", ".join(dict.fromkeys(name for more in values.values() for name, _ in dotted(more)))
        known, example = ", ".join(map(str, values)), f"{{{value}: {{{own.partition(',')[0]}: ...}}}}"
        raise ValueError(
            f"{axis}={value}: the study has {known}, each with its own {own}; give them, too, or write "
            f"axes.{axis}='{example}'"
        )
    return {same[0]: values[same[0]]}


def load_study(name: str | Path) -> StudyConfig:
    """A study from a YAML file, or a shipped one by name (``denskit study --list``).

    Raises FileNotFoundError for an absent file, ValueError for a file that is no study.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such study file")
        text: bytes | str = path.read_bytes()
    elif str(name) in study_names():
        text = study_text(str(name))
    elif path.is_file():
        raise ValueError(
            f"{name} is no study file (YAML). Is it a file of structures? denskit study {shlex.quote(str(name))} "
            "--question dens"
        )
    else:
        raise ValueError(f"{name}: no study file (YAML) and no shipped study{nearest(str(name), study_names())}")
    values = parse_yaml(text, name)
    if isinstance(values, dict):
        values.setdefault("title", path.stem)
    try:
        return StudyConfig.model_validate(values)
    except ValidationError as error:
        found = [found["loc"] for found in error.errors() if found["type"] == "extra_forbidden"]
        told = "".join(nearest(str(place[0]), StudyConfig.model_fields) for place in found if len(place) == 1)
        raise ValueError(f"{name}: {problems_in(error)}{told}") from None


class _Dumper(yaml.SafeDumper):
    """Quotes texts such as 1e-3, which :func:`parse_yaml` would take for numbers."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[\d._]+([eE][-+]?\d+)?$"), list("+-.0123456789")
)


def write_study(study: StudyConfig, path: Path) -> None:
    """Write a study file that :func:`load_study` reads."""
    document = study.model_dump(exclude_defaults=True)  # with mode="json" numbers as keys become text
    with atomic_write(path) as temporary:
        text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
        temporary.write_text(f"{WRITTEN}\n{text}", encoding="utf-8")


def is_written(path: Path) -> bool:
    """Whether a file is one of :func:`write_study`, not a study by hand."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline().rstrip() == WRITTEN


def without_lengths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, as they are written, that do not say how long to train."""
    training = settings.get("training")
    kept = {key: value for key, value in settings.items() if key not in LENGTH_KEYS}
    if isinstance(training, Mapping):
        kept["training"] = {key: value for key, value in training.items() if f"training.{key}" not in LENGTH_KEYS}
    return kept
