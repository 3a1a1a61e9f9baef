"""How far the training in a folder has come, by its log and its lock: for lists of runs, and for users of its model."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Literal

from denskit.files import is_locked

RunState = Literal["running", "finished", "failed", "interrupted"]
LOG = "train.log"  # in the folder
STEP = re.compile(r"step (\d+)/(\d+)\b")  # begins the lines of numbers
_DONE = re.compile(r"step (\d+)/(\d+)\b|stopped after step (\d+) of (\d+)\b")
_LAST = 12  # lines of a log in which its end is told
_STAMP = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ")  # before each message


def state_of(folder: Path) -> RunState:
    """The state by the lock and the last line of the log.  Raises FileNotFoundError where there is no folder."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: the folder of this run is gone")
    if is_locked(folder):
        return "running"
    ends = {"finished:": "finished", "stopped: ": "failed"}
    for line in reversed(lines_of(folder)[-_LAST:]):  # an error may have several lines
        for start, state in ends.items():
            if line.startswith(start):
                return state  # type: ignore[return-value]
        if STEP.match(line) or line.startswith("resumed after step"):
            break
    return "interrupted"


def lines_of(folder: Path) -> list[str]:
    """The lines of the log without their times, which only the first line of a message has."""
    if not (folder / LOG).is_file():
        return []
    return [_STAMP.sub("", line) for line in (folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()]


def progress_of(folder: Path) -> tuple[int, int]:
    """Steps done and to do, of the last line of numbers, or of the one that says where it stopped; zeros before."""
    found = next((match for line in reversed(lines_of(folder)) if (match := _DONE.match(line))), None)
    return (int(found[1] or found[3]), int(found[2] or found[4])) if found else (0, 0)


def unfinished(folder: Path) -> str:
    """Why the model in a folder is not the result of its training yet, in words; empty where it is, or is no run's.

    A training that a budget has made shorter is finished at its own end.
    """
    done, wanted = progress_of(folder)
    if done >= wanted or (state := state_of(folder)) == "finished":
        return ""
    steps = f"at step {done:,} of {wanted:,}"
    if state == "running":
        return f"{folder}: this run still trains ({steps}), so its model is not the final one"
    return (
        f"{folder}: this run ended early ({steps}), so its model is not the final one. To go on: denskit train "
        f"{shlex.quote(str(folder))} --resume"
    )
