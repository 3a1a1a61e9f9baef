"""Earlier forms of commands and options: they fail with the present form in the message."""

from __future__ import annotations

from typing import Annotated

import typer

# command, or command and option -> the present form
MOVED = {
    "inspect": "denskit info RUN|MODEL",
    "data inspect": "denskit info FILE [data.units=kcal/mol ...]",
    "md --stability": "denskit stability RUN|MODEL FILE --time PS --replicas N",
    "evaluate --stability": "denskit stability RUN --time PS",
    "evaluate --data": "denskit evaluate RUN|MODEL [NAME=]FILE ...",
    "predict --data": "denskit predict RUN|MODEL NAME=FILE ... -o OUTPUT",
    "train --device": "denskit train PRESET device=cpu",
    "train --seed": "denskit train PRESET seed=1",
    "train --deterministic": "denskit train PRESET deterministic=true",
    "data convert --set": "denskit data convert FILE ... -o FOLDER data.KEY=VALUE",
    "data generate --out": "denskit data generate MOLECULE --output FILE",
}


class Moved(Exception):
    """A command of an earlier version; the message has its present form."""


def moved_option(command: str, option: str) -> str | None:
    """The present form of an option that a command no longer has; None for one that it never had."""
    return MOVED.get(f"{command} {option}")


def add_moved_commands(app: typer.Typer, prefix: str = "") -> None:
    """Give ``app`` hidden commands for the earlier ones below ``prefix``; each fails with its present form."""
    for name in MOVED:
        if name.startswith(prefix) and " " not in name.removeprefix(prefix):
            settings = {"ignore_unknown_options": True}
            app.command(name.removeprefix(prefix), hidden=True, context_settings=settings)(_saying(MOVED[name], name))


def _saying(present: str, name: str):  # type: ignore[no-untyped-def]
    def moved(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
        raise Moved(f"denskit {name} is now: {present}")

    return moved
