"""The number of threads of a training, and of evaluations, on a CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

EDGES_PER_THREAD = 1_000  # in a batch; with fewer, threads wait for each other (docs/processes.md)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads_for(edges: int, device: torch.device) -> Iterator[str]:
    """Use as many threads in the block as batches of so many edges can keep busy; yields the number and the reason.

    OMP_NUM_THREADS, where it is set, decides alone.
    """
    before = torch.get_num_threads()
    if device.type != "cpu" or "OMP_NUM_THREADS" in os.environ:
        yield f"threads: {before}" + (" (OMP_NUM_THREADS)" if "OMP_NUM_THREADS" in os.environ else "")
        return
    threads = min(cores(), max(1, edges // EDGES_PER_THREAD))
    said = f"threads: {threads} of {cores()}, one for each {EDGES_PER_THREAD:,} of {edges:,} edges in a batch"
    with _using(threads):
        yield said + ("; --processes uses more cores" if threads < cores() else "")


def threads_evaluating(edges: int, device: torch.device) -> int:
    """Threads that the evaluation of so many edges keeps busy, at most torch's own number.

    More threads would wait for each other: on an idle machine they gain nothing, and on a busy one each waits for its
    turn.  OMP_NUM_THREADS, where it is set, decides alone.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or "OMP_NUM_THREADS" in os.environ:
        return threads
    return min(threads, max(1, edges // EDGES_PER_THREAD))


@contextmanager
def few_threads(edges: int, device: torch.device) -> Iterator[None]:
    """Use :func:`threads_evaluating` in the block."""
    with _using(threads_evaluating(edges, device)):
        yield


@contextmanager
def _using(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
