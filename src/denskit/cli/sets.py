"""Structures on a command line, ``[NAME=]FILE ...``, and a table with a column for each set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Column

from denskit.cli.output import show_table, table_console

# name the files of a training, not how one is read
_OF_A_RUN = ("data.path=", "data.train=", "data.valid=", "data.test=")


def named_sets(given: Sequence[str]) -> dict[str, str]:
    """``["id=a.lmdb", "b.lmdb"]`` as ``{"id": "a.lmdb", "b": "b.lmdb"}``; a file without a name is called by its stem.

    Raises ValueError for an empty name or file, and for a name given twice.
    """
    sets: dict[str, str] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if alone := not equals or Path(text).exists():
            name, path = Path(text).stem, text
        if not (name and path):
            raise ValueError(f"{text!r}: write FILE or NAME=FILE, such as id=val_id.lmdb")
        if name.startswith("data.") and not alone:
            raise ValueError(f"{text}: give the file alone, {path}, or a name of your own, NAME={path}")
        if name in sets:
            raise ValueError(f"two sets are called {name}: {sets[name]} and {path}; give names: NAME=FILE")
        sets[name] = path
    return sets


def with_settings(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Files and settings (``data.KEY=VALUE``) of a list of arguments."""
    settings = [text for text in arguments if text.startswith("data.") and "=" in text and not Path(text).exists()]
    return [text for text in arguments if text not in settings], settings


def reading_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Settings ``data.KEY=VALUE`` by KEY.

    Raises ValueError for other arguments, unknown settings, and those that do not say how a file is read.
    """
    from denskit.training.load_config import data_config
    from denskit.training.reading_settings import reading_of

    for text in settings:
        if not text.startswith("data.") and (Path(text).exists() or "=" not in text):
            raise ValueError(f"{text!r}: one file is taken; after it stand settings data.KEY=VALUE, as data.units=eV")
    given = data_config(settings).model_dump(exclude_unset=True)
    reading_of(given)
    return given


def with_reading(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Files of a list of arguments, and how they are read."""
    _, settings = with_settings(arguments)
    settings = [text for text in settings if not text.startswith(_OF_A_RUN)]  # named_sets says what to write instead
    return [text for text in arguments if text not in settings], reading_settings(settings)


def places_of(arguments: Sequence[str]) -> dict[str, Any]:
    """Where the files of a run are now, by the setting without ``data.``; empty where other arguments are given."""
    if not all(text.startswith(_OF_A_RUN) and not Path(text).exists() for text in arguments):
        return {}
    from denskit.training.load_config import data_config

    return data_config(arguments).model_dump(exclude_unset=True)


def origin_of_file(file: str | Path) -> dict[str, str]:
    """Name and content of a file of structures, which a command that is resumed must find again."""
    from denskit.data.readers.formats import path_of
    from denskit.data.splits import identity_of

    return {"file": str(file), "file_sha256": identity_of(path_of(file))[1]}


def print_table(results: Mapping[str, Mapping[str, float]], *, title: str) -> None:
    """Errors by quantity (rows) and set (columns); where they are too wide for a terminal, names and numbers fold."""
    columns = [Column(escape(name), justify="right", overflow="fold") for name in results]
    rows = [
        (quantity, *(f"{result[quantity]:.4g}" if quantity in result else "" for result in results.values()))
        for quantity in dict.fromkeys(quantity for result in results.values() for quantity in result)
    ]
    show_table([Column("quantity", overflow="fold"), *columns], rows, table_console(), title=escape(title))
