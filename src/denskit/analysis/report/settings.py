"""The sections of cost, settings and environment."""

from __future__ import annotations

import shlex
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from denskit.analysis.report.page import Section, folded, paragraph, table, verbatim
from denskit.analysis.run_results import RunResults
from denskit.presets import preset_names
from denskit.reading.documents import read_json
from denskit.runtime.progress import counted, duration
from denskit.settings import dotted
from denskit.training.load_config import load_config, parse_overrides
from denskit.training.settings import RunConfig

_OF_EVERY_RUN = ("output", "seed", "device")
_WITH_VALUE = ("-o", "--output", "--processes")  # options of the command that a value follows


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
    """The settings of the command beside those of its preset, and all of them folded."""
    parts = [paragraph(f"The seed is {run.config.seed}."), folded("All settings (YAML)", verbatim(run.yaml))]
    with suppress(ValueError):  # no command that trains today
        if found := _given(run):
            parts[:1] = found
    return Section("Settings", parts)


def _given(run: RunResults) -> list[str]:
    """The table of the settings that the command gave; empty where it named no preset, and of runs from Python."""
    program, *words = _command(run) or [""]
    if Path(program).name not in ("denskit", "__main__.py") or words[:1] != ["train"]:
        return []
    words = [word for before, word in pairwise(words) if not word.startswith("-") and before not in _WITH_VALUE]
    if not words or words[0] not in preset_names():
        return []
    name, *overrides = words
    own = _flat(run.config)
    theirs = _flat(load_config(name, [text for text in overrides if text.startswith("data.molecule=")]))
    rows = [
        (key, str(own.get(key, value)), str(theirs.get(key, "not there")))
        for key, value in dotted(parse_overrides(overrides))
        if key not in _OF_EVERY_RUN
    ]
    told = f"The run began with the preset {name} and {counted(len(rows), 'setting')} of its command"
    return [
        paragraph(f"{told}; the seed is {run.config.seed}."),
        table(["setting", "this run", f"file of {name}"], rows),
    ]


def _flat(config: RunConfig) -> dict[str, Any]:
    return dict(dotted(config.document()))


def _command(run: RunResults) -> list[str]:
    """The words of the command that began the run, not of one that resumed it."""
    found = read_json(run.folder.environment) if run.folder.environment.is_file() else {}
    return list(map(str, found.get("begun_by") or found.get("command") or []))


def environment(run: RunResults) -> Section:
    """Versions and machine."""
    if not run.folder.environment.is_file():
        return Section("Environment", [])
    found = read_json(run.folder.environment)
    packages = ", ".join(f"{name} {version}" for name, version in (found.get("packages") or {}).items())
    devices = ", ".join(found.get("devices") or []) or "none"
    rows = [
        ("Command", shlex.join(_command(run))),
        ("Commit", str(found.get("commit") or "")),
        ("Python", str(found.get("python") or "")),
        ("Packages", packages),
        ("Machine", f"{found.get('platform', '')}, {found.get('cpus', '?')} CPUs, threads {found.get('threads', '?')}"),
        ("GPUs", devices),
    ]
    return Section("Environment", [table(["", ""], rows)])
