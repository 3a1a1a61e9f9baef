"""Errors of the user's: one message, no traceback, exit code 2."""

from __future__ import annotations

import os
import warnings
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from denskit.cli.moved import moved_option

DEBUG_VARIABLE = "DENSKIT_DEBUG"
FOR_USERS = (ValueError, OSError, ModuleNotFoundError)  # the last: an extra that is not installed


class FriendlyGroup(TyperGroup):
    """A group of commands that prints a user's errors as one message.

    These are ValueError, OSError (missing files, a full disk) and ModuleNotFoundError (an extra not installed).
    ``DENSKIT_DEBUG=1`` lets the exception through with its traceback.  All other exceptions are defects of
    Denskit and keep their traceback.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            present = _present_form(error)
            if present is None and (os.environ.get(DEBUG_VARIABLE) or not isinstance(error, FOR_USERS)):
                raise
            _show(present or str(error))
            raise typer.Exit(2) from None


def _present_form(error: Exception) -> str | None:
    """The message for an option of an earlier version; None for all other errors."""
    # typer's error about an unknown option: its class is click's own or typer's copy of it, as typer's version has it
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if option is None or context is None:
        return None
    names: list[str] = []
    while context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    command = " ".join(names)
    present = moved_option(command, option)
    return present and f"denskit {command} {option} is now: {present}"


def _show(message: str) -> None:
    console = Console(stderr=True, soft_wrap=True)
    console.print(Text.assemble(("Error: ", "bold red"), (message, "red")))
    console.print(Text(f"({DEBUG_VARIABLE}=1 shows where)", style="dim"))


def show_warnings_plainly() -> None:
    """Print Python warnings for users as ``Warning: message``, without file and line."""

    def formatted(message: Warning | str, category: type[Warning], *where: Any, **_: Any) -> str:
        return f"Warning: {message}\n" if category is UserWarning else original(message, category, *where)

    original = warnings.formatwarning
    warnings.formatwarning = formatted
