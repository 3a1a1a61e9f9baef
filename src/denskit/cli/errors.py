"""The way every call of the program ends: exit code, one message for an error of the user's, no traceback.

0: done.  1: bad input or a bad result.  2: the command line cannot be understood.  3: another process of the training
has ended.  128 + n: a signal n, which was sent to it (130: Ctrl-C, 129: SIGHUP, 138: SIGUSR1, 143: SIGTERM).
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from denskit.cli.output import OUTPUT, complain, give, printable, with_common_options
from denskit.files import NO_ROOM, cache_folder
from denskit.runtime.interrupt import STOPPING, raised

DEBUG_VARIABLE = "DENSKIT_DEBUG"
FOR_USERS = (ValueError, OSError, ModuleNotFoundError)  # the last: an extra that is not installed
FAILED, LOST_PROCESS, INTERRUPTED = 1, 3, 130
HINT = "(--verbose shows where)"  # after messages


class FriendlyGroup(TyperGroup):
    """A group of commands that prints a user's errors as one message.

    These are ValueError, OSError (missing files, a full disk) and ModuleNotFoundError (an extra not installed).
    ``--verbose`` or ``DENSKIT_DEBUG=1`` lets the exception through with its traceback.  All other exceptions are
    defects of Denskit and keep their traceback.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        OUTPUT.begin()
        try:
            return super().invoke(ctx)
        except typer.Exit:
            raise
        except KeyboardInterrupt as stop:
            complain("Stopped")
            raise typer.Exit(128 + stop.args[0] if stop.args else INTERRUPTED) from None
        except Exception as error:
            if isinstance(error, BrokenPipeError) and _nobody_reads():
                raise typer.Exit(FAILED) from None
            message = _in_words(error)
            give(error=message)
            if not isinstance(error, FOR_USERS) or OUTPUT.verbose or os.environ.get(DEBUG_VARIABLE):
                raise
            _show(message)
            failed = LOST_PROCESS if type(error) is ConnectionError else FAILED  # a broken pipe is a subclass
            raise typer.Exit(failed) from None
        finally:
            _end()


class Program(FriendlyGroup):
    """The verbs of ``denskit``, with the options that all of them have."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command.  A batch system's signals end it as Ctrl-C does: no file stays half-written."""
        with raised([number for number in STOPPING if signal.getsignal(number) == signal.SIG_DFL]):
            return super().invoke(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A verb, with the options of every verb."""
        command = super().get_command(ctx, cmd_name)
        return command and with_common_options(command)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that is asked for; one that a group has is named with its group."""
        name = args[0]
        groups = [group for group, command in self.commands.items() if name in getattr(command, "commands", {})]
        if groups and name not in self.commands:
            ctx.fail(f"No such command {name!r}. Did you mean {' or '.join(f'denskit {g} {name}' for g in groups)}?")
        return super().resolve_command(ctx, args)


def _end() -> None:
    """Print the results that are wanted as JSON.  Raises typer.Exit where standard output cannot be written to."""
    failed_before = sys.exc_info()[0] is not None
    try:
        OUTPUT.end()
    except OSError as error:
        if not (isinstance(error, BrokenPipeError) and _nobody_reads()):
            _write_nowhere()
            if not failed_before:
                _show(f"standard output: {_of_system(error)}")
        raise typer.Exit(FAILED) from None


def _write_nowhere() -> None:
    """Let what was printed end in nothing, or Python complains once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _nobody_reads() -> bool:
    """Whether the reader of standard output has ended, as ``| head`` does; then nothing more is written to it."""
    if not hasattr(select, "poll"):
        return False
    watch = select.poll()
    watch.register(1)
    closed = any(event & select.POLLERR for _, event in watch.poll(0))
    if closed:
        _write_nowhere()
    return closed


def _in_words(error: Exception) -> str:
    """The message of an error; of wrong settings and of the system without the words of pydantic and Python around."""
    if type(error).__name__ == "ValidationError":  # pydantic is not imported for commands without settings
        from pydantic import ValidationError

        from denskit.settings import problems_of

        if isinstance(error, ValidationError):  # of settings that are options
            found = [(problem.key().replace("_", "-"), problem.text) for problem in problems_of(error)]
            return "; ".join(f"--{key}: {text}" if key else text for key, text in found)
    if isinstance(error, typer.Abort):
        return "not confirmed, so nothing was done; --force does not ask"
    if isinstance(error, OSError) and error.strerror and (error.filename or error.errno in NO_ROOM):
        return f"{error.filename or 'standard output'}: {_of_system(error)}{_of_the_cache(error)}"
    return str(error)


def _of_system(error: OSError) -> str:
    """What the system says, as of an absent file, with advice where a disk is full."""
    text = str(error.strerror)
    advice = "; it could not be written. Make room and repeat the command, with --resume where it has that"
    return f"{text[0].lower()}{text[1:]}{advice if error.errno in NO_ROOM else ''}"


def _of_the_cache(error: OSError) -> str:
    """What the folder is, where a file of the cache cannot be written: its place is nowhere on the command line."""
    place = error.filename and Path(os.fsdecode(error.filename)).absolute()
    if not place or error.errno == errno.ENOENT or not place.is_relative_to(cache_folder().absolute()):
        return ""
    return f". This is in the cache folder, {cache_folder()}: DENSKIT_CACHE=FOLDER before the command names another"


def _show(message: str) -> None:
    console = Console(file=OUTPUT.err, soft_wrap=True)
    console.print(Text.assemble(("Error: ", "bold red"), (printable(message), "red")))
    console.print(Text(HINT, style="dim"))
