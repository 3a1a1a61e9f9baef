"""Warnings that name the user's line, however deep in Denskit they arise, and errors of others in few words."""

from __future__ import annotations

import sys
import warnings


def warn(text: str) -> None:
    """Warn at the line that called into this package, perhaps through torch or ASE, inside or outside of it."""
    frame, level, outside, inside = sys._getframe(1), 2, 2, True
    while frame.f_back is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        inside = package == "denskit" or (inside and package in ("ase", "torch"))
        frame, level = frame.f_back, level + 1
        outside = level if inside else outside
    warnings.warn(text, stacklevel=outside)


def first_line(error: BaseException) -> str:
    """The start of what an exception of another library says; its class where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
