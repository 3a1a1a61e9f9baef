"""What a check has to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SHOWN = 5  # frames that are named one by one


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check found, in words for a user."""

    severity: Literal["problem", "note"]
    found: str  # with numbers
    means: str = ""  # most likely
    advice: str = ""  # what to do, with the option
    frames: tuple[int, ...] = ()  # numbers of all frames concerned, counted from 0

    def __str__(self) -> str:
        """One line."""
        where = f" ({named(self.frames)})" if self.frames else ""
        means = f": {self.means}" if self.means else ""
        advice = f". {self.advice}" if self.advice else ""
        return f"{self.severity}: {self.found}{where}{means}{advice}"


def named(frames: Sequence[int]) -> str:
    """``frame 7`` or ``frames 3, 4, 9, 12, 15, ..., 40 in all``."""
    if len(frames) == 1:
        return f"frame {frames[0]}"
    more = f", ..., {len(frames):,} in all" if len(frames) > SHOWN else ""
    return f"frames {', '.join(str(frame) for frame in frames[:SHOWN])}{more}"
