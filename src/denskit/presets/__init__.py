"""Shipped run configurations: ``<name>.yaml`` beside this file, or ``<dataset>/<name>.yaml``; studies: ``studies/``.

The first line of each file is a comment that describes it in one line.
"""

from __future__ import annotations

import difflib
from importlib.resources import files
from importlib.resources.abc import Traversable

_STUDIES = "studies/"


def preset_names() -> list[str]:
    """Names of all shipped presets, such as ``demo`` or ``md17/equiformer_l2``, sorted."""
    return sorted(name for name in _walk(files(__name__), "") if not name.startswith(_STUDIES))


def study_names() -> list[str]:
    """Names of all shipped studies, such as ``md17/small``, sorted."""
    return sorted(name.removeprefix(_STUDIES) for name in _walk(files(__name__), "") if name.startswith(_STUDIES))


def study_text(name: str) -> str:
    """YAML text of a shipped study, one of :func:`study_names`."""
    return _walk(files(__name__), "")[_STUDIES + name].read_text(encoding="utf-8")


def preset_text(name: str) -> str:
    """YAML text of a preset.  Raises ValueError with the nearest names when there is none of that name."""
    known = _walk(files(__name__), "")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"no preset {name!r}{hint or ';'} `denskit presets` lists all {len(known)}")
    return known[name].read_text(encoding="utf-8")


def preset_description(name: str) -> str:
    """One-line description of a preset: its first comment."""
    return preset_text(name).split("\n", 1)[0].lstrip("# ")


def _walk(folder: Traversable, prefix: str) -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found |= _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".yaml"):
            found[prefix + entry.name.removesuffix(".yaml")] = entry
    return found
