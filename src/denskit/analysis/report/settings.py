"""The sections of cost, settings and environment."""

from __future__ import annotations

import shlex
from contextlib import suppress
from typing import Any

import numpy as np

from denskit.analysis.report.page import Section, folded, paragraph, table, verbatim
from denskit.analysis.run_results import RunResults
from denskit.models.config import MEASURED
from denskit.presets import preset_names
from denskit.reading.documents import read_json
from denskit.runtime.progress import counted, duration
from denskit.settings import dotted
from denskit.tasks import FOR_CRYSTALS, FOR_MANY_MATERIALS, FOR_SOME_MOLECULES
from denskit.training.load_config import load_config
from denskit.training.settings import RunConfig

_OF_EVERY_RUN = ("output", "seed", "device")
_BY_DATA = (FOR_CRYSTALS, FOR_MANY_MATERIALS, FOR_SOME_MOLECULES)  # settings of the task that data decide


def cost(run: RunResults) -> Section:
    """Time, speed, memory, size."""
    columns, rows = run.columns, []

    def last(name: str) -> float:
        values = columns.get(name, np.zeros(0))
        values = values[np.isfinite(values)]
        return float(values[-1]) if len(values) else np.nan

    if run.header:
        rows.append(("Parameters of the model", f"{run.header['parameters']:,}"))
    if np.isfinite(seconds := last("seconds")):
        rows.append(("Training time", duration(seconds)))
        rows.append(("Steps", f"{last('step'):,.0f} ({counted(int(last('epoch')), 'epoch', ',')})"))
    for name, label, unit in (
        ("step_ms", "Time of a step, median", "ms"),
        ("samples_per_s", "Structures per second, median", ""),
    ):
        values = columns.get(name, np.zeros(0))
        if np.isfinite(values).any():
            rows.append((label, f"{np.nanmedian(values):.3g} {unit}".strip()))
    if np.isfinite(memory := last("memory_MiB")):
        rows.append(("Memory", f"{memory:,.0f} MiB"))
    return Section("Time and cost", [table(["quantity", "value"], rows)] if rows else [])


def settings(run: RunResults) -> Section:
    """Settings that differ from the nearest preset, and all of them folded."""
    name, preset = _nearest_preset(run.config)
    theirs, seed = _flat(preset), run.config.seed
    rows = [
        (key, str(value), str(theirs[key]) if key in theirs else "not there")
        for key, value in _changed(run.config, preset).items()
    ]
    told = counted(len(rows), "setting")
    parts = [
        paragraph(
            f"The run differs from the preset {name} in {told}, besides those that the data decide; the seed is {seed}."
        ),
        table(["setting", "this run", name], rows),
        folded("All settings (YAML)", verbatim(run.yaml)),
    ]
    return Section("Settings", parts)


def _changed(run: RunConfig, preset: RunConfig) -> dict[str, Any]:
    """Settings of the run that its user gave and the preset does not."""
    theirs = _flat(_as_sized(preset, run))
    return {
        key: value
        for key, value in _flat(run).items()
        if key not in _OF_EVERY_RUN and theirs.get(key) != value and not _is_decided(key, value, run, preset, theirs)
    }


def _as_sized(preset: RunConfig, run: RunConfig) -> RunConfig:
    """The preset with the settings of the training that it has for as many structures as the run's.

    Their row is the first one whose settings of the model the run has, but for given ones.
    """
    if not preset.sizes or run.training.init_from is not None:
        return preset
    own = run.model.model_dump(mode="json")
    row = min(preset.sizes, key=lambda one: sum(own.get(name) != value for name, value in one.model.items()))
    return preset.model_copy(update={"training": preset.training.model_copy(update=row.training)})


def _is_decided(key: str, value: Any, run: RunConfig, preset: RunConfig, theirs: dict[str, Any]) -> bool:
    """Whether a default, the training data or the starting model gave a setting (``fitted_settings.py``)."""
    section, _, name = key.partition(".")
    field = getattr(type(getattr(run, section)), "model_fields", {}).get(name.partition(".")[0])
    usual = None if field is None else field.get_default()
    if key not in theirs and value in (None, usual):
        return True
    if run.training.init_from is not None and (section == "model" or value == "trained"):
        return True
    if section == "model":
        sized = any(row.model.get(name) == value for row in preset.sizes)
        return sized or (name in MEASURED and theirs.get(key, 0) is None)
    measured = name.partition(".")[0] == "sigma" and isinstance(theirs.get("task.sigma", usual), str)
    return key == "sizes" or (section == "task" and (measured or any(chosen.get(name) == value for chosen in _BY_DATA)))


def _flat(config: RunConfig) -> dict[str, Any]:
    return dict(dotted(config.document()))


def _nearest_preset(run: RunConfig) -> tuple[str, RunConfig]:
    """The preset of the same model from which the fewest settings differ."""
    own, molecule = _flat(run), [f"data.molecule={run.data.molecule}"] if run.data.molecule else []
    found = {}
    for name in preset_names():
        with suppress(ValueError):  # a preset of molecules, which this run has not
            found[name] = load_config(name, molecule)
    alike = {name: preset for name, preset in found.items() if preset.model.name == run.model.name} or found
    best = min(alike, key=lambda name: len(_changed(run, alike[name])) + len(_flat(alike[name]).keys() - own.keys()))
    return best, alike[best]


def environment(run: RunResults) -> Section:
    """Versions and machine."""
    if not run.folder.environment.is_file():
        return Section("Environment", [])
    found = read_json(run.folder.environment)
    packages = ", ".join(f"{name} {version}" for name, version in (found.get("packages") or {}).items())
    devices = ", ".join(found.get("devices") or []) or "none"
    rows = [
        ("Command", shlex.join(map(str, found.get("command") or []))),
        ("Commit", str(found.get("commit") or "")),
        ("Python", str(found.get("python") or "")),
        ("Packages", packages),
        ("Machine", f"{found.get('platform', '')}, {found.get('cpus', '?')} CPUs, threads {found.get('threads', '?')}"),
        ("GPUs", devices),
    ]
    return Section("Environment", [table(["", ""], rows)])
