"""Peak memory, and running out of memory, said with the batch that did not fit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from denskit.batch import Batch


@contextmanager
def memory_named(batch: Batch, advice: str) -> Iterator[None]:
    """Turn an allocation that failed inside, on any device, into a ValueError with the size of the batch.

    ``advice``: what to do, as a sentence without its full stop.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        reason = (str(error).strip().splitlines() or ["out of memory"])[0]
        raise ValueError(
            f"out of memory on a batch of {batch.num_systems} structures with {batch.num_atoms} atoms and "
            f"{batch.num_edges} edges: {advice}. (The system said: {reason[:300]})"
        ) from error


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out; on the CPU torch has no class of its own for it."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


def peak_memory(device: torch.device) -> float:
    """Largest memory used so far, MiB: of the device for CUDA, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if sys.platform == "win32":
        return float("nan")
    import resource  # not on Windows

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (2**20 if sys.platform == "darwin" else 2**10)
