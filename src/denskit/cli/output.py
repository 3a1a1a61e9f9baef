"""How all verbs speak: ``--json``, ``--quiet`` and ``--verbose``.

Verbs print for people as they like, and hand their results to :func:`give`.  With ``--json`` standard output
holds one JSON object, these results, and the words for people go to standard error; with ``--quiet`` only the lines
that are a warning, a problem or an error do.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from functools import cache
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Column, Table

PIPE_COLUMNS = 200  # of tables that no terminal shows
_URGENT = re.compile(r"(.+: )?(warning|problem|error): ", re.IGNORECASE)  # perhaps after what it is about
_STYLES = re.compile("\x1b\\[[0-9;?]*[a-zA-Z]")  # of a terminal; FORCE_COLOR writes them elsewhere, too
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def speaks() -> bool:
    """Whether this is the one of torchrun's processes that speaks."""
    return os.environ.get("RANK", "0") == "0"


class Urgent(io.TextIOBase):
    """What is printed with ``--quiet``: of all lines those that begin as a warning, a problem or an error, and the
    indented ones below them.  ``stream`` gets them."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream, self._rest, self._passes = stream, "", False  # None: standard error is closed

    def writable(self) -> bool:
        """True."""
        return True

    def fileno(self) -> int:
        """That of the stream: for processes, which are quiet themselves."""
        if self._stream is None:
            raise OSError("standard error is closed")
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Pass on what is urgent, when its line has ended."""
        *lines, rest = (self._rest + text).split("\n")
        self._rest = rest.rpartition("\r")[2]  # a bar begins its line again and again
        for line in lines:
            plain = _STYLES.sub("", line.rpartition("\r")[2])
            self._passes = bool(_URGENT.match(plain)) or (self._passes and plain.startswith(" "))
            if self._passes and self._stream is not None:
                self._stream.write(f"{plain}\n")
        return len(text)


class Output:
    """The output of one call of the program."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A new call: for people, with nothing found yet."""
        self.as_json = self.quiet = self.verbose = False
        self.found: dict[str, Any] = {}
        self.out, self.err = sys.stdout, sys.stderr
        if isinstance(self.out, io.TextIOWrapper):  # not every encoding has Å; standard error replaces letters anyway
            self.out.reconfigure(errors="replace")
        self._redirected = ExitStack()

    def end(self) -> None:
        """Leave standard output and error as they were, and print the results where they are wanted as JSON."""
        self._redirected.close()
        if self.as_json:
            encoding = getattr(self.out, "encoding", None) or ""
            whole = "utf" not in encoding.lower()  # \u00c5 is read back as Å, and ? is not
            print(json.dumps(_plain(self.found), ensure_ascii=whole, indent=2), file=self.out)
        if self.out is not None:  # closed by the shell, >&-
            self.out.flush()  # a full disk is an error here, and not when Python ends

    def use_json(self, wanted: bool) -> None:
        """``--json``."""
        if wanted:
            self.as_json = True
            if sys.stdout is self.out:
                self._redirected.enter_context(redirect_stdout(sys.stderr))

    def be_quiet(self, wanted: bool) -> None:
        """``--quiet``."""
        if wanted:
            self.quiet, urgent = True, Urgent(self.err)
            self._redirected.enter_context(redirect_stdout(urgent))
            self._redirected.enter_context(redirect_stderr(urgent))
            self._redirected.callback(urgent.write, "\n")  # the end of a last line without one

    def be_verbose(self, wanted: bool) -> None:
        """``--verbose``: how data were read and models loaded, and the traceback of an error."""
        if wanted:
            self.verbose = True
            log, handler = logging.getLogger("denskit"), logging.StreamHandler(self.err)
            log.addHandler(handler)
            log.setLevel(logging.INFO)
            self._redirected.callback(log.setLevel, logging.NOTSET)
            self._redirected.callback(log.removeHandler, handler)

    def show_warnings_plainly(self) -> None:
        """Print Python warnings for users as ``Warning: message``, without file and line, also with ``--quiet``.

        Each is printed once: a verb may load a model several times.
        """
        printed: set[str] = set()

        def shown(message: Warning | str, category: type[Warning], *where: Any, **_: Any) -> None:
            plain = printable(f"Warning: {message}\n")
            text = plain if category is UserWarning else warnings.formatwarning(message, category, *where[:2])
            if text not in printed:
                printed.add(text)
                print(text, end="", file=self.err or sys.stderr)  # None where the shell has closed it, 2>&-

        self._redirected.callback(setattr, warnings, "showwarning", warnings.showwarning)
        warnings.showwarning = shown


OUTPUT = Output()


def give(**found: Any) -> None:
    """Results of the verb, for ``--json``: numbers, texts, paths, arrays, and lists and dicts of these."""
    OUTPUT.found |= found


def printable(text: str) -> str:
    """The text with its control characters spelt out: names and values in files must not steer the terminal."""
    return text.translate(_CONTROLS)


def complain(text: str) -> None:
    """Say why the verb, or a part of its work, fails; ``--quiet`` does not silence it."""
    print(printable(text), file=OUTPUT.err)


def table_console() -> Console:
    """A console for tables: as wide as the terminal; wide enough to cut nothing in a file or pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, PIPE_COLUMNS))


def show_table(
    columns: Sequence[Column | str], rows: Iterable[Iterable[str]], console: Console | None = None, **style: Any
) -> None:
    """Print a table; ``console``: None for a usual one; ``style``: further arguments of :class:`rich.table.Table`."""
    table = Table(*columns, **style)
    for row in rows:
        table.add_row(*map(printable, row))
    (console or Console()).print(table)


def _option(*names: str, to: Callable[[bool], None], help: str) -> Any:
    def called(value: bool) -> None:
        to(value)

    return typer.Option(*names, callback=called, expose_value=False, help=help, rich_help_panel="Output")


def _common(
    as_json: Annotated[bool, _option("--json", to=OUTPUT.use_json, help="Print the results as JSON.")] = False,
    quiet: Annotated[
        bool, _option("--quiet", "-q", to=OUTPUT.be_quiet, help="Print errors and warnings only.")
    ] = False,
    verbose: Annotated[
        bool,
        _option("--verbose", "-v", to=OUTPUT.be_verbose, help="Also how data are read, models loaded; tracebacks."),
    ] = False,
) -> None:
    """The options of every verb."""


@cache
def common_options() -> list[Any]:
    """The options of every verb, as click knows them."""
    made = typer.Typer(add_completion=False)
    made.command()(_common)
    return list(typer.main.get_command(made).params)


def with_common_options(command: Any) -> Any:
    """The command, and all below it, with the options of every verb."""
    for below in getattr(command, "commands", {}).values():
        with_common_options(below)
    leaf = not hasattr(command, "commands") or command.invoke_without_command
    if leaf and common_options()[0] not in command.params:
        command.params.extend(common_options())
    return command


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN
    return value if isinstance(value, str | int | float | bool | None) else str(value)
