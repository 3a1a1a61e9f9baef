"""From a preset or a YAML file and dotted overrides to a :class:`RunConfig`; errors name key, file and cure."""

from __future__ import annotations

import difflib
import itertools
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from yaml import YAMLError

from denskit.data.config import DataConfig
from denskit.data.splits import PARTS
from denskit.models import MODELS
from denskit.models.config import ModelConfig
from denskit.models.model_file import read_header
from denskit.presets import preset_names, preset_text
from denskit.reading.documents import parse_yaml, read_yaml, value_of_word
from denskit.settings import ON_FINE_TUNING, dotted, marked, problems_of
from denskit.tasks import TASKS
from denskit.training.run_folder import RunFolder, model_file
from denskit.training.settings import LENGTHS, RunConfig, TrainingConfig

__all__ = ["RunConfig", "TrainingConfig", "load_config"]

_DEFAULT_NAMES = {"model": "equiformer", "task": "energy_forces"}
_NAMED = ("model", "task", "data")  # `task=dens` is short for `task.name=dens`
Overrides = Sequence[str] | Mapping[str, Any]
OVERRIDE = "override"  # the place of what was given beside a file, in errors


def load_config(preset_or_path: str | os.PathLike[str], overrides: Overrides = ()) -> RunConfig:
    """The configuration of a run.

    Args:
        preset_or_path: a preset (``md17/equiformer_l2_dens``), a YAML file, or a run folder (its ``config.yaml``).
        overrides: ``key.sub=value`` with YAML values, or a dict with nested or dotted keys,
            ``{"task": "dens", "training.max_steps": 500}``; ``task=dens`` is short for ``task.name=dens``.

    A preset or file may hold a table ``molecules:`` with changes for each molecule (nested, or with dotted keys): the
    row of ``data.molecule`` is applied before the overrides.  Where an override names another task than the file does,
    the settings that both have are kept and the rest are dropped.  Where it names another model, those are kept that
    both share by definition (cutoff, neighbours, forces, ...), defaults included, and ``sizes`` are dropped.  Where it
    names a file (``data.path``, ``data.train``) and no dataset, it takes the place of the molecules shipped.  With
    ``training.init_from`` the settings of the model, references and scale are the trained model's, whatever a preset
    has, unless an override (or a YAML file) asks for others; those that need no other weights, such as
    ``model.forces``, stay the preset's.

    Raises ValueError for unknown keys (with the nearest valid names), values out of range and combinations that would
    be ignored; FileNotFoundError for a file that is not there.
    """
    name = os.fspath(preset_or_path)
    origin, base = _read(name)
    changes = parse_overrides(overrides)
    for place, content in ((origin, base), (OVERRIDE, changes)):
        _require_sections(place, content)
    base = _apply_molecule(base, changes, origin)
    if _is_folder(name):
        _require_here(origin, base)
    asked = (changes.get("model") or {}).get("name")
    if asked not in (None, (base.get("model") or {}).get("name", _DEFAULT_NAMES["model"])):
        base["sizes"] = []
    for section, classes in _choices().items():
        base[section] = _switch(base.get(section) or {}, changes.get(section) or {}, section, classes, origin)
    changed_length = [name for name in LENGTHS if (changes.get("training") or {}).get(name) is not None]
    if changed_length:
        base["training"] = {k: v for k, v in (base.get("training") or {}).items() if k not in LENGTHS}
    split = (changes.get("data") or {}).get("split")
    if isinstance(split, Mapping) and split.get("file") is not None:  # it determines the whole split
        base["data"] = {key: value for key, value in (base.get("data") or {}).items() if key != "split"}
    is_own_file = not (origin.startswith("preset ") or _is_folder(name))
    base["data"] = _of_own_file(base.get("data") or {}, changes.get("data") or {})
    base = _of_trained_model(base, changes, wishes=is_own_file)
    merged: Any = OmegaConf.to_container(OmegaConf.merge(OmegaConf.create(base), changes), resolve=False)
    merged["sizes"] = merged.get("sizes") or []
    for row, section in itertools.product(merged["sizes"], ("model", "training")):
        given = changes.get(section) or {}
        given = {*given, *(LENGTHS if changed_length and section == "training" else ())}
        row[section] = {key: value for key, value in (row.get(section) or {}).items() if key not in given}
    merged.setdefault("output", _default_output(name, merged))
    classes = {
        "model": MODELS[merged["model"]["name"]].config,
        "data": DataConfig,
        "task": TASKS[merged["task"]["name"]].config,
        "training": TrainingConfig,
    }
    return _Checker(origin, changes, classes).run_config(merged)


def _choices() -> dict[str, dict[str, type[BaseModel]]]:
    """Classes of settings by section and name; a script may add to MODELS and TASKS at any time.

    Raises ValueError for an entry of another kind, or under another name than its settings have.
    """
    for registry in (MODELS, TASKS):
        for name, entry in registry.items():
            if problem := registry.problem(name, entry):
                raise ValueError(f"{registry.kind.upper()}S[{name!r}]: {problem}")
    models: dict[str, type[BaseModel]] = {name: entry.config for name, entry in MODELS.items()}
    return {"model": models, "task": {name: entry.config for name, entry in TASKS.items()}}


def settings_classes() -> dict[str, type[BaseModel]]:
    """Classes of all settings by section: ``run``, ``training``, ``data``, ``task=dens``, ``model=equiformer``, ..."""
    chosen = {f"{section}={name}": cls for section, classes in _choices().items() for name, cls in classes.items()}
    return {"run": RunConfig, "training": TrainingConfig, "data": DataConfig, **chosen}


def data_config(overrides: Overrides) -> DataConfig:
    """Settings that say how structures are read, from ``data.KEY=VALUE``.  Raises ValueError for others."""
    changes = parse_overrides(overrides)
    other = [key for key in changes if key != "data"]
    if other:
        raise ValueError(f"{other[0]}: settings that say how structures are read begin with data., as data.units=eV")
    checker = _Checker(OVERRIDE, changes, {"data": DataConfig})
    config = checker.build(DataConfig, changes.get("data") or {}, "data")
    checker.raise_problems()
    assert isinstance(config, DataConfig)
    return config


def whole_file_config(overrides: Overrides, command: str) -> DataConfig:
    """As :func:`data_config`, for a command that reads the files it is given whole.  Raises ValueError for settings of
    the files of a training and of their division."""
    config = data_config(overrides)
    for name in ("name", "path", "train", "valid", "test", "split", "references", "molecule"):
        if name in config.model_fields_set:
            raise ValueError(
                f"data.{name} says what a training reads, and how it divides it; denskit {command} reads the files "
                "that it is given, whole"
            )
    return config


def _require_sections(place: str, content: Mapping[str, Any]) -> None:
    for section in ("model", "data", "task", "training", "molecules"):
        value = content.get(section)
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"{place}: {section}={value!r}: settings are wanted, such as {section}.name=...")
    rows = content.get("sizes") or []
    if not isinstance(rows, list) or not all(
        isinstance(r, Mapping) and all(isinstance(r.get(name) or {}, Mapping) for name in ("model", "training"))
        for r in rows
    ):
        raise ValueError(f"{place}: sizes={rows!r}: a list of rows is wanted, each with up_to, and model or training")


def _require_here(origin: str, run: Mapping[str, Any]) -> None:
    """Raise ValueError where a run has a model or task that nothing here gives."""
    for registry in (MODELS, TASKS):
        name = (run.get(registry.kind) or {}).get("name", _DEFAULT_NAMES[registry.kind])
        if isinstance(name, str) and name not in registry:
            raise ValueError(f"{origin}: {registry.absent(name)}")


def _preset(name: str) -> str:
    try:
        return preset_text(name)
    except ValueError as error:
        raise ValueError(f"{error}; there is no run folder or YAML file of that name either") from None


def _is_folder(name: str) -> bool:
    """Whether a run folder is meant: any folder, but with the name of a preset only one that holds a run."""
    return Path(name).is_dir() and (name not in preset_names() or (Path(name) / "config.yaml").exists())


def _read(name: str) -> tuple[str, dict[str, Any]]:
    """Name for error messages, and content."""
    path = Path(name)
    if _is_folder(name):
        path = path / "config.yaml"
    is_file = path.suffix in (".yaml", ".yml") or path.is_file()
    if path.is_file() and path.suffix not in (".yaml", ".yml"):
        raise ValueError(
            f"{path} is no YAML file of settings. Is it a file of structures? denskit train equiformer "
            f"data.path={shlex.quote(str(path))}"
        )
    if is_file and not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; give a YAML file, a run folder or a preset (denskit presets)")
    if not is_file and name.startswith(("runs/", "./", "../", "/")):
        raise FileNotFoundError(f"no folder {name}; wanted a run folder, a YAML file or a preset (denskit presets)")
    origin = str(path) if is_file else f"preset {name}"
    content = read_yaml(path) if is_file else parse_yaml(_preset(name), origin)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError(f"{origin}: a mapping with model, data, task, training is wanted, found {content!r:.99}")
    if _is_folder(name):  # which may have been moved
        content["output"] = name
        for part in PARTS:
            own = RunFolder(name).frames(part).resolve()
            named = (content.get("data") or {}).get(part)
            if isinstance(named, str) and Path(named).parts[-2:] == own.parts[-2:] and own.is_file():
                content["data"][part] = str(own)
    return origin, content


def parse_overrides(overrides: Overrides) -> dict[str, Any]:
    if isinstance(overrides, Mapping):
        return _nested(overrides)
    full = []
    for override in overrides:
        key, equals, value = override.partition("=")
        if not (key and equals) and Path(override).is_file():
            raise ValueError(f"override {override!r} is a file; of structures write data.path={shlex.quote(override)}")
        if not (key and equals):
            raise ValueError(f"override {override!r}: write key.sub=value, such as training.max_steps=5000")
        named = key in _NAMED and not value.lstrip().startswith("{")
        if key == "output" and not value.startswith(('"', "'")):
            value = json.dumps(value, ensure_ascii=False)  # 2024 and no are names of folders
        full.append(f"{key}.name={value}" if named else f"{key}={value_of_word(value)}")
    try:
        found: Any = OmegaConf.to_container(OmegaConf.from_dotlist(full), resolve=False)
    except (YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"overrides {' '.join(overrides)}: {error}") from None
    if any(":" in key for key, _ in dotted(found)):  # YAML reads {Cu:-1} as a key without a value
        raise ValueError(f"overrides {' '.join(overrides)}: write a space after a colon, as in {{H: -13.6, O: -432}}")
    return dict(found)


def _nested(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides from Python, with dotted keys made nested and paths and numpy's numbers made plain."""
    found = OmegaConf.create({})
    for key, value in overrides.items():
        named = key in _NAMED and not isinstance(value, Mapping)
        try:
            OmegaConf.update(found, f"{key}.name" if named else key, _plain(value), merge=True, force_add=True)
        except OmegaConfBaseException as error:
            raise ValueError(f"override {key}={value!r:.99}: {error}") from None
    return OmegaConf.to_container(found, resolve=False)  # type: ignore[return-value]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if isinstance(value, np.generic) else value


def _apply_molecule(base: dict[str, Any], changes: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """``base`` without its table of molecules, changed by the row of the chosen one."""
    base = dict(base)
    rows = base.pop("molecules", None)
    if rows is None:
        return base
    molecule = (changes.get("data") or {}).get("molecule", (base.get("data") or {}).get("molecule"))
    if molecule is None:
        raise ValueError(f"{origin}: say which molecule: data.molecule=... one of {', '.join(rows)}")
    if molecule not in rows:
        raise ValueError(f"{origin}: data.molecule={molecule}: no such row{nearest(molecule, rows)}")
    changed = OmegaConf.create(base)
    for key, value in (rows[molecule] or {}).items():
        OmegaConf.update(changed, key, value, merge=True, force_add=True)
    return OmegaConf.to_container(changed, resolve=False)  # type: ignore[return-value]


def _switch(
    base: Mapping[str, Any],
    changes: Mapping[str, Any],
    section: str,
    classes: Mapping[str, type[BaseModel]],
    origin: str,
) -> dict[str, Any]:
    """The section of the file without the settings that the chosen ``name`` lacks.

    Of another model those stay, defaults included, that both take from a common base: cutoff, neighbours, forces, ...
    """
    old = base.get("name", _DEFAULT_NAMES[section])
    new = changes.get("name", old)
    for name, place in ((old, origin), (new, OVERRIDE)):
        if not isinstance(name, str) or name not in classes:
            raise ValueError(f"{place}: no {section} {name!r}{nearest(str(name), classes)}")
    if new == old:
        return {**base, "name": old}
    if section == "model":
        bases = [cls for cls in classes[old].__mro__ if issubclass(cls, ModelConfig) and issubclass(classes[new], cls)]
        fields = classes[old].model_fields
        return {key: base.get(key, fields[key].get_default()) for key in bases[0].model_fields} | {"name": new}
    return {key: value for key, value in base.items() if key in classes[new].model_fields} | {"name": new}


def _of_own_file(base: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a preset for the shipped molecules, of which a user's own file takes the place."""
    own = given.get("path") is not None or given.get("train") is not None
    if not own or "name" in given or base.get("name") != "embedded":
        return base
    return {key: value for key, value in base.items() if key != "molecule"} | {"name": "file"}


def _of_trained_model(base: dict[str, Any], changes: Mapping[str, Any], *, wishes: bool) -> dict[str, Any]:
    """With ``training.init_from``, what a preset says of a fresh model's size, references and scale is no wish.

    ``wishes``: ``base`` is a user's file, whose settings of the model are compared with the trained ones later.
    """
    given, own = ((part.get("training") or {}).get("init_from") for part in (changes, base))
    if given is None and (own is None or "init_from" in (changes.get("training") or {})):
        return base
    for section, key in (("data", "references"), ("training", "scale")):
        values = base.get(section) or {}
        found = values.get(key)
        measured = found is None or (isinstance(found, str) and "." not in found)  # not numbers, nor a file of them
        if (key not in values) if own is not None else (measured or (key == "scale" and not wishes)):
            base = {**base, section: {**values, key: "trained"}}
    return {**base, **_trained_settings(base["model"], str(given or own), wishes or own is not None)}


def _trained_settings(model: Mapping[str, Any], origin: str, wishes: bool) -> dict[str, Any]:
    """``model`` and ``sizes`` of a run that starts from a trained model, where that is there.

    ``wishes``: what ``model`` gives is kept.  Raises ValueError where the trained model is of another kind.
    """
    config = MODELS[model["name"]].config
    if wishes and config.model_fields.keys() <= model.keys():
        return {}
    try:
        trained = read_header(model_file(origin))["model"]
    except FileNotFoundError:  # yet: a job that waits for the training
        return {}
    if trained.get("name") != model["name"]:
        raise ValueError(
            f"training.init_from={origin} is of the model {trained.get('name')}, and this training of {model['name']}; "
            f"begin with a preset of {trained.get('name')}, or with another model"
        )
    free = marked(config, ON_FINE_TUNING)
    kept = {key: value for key, value in model.items() if wishes or key in free}
    taken = {key: value for key, value in trained.items() if key in config.model_fields and key not in free}
    elements = model.get("num_elements", config.model_fields["num_elements"].default)  # rows that no weight is for
    return {"model": {**taken, **kept, "num_elements": max(elements, trained["num_elements"])}, "sizes": []}


def _default_output(name: str, merged: Mapping[str, Any]) -> str:
    """``runs/<preset>``, with the molecule where there is one."""
    molecule = (merged.get("data") or {}).get("molecule")
    stem = Path(name).stem if Path(name).suffix else name.strip("/").replace("/", "-")
    return "runs/" + "-".join(str(part) for part in (stem, molecule) if part)


def nearest(name: str, valid: Mapping[str, Any] | Sequence[str]) -> str:
    """'; did you mean ...?' or all valid names."""
    near = difflib.get_close_matches(name, list(valid), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else f"; valid are {', '.join(valid)}"


class _Checker:
    """Builds the parts of a RunConfig; errors name the key and its origin, file or override."""

    def __init__(self, origin: str, changes: Mapping[str, Any], classes: Mapping[str, type[BaseModel]]) -> None:
        self.origin, self.classes = origin, classes
        self.changed = {key for key, value in dotted(changes) if value != {}}
        self.problems: list[str] = []

    def run_config(self, merged: dict[str, Any]) -> RunConfig:
        """All sections validated, then the whole; one ValueError with every problem found."""
        sections = {name: self.build(cls, merged.get(name) or {}, name) for name, cls in self.classes.items()}
        rest = {key: value for key, value in merged.items() if key not in self.classes}
        if not self.problems:
            config = self.build(RunConfig, {**rest, **sections}, "")
        else:  # unknown keys at the top level are problems, too
            for key in rest.keys() - RunConfig.model_fields.keys():
                self.problems.append(self._unknown(key, RunConfig, ""))
        self.raise_problems()
        assert isinstance(config, RunConfig)
        return config

    def raise_problems(self) -> None:
        """Raise one ValueError with every problem found so far."""
        if self.problems:
            raise ValueError("\n".join(self.problems))

    def build(self, cls: type[BaseModel], values: Any, prefix: str) -> Any:
        """Validated settings below the key ``prefix``; None where a problem was found."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            for problem in problems_of(error):
                key = problem.key(prefix)
                if problem.unknown:
                    owner = _owner(cls, problem.path)
                    self.problems.append(self._unknown(key, owner, key.rpartition(".")[0]))
                else:
                    self.problems.append(f"{self._place(key)}: " + (f"{key}: {problem.text}" if key else problem.text))
            return None

    def _unknown(self, key: str, owner: type[BaseModel], prefix: str) -> str:
        leaf = key.rpartition(".")[2]
        if having := [name for name, cls in _choices().get(prefix, {}).items() if leaf in cls.model_fields]:
            chosen = " or ".join(f"{prefix}={name}" for name in having)
            return f"{self._place(key)}: {key} belongs to {chosen}, which is not chosen here"
        near = difflib.get_close_matches(leaf, owner.model_fields, n=3, cutoff=0.6)
        near = [f"{prefix}.{name}" if prefix else name for name in near]
        near += [
            f"{other}.{leaf}" for other, cls in self.classes.items() if leaf in cls.model_fields and other != prefix
        ]
        for name, cls in _choices().get(prefix, {}).items():
            if cls is not owner:
                close = difflib.get_close_matches(leaf, cls.model_fields, n=1, cutoff=0.75)
                near += [
                    f"{prefix}.{found} (which {prefix}={name} has)"
                    for found in close
                    if f"{prefix}.{found}" not in near
                ]
        valid = f"did you mean {' or '.join(near)}?" if near else f"valid here: {', '.join(owner.model_fields)}"
        return f"{self._place(key)}: unknown key {key}; {valid}"

    def _place(self, key: str) -> str:
        key = key.partition(" ")[0]  # without the place in a list
        changed = any(leaf == key or leaf.startswith(f"{key}.") or key.startswith(f"{leaf}.") for leaf in self.changed)
        return OVERRIDE if changed and key else self.origin


def _owner(cls: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel]:
    """The class in whose mapping the last key of ``path`` stands."""
    for part in path[:-1]:
        field = cls.model_fields.get(str(part))
        cls = cls if field is None else next(_classes_in(field.annotation), cls)
    return cls


def _classes_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The classes of settings that a value may have, alone or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inside in get_args(annotation):
        yield from _classes_in(inside)
