"""How far a long command is, in words and bars."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """``2h05m``, ``3m20s``, ``12s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
