"""Our training step as ``training.step`` makes it in fixed shapes: a flat graph, compiled, or a CUDA graph.

Where the trainer would, the step also corrupts the structures and finds the edges of small molecules itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from denskit.batch import Prepared
from denskit.bench.systems import benchmark_batch
from denskit.models.base import ForceField
from denskit.random import keys_for
from denskit.tasks import Task
from denskit.training.buckets import Buckets, Raw
from denskit.training.distributed import Processes
from denskit.training.objective import no_prediction
from denskit.training.optimizer import Gradients
from denskit.training.precision import Precision
from denskit.training.static_step import Now, StaticStep, StepMode

NOW = Now(step=0, progress=0.0, learning_rate=0.0)


def static_step(
    mode: StepMode, force_field: ForceField, task: Task, prepared: Prepared, *, system: str, seed: int
) -> tuple[Callable[[], None], float]:
    """A function that does one step without a learning rate, and the loss of the first one.

    Args:
        mode: as ``training.step``.
        force_field: in training mode, float32.
        task: what it trains for.
        prepared: the batch that eager steps work on, with edges.
        system: the name of the structures, and ``seed`` that of their corruption: the step makes the same batch of them
            where it makes its own edges.

    Raises:
        ValueError: A CUDA graph without a CUDA device.
    """
    device = prepared.batch.positions.device
    if mode == "cuda_graph" and device.type != "cuda":
        raise ValueError(f"step=cuda_graph needs a CUDA device, and this is {device}; use traced or inductor")
    size = prepared.batch.num_systems
    buckets = Buckets(
        systems=size, largest=int(prepared.batch.n_atoms.max()), pairs=force_field.config.max_neighbors is None
    )
    content: Raw | Prepared = prepared.to("cpu")
    if buckets.is_dense(content.batch):
        batch, targets = benchmark_batch(system, size)
        dtype = prepared.batch.positions.dtype
        content = Raw(batch=batch.to(dtype=dtype), targets=targets.to(dtype=dtype), keys=keys_for(seed, 0, range(size)))
    part = buckets.fit(content)
    weights = [term.weight for term in task.losses(no_prediction(prepared.batch), prepared, NOW.progress).values()]
    parameters = [parameter for parameter in force_field.parameters() if parameter.requires_grad]
    step = StaticStep(
        mode=mode, force_field=force_field, task=task, gradients=Gradients(parameters), average=None, clip_norm=None,
        optimizer=torch.optim.AdamW(parameters, lr=0.0, fused=True), precision=Precision("none", device),
        group=Processes(rank=0, count=1, device=device), num_terms=len(weights),
        advice="take a smaller --batch", say=lambda text: None,
    )  # fmt: skip
    step.run([part], NOW)
    sums, counts = step.terms.clone().cpu()
    loss = float((sums / counts.clamp(min=1)) @ torch.tensor(weights, dtype=sums.dtype))
    return lambda: step.run([part], NOW), loss
