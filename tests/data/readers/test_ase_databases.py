"""Databases of ASE that hold more than plain tables, or pages that lead back, are refused before ASE reads them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import ase.db
import pytest
from ase.build import molecule

from denskit.data import read_file
from denskit.reading.budget import Unreadable

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"


def written(path: Path, rows: int = 1) -> Path:
    """A database of water."""
    with ase.db.connect(path) as file:
        for _ in range(rows):
            file.write(molecule("H2O"))
    return path


def changed(path: Path, *statements: str) -> Path:
    """A database in which statements of SQL have run."""
    with closing(sqlite3.connect(written(path))) as file:
        for statement in statements:
            file.execute(statement)
        file.commit()
    return path


def with_view(path: Path, query: str) -> Path:
    """A database with a query in the place of its table; ``{columns}``: those of the table."""
    changed(path, "ALTER TABLE systems RENAME TO old")
    with closing(sqlite3.connect(path)) as file:
        columns = [f"old.{name}" for (name,) in file.execute("SELECT name FROM pragma_table_info('old')")]
        file.execute(f"CREATE VIEW systems AS {query.format(columns=', '.join(columns))}")
        file.commit()
    return path


def with_loop(path: Path, levels: int = 12, children: int = 200) -> Path:
    """A database with pages of a table that each name the next one many times: a few pages, rows without end."""
    changed(path, "CREATE TABLE filler (x)", *["INSERT INTO filler VALUES (zeroblob(4000))"] * (levels + 2))
    with closing(sqlite3.connect(path)) as file:
        (root,) = file.execute("SELECT rootpage FROM sqlite_master WHERE name = 'information'").fetchone()
        (last,) = file.execute("PRAGMA page_count").fetchone()
    raw, size = bytearray(path.read_bytes()), 4096
    leaf = raw[(root - 1) * size : root * size]
    chain = [root, *range(last - levels + 1, last + 1)]
    for page, below in pairwise(chain):
        cells = b"".join(below.to_bytes(4, "big") + bytes([number % 100]) for number in range(children))
        begin = size - len(cells)
        head = b"\x05\0\0" + children.to_bytes(2, "big") + begin.to_bytes(2, "big") + b"\0" + below.to_bytes(4, "big")
        places = b"".join((begin + 5 * number).to_bytes(2, "big") for number in range(children))
        raw[(page - 1) * size : page * size] = (head + places).ljust(begin, b"\0") + cells
    raw[(chain[-1] - 1) * size : chain[-1] * size] = leaf
    path.write_bytes(raw)
    return path


def test_whole_databases_are_read(tmp_path: Path) -> None:
    assert len(read_file(written(tmp_path / "a ?#%.db", rows=3))[0]) == 3
    external = tmp_path / "external.db"
    with ase.db.connect(external) as file:
        file.write(molecule("H2O"), external_tables={"moments": {"a": 1.0}})
    assert len(read_file(external)[0]) == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda path: with_view(path, f"{ENDLESS} SELECT {{columns}} FROM old, n WHERE n.x < 0"),
            "'systems' is a view",
        ),
        (lambda path: with_view(path, f"{ENDLESS} SELECT {{columns}} FROM old, n"), "'systems' is a view"),
        (
            lambda path: changed(path, "CREATE TRIGGER t AFTER INSERT ON keys BEGIN SELECT 1; END"),
            "'t' is a view, a tr",
        ),
        (lambda path: changed(path, "CREATE TABLE a (b, c AS (zeroblob(900000000)))"), "'a.c' is .* computed"),
        (lambda path: changed(path, "CREATE TABLE a (b DEFAULT (zeroblob(900000000)))"), "'a.b' is .* computed"),
        (
            lambda path: changed(
                path, f"INSERT INTO information VALUES ('external_table_name', '({ENDLESS} SELECT x AS id FROM n)')"
            ),
            "external table '.WITH .* is missing",
        ),
        (
            lambda path: changed(path, *["INSERT INTO information VALUES ('external_table_name', 'keys')"] * 2),
            "external table 'keys' is missing, or named twice",
        ),
        (with_loop, "damaged file of SQLite"),
    ],
    ids=["endless", "endless rows", "trigger", "computed", "default", "query for a name", "twice", "loop"],
)
def test_files_that_hold_queries_are_refused(make: Callable[[Path], Path], said: str, tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=rf"a\.db.*{said}"):
        read_file(make(tmp_path / "a.db"))


def test_other_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(Unreadable, match=r"a\.db cannot be read as a database of ASE: .*not a database"):
        read_file(path)


def test_a_row_without_positions_is_named(tmp_path: Path) -> None:
    path = changed(tmp_path / "mine.db", "UPDATE systems SET positions = NULL")
    with pytest.raises(
        ValueError, match=r"mine.db: all atoms are at one place \(the record holds no positions\) in frame 0"
    ):
        read_file(path)


def test_damage_is_told_in_one_line(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.db", rows=40)
    content = bytearray(path.read_bytes())
    content[5 * 4096 : 6 * 4096] = bytes([7]) * 4096
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"mine.db is a damaged file of SQLite .*Page") as raised:
        read_file(path)
    assert "\n" not in str(raised.value)
