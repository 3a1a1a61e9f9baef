"""Memory for time: parts of a computation that the backward does again instead of keeping what lay in between."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def in_chunks(function: Callable[[Tensor], Tensor], x: Tensor, size: int) -> Tensor:
    """``function(x)`` for a function that treats the rows of x independently, ``size`` rows at a time.

    Whatever the function has in memory between its input and its output it has for one chunk only, in the forward and,
    since the backward computes it again, there too.  The function must be deterministic.
    """
    if torch.is_grad_enabled():
        parts = [checkpoint(function, part, use_reentrant=False, preserve_rng_state=False) for part in x.split(size)]
    else:
        parts = [function(part) for part in x.split(size)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
