"""What a user sees when something is wrong: one message, no traceback, exit code 2."""

from __future__ import annotations

import os
import warnings
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

DEBUG_VARIABLE = "DENSKIT_DEBUG"


class FriendlyGroup(TyperGroup):
    """A group of commands that prints a user's errors as one message.

    These are ValueError, OSError (missing files, a full disk) and ModuleNotFoundError (an extra not installed).
    ``DENSKIT_DEBUG=1`` lets the exception through with its traceback.  Every other exception is a defect of ours and
    always keeps its traceback.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except (ValueError, OSError, ModuleNotFoundError) as error:
            if os.environ.get(DEBUG_VARIABLE):
                raise
            console = Console(stderr=True, soft_wrap=True)
            console.print(Text.assemble(("Error: ", "bold red"), (str(error), "red")))
            console.print(Text(f"({DEBUG_VARIABLE}=1 shows where)", style="dim"))
            raise typer.Exit(2) from None


def show_warnings_plainly() -> None:
    """Print Python warnings for users as ``Warning: message``, without file and line."""

    def formatted(message: Warning | str, category: type[Warning], *where: Any, **_: Any) -> str:
        return f"Warning: {message}\n" if category is UserWarning else original(message, category, *where)

    original = warnings.formatwarning
    warnings.formatwarning = formatted
