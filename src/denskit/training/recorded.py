"""The backward passes of a training on a GPU, recorded as CUDA graphs.

A step of a small batch launches some ten thousand kernels of microseconds, and Python takes five to ten times as long
as the GPU.  A recorded step is launched at once.  Batches are padded to few shapes, and the first of these recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from denskit.batch import Prepared
from denskit.geometry.padding import Shape, padded_shape, smallest_holding, with_ghosts
from denskit.models.base import ForceField
from denskit.runtime.cuda_graph import Recorded
from denskit.runtime.processes import Processes
from denskit.runtime.warning import first_line, warn
from denskit.training.optimizer import Gradients
from denskit.training.settings import TrainingConfig

MOST = 32  # shapes that are recorded; batches of others are padded to one of these, or run as ever
WASTE = 2.0  # edges of such a shape to the batch's own: a recorded step of small batches takes about as long
LARGEST = 2**15  # edges: a larger batch keeps a GPU busy by itself

Backward = Callable[[Prepared, Tensor, Tensor], Tensor]


def may_record(training: TrainingConfig, force_field: ForceField, group: Processes) -> bool:
    """Whether steps of this training can be recorded: on one GPU, without code that looks at values on the CPU."""
    return (
        group.device.type == "cuda"
        and group.count == 1
        and training.cuda_graphs
        and not training.activation_checkpointing
        and training.edge_chunk is None
        and force_field.companion is None
    )


class RecordedBackward:
    """Does what ``backward`` does, by recordings; batches that cannot be recorded are passed on to it.

    backward: adds the gradients of a batch on the device to ``gradients`` and returns a tensor of errors; the other
    arguments are the counts and weights of the loss terms.
    """

    def __init__(self, backward: Backward, gradients: Gradients, device: torch.device) -> None:
        self.backward, self.gradients, self.device = backward, gradients, device
        self.recordings: dict[Shape, Recorded] = {}
        self.failed = False

    def __call__(self, part: Prepared, counts: Tensor, weights: Tensor) -> Tensor:
        """Add the gradients of a batch from the CPU; its errors."""
        if self.failed or part.batch.num_edges > LARGEST:
            return self.backward(part.to(self.device), counts, weights)
        own = padded_shape(part.batch)
        known = own in self.recordings or len(self.recordings) < MOST
        shape = own if known else smallest_holding(own, self.recordings, WASTE)
        if shape is None:
            return self.backward(part.to(self.device), counts, weights)
        # which batches with relaxed structures alone have, and the task has used: the same tensors for each
        part = replace(part, targets=replace(part.targets, relaxation=None, relaxation_mask=None))
        part = with_ghosts(part, shape)
        inputs = [counts, weights, *part.tensors()]
        if shape not in self.recordings:
            try:
                self.recordings[shape] = self._recorded(part, inputs)
            except RuntimeError as error:
                warn(f"training steps are not recorded, and so slower: {first_line(error)}")
                self.failed = True
                return self.backward(part.to(self.device), counts, weights)
        (errors,) = self.recordings[shape](inputs)
        return errors.clone()

    def _recorded(self, part: Prepared, inputs: list[Tensor]) -> Recorded:
        before = self.gradients.flat.clone()
        pool = next((recording.pool for recording in self.recordings.values()), None)
        given = [tensor.to(self.device) for tensor in inputs]
        try:
            return Recorded(lambda now: [self.backward(part.with_tensors(now[2:]), now[0], now[1])], given, pool)
        finally:
            self.gradients.flat.copy_(before)  # without what the warm-ups added
