"""The program, called as from a shell but in this process."""

from __future__ import annotations

from click.testing import Result
from typer.testing import CliRunner

from denskit.cli import app


def denskit(*arguments: object, answer: str = "") -> Result:
    """What the program prints and its exit code; ``answer`` is typed at its questions."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=answer)
