"""JSON and YAML from outside.  Errors, Unreadable (a ValueError), say which file it was."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from denskit.reading.budget import PART, TEXT, Unreadable, allowance, naming, require_allowed

LARGEST_YAML = 2**17  # bytes; the presets have about 2,000, and OmegaConf can take seconds for this many
DEEPEST = 100  # lists within lists


def read_json(path: Path) -> Any:
    """The value of a JSON file.  Raises FileNotFoundError, Unreadable."""
    return parse_json(path.read_bytes(), path)


def parse_json(text: bytes | str, where: str | Path, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """The value of a JSON text.  Raises Unreadable saying ``where``, also for lists nested a thousand deep."""
    with naming(where, "is damaged, or no JSON"):
        return json.loads(text, object_hook=object_hook)


def inflate_json(raw: bytes, where: str, object_hook: Callable[[dict[str, Any]], Any]) -> Any:
    """The value of a JSON text that zlib compressed.  Raises Unreadable, also where it unpacks to far too much."""
    with naming(where, "is damaged"):
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(raw, allowance(len(raw)) // TEXT)
        if unpacking.unconsumed_tail:
            require_allowed(allowance(len(raw)) + 1, len(raw), where)
        if not unpacking.eof:
            raise ValueError("truncated")
    return parse_json(text, where, object_hook)


def read_yaml(path: Path) -> Any:
    """The value of a YAML file.  Raises FileNotFoundError, Unreadable."""
    return parse_yaml(path.read_bytes(), path)


def parse_yaml(text: bytes | str, where: str | Path) -> Any:
    """The value of a YAML text, as OmegaConf reads it; interpolations stay unresolved.  Raises Unreadable."""
    import yaml
    from omegaconf import OmegaConf

    with naming(where, "is no valid YAML"):
        if len(text) > LARGEST_YAML:
            raise ValueError(f"it has {len(text):,} bytes; configurations above {LARGEST_YAML:,} are refused")
        text = text if isinstance(text, str) else text.decode("utf-8")
        depth = 0
        for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise ValueError(f"lists nested more than {DEEPEST} deep")
        if "*" in text:  # an alias stands for as many parts as its anchor has
            check_extent(yaml.compose(text, yaml.SafeLoader), len(text), where)
        return OmegaConf.to_container(OmegaConf.create(text), resolve=False)


def value_of_word(text: str) -> str:
    """YAML of what follows ``key=`` on the command line, where a pattern of files may begin as an alias or a list does
    (``*.extxyz``, ``[ab]/frames.extxyz``), and ``run #1`` has no comment."""
    is_pattern = text.startswith("*") or (text.startswith("[") and not text.rstrip().endswith("]"))
    is_commented = " #" in text and not text.startswith(("[", "{", '"', "'"))
    return json.dumps(text, ensure_ascii=False) if is_pattern or is_commented else text


def check_extent(value: Any, size: int, where: str | Path) -> None:
    """Raise Unreadable if ``value``, read from ``size`` bytes, has too many parts or is nested too deep.

    Parts are counted as often as they occur.  A few bytes can describe lists that share their parts and have 2^60 of
    them: a walk through them never ends.
    """
    most = allowance(size) // PART
    parts, pending = 1, [(value, 0)]
    while pending:
        part, depth = pending.pop()
        part = getattr(part, "value", part)  # of a YAML node
        if isinstance(part, dict):
            part = list(part.values())
        if not isinstance(part, list | tuple):
            continue
        parts += len(part)
        if parts > most:
            require_allowed(parts * PART, size, where)
        if depth > DEEPEST:
            raise Unreadable(f"{where} has lists nested more than {DEEPEST} deep")
        pending += [(item, depth + 1) for item in part]
