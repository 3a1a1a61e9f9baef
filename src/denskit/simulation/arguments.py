"""Arguments of the functions that users call: errors that name the class of settings, texts as paths, structures."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import ase

from denskit.data.frames import frames_of

P = ParamSpec("P")
R = TypeVar("R")


def with_settings(name: str, wanted: type, example: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator of functions whose argument ``name`` is a ``wanted``, or None where that is the default.

    They raise a TypeError for anything else and for unknown keywords, with ``example``, which imports and makes one.
    """

    def checking(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        can_miss = signature.parameters[name].default is None

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                given = signature.bind(*args, **kwargs).arguments.get(name)
            except TypeError as error:
                raise TypeError(f"{error}; {name} is a {wanted.__name__}: {example}") from None
            if not isinstance(given, wanted) and not (given is None and can_miss):
                raise TypeError(f"{name}: found {type(given).__name__}; wanted a {wanted.__name__}: {example}")
            return function(*args, **kwargs)

        return checked

    return checking


class AsPath:
    """A field of a dataclass that takes a text or a path, and is a path."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Path:
        if instance is None:
            raise AttributeError(self.name)  # so that the field has no default
        path: Path = instance.__dict__[self.name]
        return path

    def __set__(self, instance: Any, value: str | Path) -> None:
        instance.__dict__[self.name] = Path(value)


def atoms_of_user(given: object) -> list[ase.Atoms]:
    """One structure or several as a list.  Raises ValueError as :func:`denskit.data.frames.frames_of`."""
    return frames_of([given] if isinstance(given, ase.Atoms) else given)
