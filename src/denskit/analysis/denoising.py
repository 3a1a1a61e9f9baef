"""How well a model denoises: a diagnostic of DeNS, not a result.

It corrupts structures as training does and shows the model the true forces of the corrupted atoms, so it uses labels of
the very structures it is computed on.  It says whether the auxiliary task was learnt, nothing about energies and forces.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from denskit.data.base import Source, collate
from denskit.geometry.neighbors import build_neighbors
from denskit.models.base import ForceField
from denskit.random import keys_for
from denskit.tasks.dens import DeNS, DeNSConfig
from denskit.tasks.metrics import Metrics


@dataclass(frozen=True)
class NoiseErrors:
    """Mean absolute error of the noise over components of corrupted atoms, divided by that of predicting zero."""

    encoded: float  # with the forces of corrupted atoms encoded
    hidden: float  # with nothing encoded, so that the model cannot know which structure is meant


@torch.no_grad()
def noise_errors(
    force_field: ForceField, source: Source, config: DeNSConfig, *, seed: int, batch_size: int = 16
) -> NoiseErrors:
    """Corrupt every structure of ``source`` once and measure the noise head, with and without force encoding.

    Args:
        force_field: with a noise head; evaluated on its own device and dtype.
        source: structures with forces.
        config: the corruption of the training (sigma at its end, ratio, exclusions); every structure is chosen.
        seed: of the corruption.
        batch_size: structures at a time.

    Raises:
        ValueError: The model has no noise head, or no atom was corrupted.
    """
    if "noise" not in force_field.heads:
        raise ValueError("this model has no noise head; train with task=dens to get one")
    task = DeNS(config.model_copy(update={"probability": 1.0, "force_encoding": True}))
    parameter = next(force_field.parameters())
    encoded, hidden = Metrics(), Metrics()
    force_field.eval()
    for start in range(0, len(source), batch_size):
        systems = [source[index] for index in range(start, min(start + batch_size, len(source)))]
        batch, targets = collate(systems, parameter.dtype)
        prepared = task.prepare(batch, targets, keys_for(seed, 0, [system.index for system in systems]), progress=1.0)
        graph = build_neighbors(prepared.batch, force_field.cutoff, max_neighbors=force_field.max_neighbors)
        graph, force_input = graph.to(parameter.device), prepared.force_input.to(parameter.device)
        for metrics, shown in ((encoded, force_input), (hidden, torch.zeros_like(force_input))):
            metrics.update_noise(force_field(graph, shown, outputs=("noise",))["noise"].cpu(), prepared)
    ratios = [metrics.summary().get("noise_error_relative_to_zero") for metrics in (encoded, hidden)]
    if ratios[0] is None or ratios[1] is None:
        raise ValueError("no atom was corrupted; the structures need free atoms with forces")
    return NoiseErrors(encoded=ratios[0], hidden=ratios[1])
