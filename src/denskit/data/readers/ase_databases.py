"""ASE's databases: ``.db`` of SQLite, ``.json``.

A file of SQLite can hold queries: a view in the place of a table has rows without end, or makes values of any size.
Only plain tables are read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import ase
import ase.db

from denskit.data.readers.extxyz import unpacked
from denskit.reading.budget import PACKED, Unreadable, naming

_PLAIN = ("CREATE TABLE ", "CREATE INDEX ", "CREATE UNIQUE INDEX ")  # as SQLite writes it, whatever was typed
_OBJECTS = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
_COMPUTED = (
    "SELECT part.name || '.' || field.name FROM sqlite_master AS part, pragma_table_xinfo(part.name) AS field "
    "WHERE field.hidden OR field.dflt_value IS NOT NULL"
)
_MORE_TABLES = "SELECT value FROM information WHERE name = 'external_table_name'"


def is_database(path: Path) -> bool:
    """Whether a file is a database of ASE by its name, packed or not."""
    return unpacked(path).suffix.lower() in (".db", ".json")


def rows(path: Path) -> Iterator[ase.Atoms]:
    """The structures of a database; one of JSON may be packed."""
    kind = unpacked(path).suffix.lower()[1:]
    with ExitStack() as opened:
        packed = path.suffix in PACKED
        place = opened.enter_context(PACKED[path.suffix](path, "rt", encoding="utf-8")) if packed else path
        for row in opened.enter_context(ase.db.connect(place, type=kind)).select():
            atoms = row.toatoms()
            atoms.info = {**row.key_value_pairs, **row.data}
            yield atoms


def check_tables(path: Path) -> None:
    """Raise Unreadable for a database of SQLite that is damaged, or in which reading would run what the file says.

    A database of JSON has no tables.
    """
    if path.suffix.lower() != ".db":
        return
    address = f"{path.absolute().as_uri()}?mode=ro"
    with (
        naming(path, "cannot be read as a database of ASE: it is truncated, or no file of SQLite"),
        closing(sqlite3.connect(address, uri=True)) as file,
    ):
        objects = list(file.execute(_OBJECTS))
        odd = [name for name, sql in objects if not sql.startswith(_PLAIN)]
        odd += [] if odd else [name for (name,) in file.execute(_COMPUTED)]
        if odd:
            raise _not_plain(path, f"{odd[0]!r:.99} is a view, a trigger or computed")
        (state,) = next(file.execute("PRAGMA quick_check(1)"))  # a page used twice can give rows without end
        if state != "ok":
            raise Unreadable(f"{path} is a damaged file of SQLite ({state:.99}). Copy or download it again")
        names = {name for name, _ in objects}
        more = [name for (name,) in file.execute(_MORE_TABLES)] if "information" in names else []
        for name in more:  # ASE puts them into its queries as they are, for each row
            if name not in names or not name.isidentifier() or more.count(name) > 1:
                raise _not_plain(path, f"its external table {name!r:.99} is missing, or named twice")


def _not_plain(path: Path, found: str) -> Unreadable:
    return Unreadable(
        f"{path}: {found}, and only plain tables are read, as ase.db writes them. If you trust the file, write its "
        "structures into a new one with ase.db"
    )
