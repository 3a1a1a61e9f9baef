"""Peak memory, and errors of batches larger than memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from denskit.batch import Batch
from denskit.runtime.warning import first_line


@contextmanager
def memory_named(batch: Batch, advice: str) -> Iterator[None]:
    """Turn a failed allocation in the block, on any device, into ValueError with the size of the batch.

    ``advice``: a sentence without its full stop.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise ValueError(
            f"out of memory on a batch of {batch.num_systems} structures with {batch.num_atoms} atoms and "
            f"{batch.num_edges} edges: {advice}. (The system said: {first_line(error)})"
        ) from error


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception is of a failed allocation; torch has no class for it on the CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


def peak_memory(device: torch.device) -> float:
    """Peak memory in MiB, of the device for CUDA, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if sys.platform == "win32":
        return float("nan")
    import resource  # not on Windows

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (2**20 if sys.platform == "darwin" else 2**10)
