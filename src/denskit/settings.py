"""Settings: frozen, without unknown keys, each described once by the docstring below it.

Marks on fields say when a setting may differ::

    log_every: OnResume[int] = 50
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

T = TypeVar("T")
ON_RESUME, ON_FINE_TUNING = "may differ when a run is resumed", "may differ from the model in training.init_from"
OnResume = Annotated[T, ON_RESUME]
OnFineTuning = Annotated[T, ON_FINE_TUNING]  # weights neither depend on it nor change their meaning with it


def _seed(value: int) -> int:
    if not 0 <= value < 2**63:
        raise ValueError("wanted a whole number from 0 to 2**63 - 1")
    return value


Seed = Annotated[int, AfterValidator(_seed)]  # what numpy and torch take, on every device


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


_KINDS = ("str", "int", "float", "bool", "constrained-", "function-", "literal[", "tuple[", "dict[", "[key]")
_NONE = type(None)
_WANTED = {
    "int_type": "a whole number", "int_parsing": "a whole number", "int_from_float": "a whole number",
    "float_type": "a number", "float_parsing": "a number", "finite_number": "a finite number",
    "bool_type": "true or false", "bool_parsing": "true or false", "string_type": "a text",
    "tuple_type": "a list [VALUE, ...]", "dict_type": "a table {KEY: VALUE, ...}",
    "model_attributes_type": "a table {KEY: VALUE, ...}", "union_tag_not_found": "a table with a name",
}  # fmt: skip
_BOUNDS = {
    "greater_than": ("gt", "{} above {:g}"), "greater_than_equal": ("ge", "{} of {:g} or more"),
    "less_than": ("lt", "{} below {:g}"), "less_than_equal": ("le", "{} of {:g} or less"),
    "too_short": ("min_length", "{} with {:g} or more"), "too_long": ("max_length", "{} with {:g} or fewer"),
}  # fmt: skip


class Problem(NamedTuple):
    """Something wrong with one setting."""

    path: tuple[int | str, ...]  # keys, and places in lists counted from 0
    text: str
    unknown: bool  # there is no such setting

    def key(self, prefix: str = "") -> str:
        """The setting as users write it: ``data.train (entry 1).path``; ``prefix``: the key of the section."""
        written = prefix
        for part in self.path:
            written += f" (entry {part + 1})" if isinstance(part, int) else f".{part}" if written else part
        return written


def problems_of(error: ValidationError) -> list[Problem]:
    """All problems that pydantic found, one for each setting.

    Of a setting that may be of several kinds pydantic tells for each kind what is wrong, with the kind in the key.
    Where the value is a list or table as one kind wants it, the problem is inside; else all kinds are named.
    """
    groups: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    root = _classes().get(error.title)
    for found in error.errors():
        if found["loc"][-1:] == ("[key]",):  # a key of a table that is no text is no place in a list
            found["loc"] = (*found["loc"][:-2], str(found["loc"][-2]))
        keys = _keys_before_kinds(found["loc"], root)
        first = next((place for place in range(keys, len(found["loc"])) if _is_kind(found["loc"][place])), None)
        groups.setdefault(found["loc"][:first], []).append(found)
    return [problem for path, group in groups.items() for problem in _problems_at(path, group)]


def _problems_at(path: tuple[int | str, ...], group: list[ErrorDetails]) -> list[Problem]:
    below = [(tuple(part for part in found["loc"][len(path) :] if not _is_kind(part)), found) for found in group]
    inside = [
        Problem((*path, *keys), _text([found]), found["type"] == "extra_forbidden") for keys, found in below if keys
    ]
    if inside:
        return inside
    own = [found for found in group if found["type"] == "value_error"]  # says it in our words
    return [Problem(path, _text(own[:1] or group), group[0]["type"] == "extra_forbidden")]


def _keys_before_kinds(loc: tuple[int | str, ...], cls: Any) -> int:
    """How many first parts of pydantic's key are keys for sure, whatever they are called: kinds come after unions."""
    for place, part in enumerate(loc):
        while get_origin(cls) is Annotated or (get_origin(cls) in (Union, UnionType) and get_args(cls)[1:] == (_NONE,)):
            cls = get_args(cls)[0]
        if isinstance(cls, type) and issubclass(cls, BaseModel):
            if part not in cls.model_fields:
                return place + 1  # no such setting
            cls = cls.model_fields[str(part)].annotation
        elif get_origin(cls) in (dict, tuple):
            cls = get_args(cls)[get_origin(cls) is dict]
        else:
            return place
    return len(loc)


def _is_kind(part: int | str) -> bool:
    """Whether a part of pydantic's key is one of the kinds that a value may have, and no setting."""
    return isinstance(part, str) and (part.startswith(_KINDS[4:]) or part in _KINDS or part in _classes())


def _classes() -> dict[str, type[Settings]]:
    """All classes of settings by their names, which pydantic puts into keys."""
    found: dict[str, type[Settings]] = {}
    rest = [Settings]
    while rest:
        below = rest.pop().__subclasses__()
        found |= {cls.__name__: cls for cls in below}
        rest += below
    return found


def _text(group: list[ErrorDetails]) -> str:
    """``value: what is wanted``, of one of the kinds; or the words of our own check."""
    value, kind, own = group[0]["input"], group[0]["type"], group[0]["msg"].removeprefix("Value error, ")
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return "no such setting"
    if kind == "value_error":
        return own if isinstance(value, dict | BaseModel) or str(value) in own else f"{value!r:.99}: {own}"
    wanted = dict.fromkeys(map(_wanted, group))
    if "a number" in wanted:
        wanted.pop("a whole number", None)
    return f"{value!r:.99}: wanted {', or '.join(wanted)}"


def _wanted(found: ErrorDetails) -> str:
    kind, values = found["type"], found.get("ctx", {})
    if kind in _WANTED:
        return _WANTED[kind]
    if kind in ("literal_error", "union_tag_invalid"):
        return str(values.get("expected", values.get("expected_tags"))).replace("'", "")
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        whole = "constrained-int" in found["loc"]
        start = "a whole number" if whole else "a number"
        if name.endswith("length"):
            start = "a table" if isinstance(found["input"], dict) else "a list"
        return words.format(start, values[name])
    if kind == "model_type":
        fields = ", ".join(_classes()[values["class_name"]].model_fields)
        return f"a table {{KEY: VALUE, ...}} with the keys {fields}"
    return found["msg"]


def problems_in(error: ValidationError) -> str:
    """All problems that pydantic found, in one line: ``key: value: what is wrong; ...``."""
    return "; ".join(f"{key}: {found.text}" if (key := found.key()) else found.text for found in problems_of(error))


def require_known(name: str, given: object, known: Collection[str]) -> None:
    """Raise ValueError where an argument is none of the known words."""
    if given not in known:
        raise ValueError(f"{name}={given!r}: wanted {' or '.join(map(repr, known))}")
