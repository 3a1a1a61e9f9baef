"""Data-parallel training with ``torch.distributed``: one process a device, started by torchrun or by Denskit.

The trainer sums gradients itself, without DDP: losses are normalised by counts over all processes before the backward
pass, so the sum of the gradients is the gradient of one process with the whole batch.
"""

from __future__ import annotations

import atexit
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from denskit.runtime.device import choose_device

T = TypeVar("T")
_REAPED = 1.0  # s, after which a killed process is gone from the table of processes


@dataclass(frozen=True)
class Processes:
    """This process among the others."""

    rank: int
    count: int
    device: torch.device
    peers: tuple[tuple[str, int], ...] = ()  # host and process id of each

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def add(self, tensor: Tensor) -> Tensor:
        """Replace the tensor, in place, by its sum over the processes."""
        self.begin_to_add(tensor)()
        return tensor

    def begin_to_add(self, tensor: Tensor) -> Callable[[], None]:
        """Begin :meth:`add` in the background; the returned function waits for its end."""
        if self.count == 1:
            return lambda: None
        with self._loss_named():
            work = dist.all_reduce(tensor, async_op=True)

        def end() -> None:
            with self._loss_named():
                work.wait()

        return end

    def gather(self, value: T) -> list[T]:
        """The values of all processes in order; on other processes than the first only their own."""
        if self.count == 1:
            return [value]
        values: list[T | None] = [None] * self.count
        with self._loss_named():
            dist.gather_object(value, values if self.is_first else None)
        return values if self.is_first else [value]  # type: ignore[return-value]

    @torch.no_grad()
    def copy_from(self, rank: int, tensors: Iterable[Tensor]) -> None:
        """Replace the tensors, in place, by those of one process."""
        if self.count > 1:
            with self._loss_named():
                for tensor in tensors:
                    dist.broadcast(tensor.detach(), src=rank)

    def wait(self) -> None:
        """Wait for all processes."""
        if self.count > 1:
            with self._loss_named():
                dist.barrier()

    @contextmanager
    def _loss_named(self) -> Iterator[None]:
        """Turn the error of an exchange that broke off into ConnectionError with the process that has ended."""
        try:
            yield
        except RuntimeError as error:
            time.sleep(_REAPED)
            gone = [
                f"process {rank} ({process_id} on {host})"
                for rank, (host, process_id) in enumerate(self.peers)
                if host == socket.gethostname() and not _is_running(process_id)
            ]
            found = ", ".join(gone) or "one on another machine"
            raise ConnectionError(
                f"process {self.rank} of {self.count} (counted from 0) lost {found}, which has ended: out of memory, "
                f"killed, or see its own message. Continue with the same command and --resume. ({str(error)[:200]})"
            ) from error


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def join_processes(device: str) -> Processes:
    """Join the processes of torchrun (WORLD_SIZE, RANK, LOCAL_RANK); without torchrun, a single process.

    device: "auto", "cpu", "cuda", "cuda:1"; torchrun assigns CUDA devices by LOCAL_RANK.  A CUDA device becomes
    torch's current one.  Raises ValueError for a
    device that is not there.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")) if count > 1 else None)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)  # what names no device, as streams and random numbers, is of this one
    if count == 1:
        return Processes(rank=0, count=1, device=chosen)
    if not dist.is_initialized():
        # once for all trainings of this job: a second group would wait forever at the addresses of the first
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
        atexit.register(dist.destroy_process_group)
    if dist.get_rank():
        warnings.simplefilter("ignore", UserWarning)  # the first process says the same
    peers: list[tuple[str, int]] = [("", 0)] * count
    dist.all_gather_object(peers, (socket.gethostname(), os.getpid()))
    return Processes(rank=dist.get_rank(), count=count, device=chosen, peers=tuple(peers))
