"""Several sets of structures on a command line, and a table with a column for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table


def named_sets(given: Sequence[str]) -> dict[str, str]:
    """``["id=a.lmdb", "ood_ads=b.lmdb"]`` as a dict.  Raises ValueError for another form and for a name given twice."""
    sets: dict[str, str] = {}
    for pair in given:
        name, equals, path = pair.partition("=")
        if not (name and equals and path):
            raise ValueError(f"{pair!r}: write NAME=PATH, such as id=val_id.lmdb")
        if name in sets:
            raise ValueError(f"{name} is given twice: {sets[name]} and {path}")
        sets[name] = path
    return sets


def print_table(results: Mapping[str, Mapping[str, float]], *, title: str) -> None:
    """Errors by quantity (rows) and set (columns)."""
    table = Table("quantity", title=title)
    for name in results:
        table.add_column(name, justify="right")
    for quantity in dict.fromkeys(quantity for result in results.values() for quantity in result):
        table.add_row(quantity, *(f"{r[quantity]:.4g}" if quantity in r else "" for r in results.values()))
    Console().print(table)
