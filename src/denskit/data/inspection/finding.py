"""The finding of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from denskit.data.structure_arrays import numbered

Severity = Literal["problem", "note"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check found, in words for a user."""

    severity: Severity
    found: str  # with numbers
    means: str = ""  # the most likely cause
    advice: str = ""  # the remedy, with the option
    frames: tuple[int, ...] = ()  # numbers of all frames concerned, counted from 0
    where: str = ""  # these frames in words, where numbers alone do not tell: those of several files

    def __str__(self) -> str:
        """One line."""
        where = f" ({self.where or numbered(np.array(self.frames), counted=False)})" if self.frames else ""
        means = f": {self.means}" if self.means else ""
        advice = f". {self.advice}" if self.advice else ""
        return f"{self.severity}: {self.found}{where}{means}{advice}"
