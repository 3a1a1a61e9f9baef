"""Settings: frozen, without unknown keys, each described once by the docstring below it.

Marks on fields say when a setting may differ::

    log_every: OnResume[int] = 50
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

T = TypeVar("T")
ON_RESUME, ON_FINE_TUNING = "may differ when a run is resumed", "may differ from the model in training.init_from"
OnResume = Annotated[T, ON_RESUME]
OnFineTuning = Annotated[T, ON_FINE_TUNING]  # weights neither depend on it nor change their meaning with it


class Settings(BaseModel):
    """Base class of settings.  The docstring below a field is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def fields_of(cls: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Dotted key and field of all settings; those of nested classes follow their field."""
    for name, field in cls.model_fields.items():
        yield prefix + name, field
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields_of(field.annotation, f"{prefix}{name}.")


def marked(cls: type[BaseModel], mark: str) -> frozenset[str]:
    """Dotted keys of the settings that carry a mark."""
    return frozenset(key for key, field in fields_of(cls) if mark in field.metadata)


def dotted(mapping: Mapping[Any, Any], prefix: str = "", *, lists: bool = False) -> Iterator[tuple[str, Any]]:
    """Nested entries as (dotted key, value); an empty mapping is a value.

    ``lists``: also those of lists of mappings, whose places count as keys.
    """
    for key, value in mapping.items():
        if lists and isinstance(value, list) and value and isinstance(value[0], Mapping):
            value = dict(enumerate(value))
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{prefix}{key}.", lists=lists)
        else:
            yield f"{prefix}{key}", value


def problems_in(error: ValidationError) -> str:
    """All problems that pydantic found, in one line: ``key: value: what is wrong; ...``."""
    return "; ".join(problem_text(found) for found in error.errors())


def problem_text(found: ErrorDetails, prefix: str = "") -> str:
    """One of them; ``prefix``: the key of the section that was validated."""
    key = ".".join(map(str, (*([prefix] if prefix else []), *found["loc"])))
    value = "" if isinstance(found["input"], dict | BaseModel) else f"{found['input']!r}: "
    return (f"{key}: {value}" if key else "") + found["msg"].removeprefix("Value error, ")
