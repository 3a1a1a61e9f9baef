"""Data-parallel training with ``torch.distributed``: started by torchrun, one process a device.

The trainer sums gradients itself, without DDP: losses are normalised by counts over all processes before the backward
pass, so the sum of the gradients is the gradient of one process with the whole batch.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from denskit.runtime.device import choose_device

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process among the others."""

    rank: int
    count: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def add(self, tensor: Tensor) -> Tensor:
        """Replace the tensor, in place, by its sum over the processes."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, value: T) -> list[T]:
        """The values of all processes in order; on other processes than the first only their own."""
        if self.count == 1:
            return [value]
        values: list[T | None] = [None] * self.count
        dist.gather_object(value, values if self.is_first else None)
        return values if self.is_first else [value]  # type: ignore[return-value]

    @torch.no_grad()
    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Replace the tensors, in place, by those of the first process."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), src=0)

    def wait(self) -> None:
        """Wait for all processes."""
        if self.count > 1:
            dist.barrier()


def join_processes(device: str) -> Processes:
    """Join the processes of torchrun (WORLD_SIZE, RANK, LOCAL_RANK); without torchrun, a single process.

    device: "auto", "cpu", "cuda", "cuda:1"; torchrun assigns CUDA devices by LOCAL_RANK.  Raises ValueError for a
    device that is not there.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")) if count > 1 else None)
    if count == 1:
        return Processes(rank=0, count=1, device=chosen)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if not dist.is_initialized():
        # once for all trainings of this job: a second group would wait forever at the addresses of the first
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
        atexit.register(dist.destroy_process_group)
    return Processes(rank=dist.get_rank(), count=count, device=chosen)
