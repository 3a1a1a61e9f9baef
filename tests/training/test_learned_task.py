"""A task with a network: trained with the model, in checkpoints, not in model files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from denskit.evaluation.denoising import denoise
from denskit.models.model_file import load_model
from denskit.reading.torch_files import read_torch
from denskit.runtime.processes import join_processes
from denskit.training.batch_loss import batch_loss
from denskit.training.load_config import RunConfig
from denskit.training.parts import depths, parts_of
from denskit.training.run import load_data, train
from denskit.training.trainer import Trainer

Tiny = Callable[..., RunConfig]
TASK = ("task=anids", "task.probability=1", "task.corruption_ratio=0.5")


def weights(run: Path) -> dict[str, torch.Tensor]:
    return read_torch(run / "checkpoints" / "last.pt")["weights"]


def test_the_network_is_trained_and_kept_out_of_the_model_file(tiny: Tiny) -> None:
    run = train(tiny(*TASK, "training.max_steps=3"))
    before = weights(train(tiny(*TASK, "training.max_steps=1", name="short")))
    own = [name for name in before if name.startswith("companion.")]
    changed = [name for name in own if not torch.equal(before[name], weights(run)[name])]
    assert own and len(changed) > len(own) / 2
    assert not [name for name, _ in load_model(run / "model.safetensors").named_parameters() if "companion" in name]
    with pytest.raises(ValueError, match="was trained with task=anids; only runs of"):
        denoise(run)


def test_the_network_learns_from_all_terms(tiny: Tiny) -> None:
    """The gradient of each term by the network, against finite differences along a random direction."""
    config = tiny(*TASK, "training.dtype=float64")
    trainer = Trainer(config, load_data(config.data, 0, config.required_labels), join_processes("cpu"))
    network = trainer.force_field.companion
    assert network is not None
    own = {name for name, part in parts_of(trainer.force_field).items() if part == "companion"}
    assert own and {depths(trainer.force_field)[name] for name in own} == {0}  # learns as fast as new heads
    generator = torch.Generator().manual_seed(0)
    parameters = list(network.parameters())
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    direction = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
    work = trainer.loader.work(0)

    def loss(weight: tuple[float, float, float, float]) -> torch.Tensor:
        names = ("energy_weight", "forces_weight", "coefficient", "covariance_coefficient")
        trainer.task.config = config.task.model_copy(update=dict(zip(names, weight, strict=True)))  # type: ignore[attr-defined]
        part, counts = work.parts[0], work.counts
        kept = [name for name, one in zip(names, weight, strict=True) if one or name in names[2:]]
        chosen = [counts[names.index(name)] for name in kept]
        trainer.force_field.train()
        found = batch_loss(
            trainer.force_field,
            trainer.task,
            part,
            counts=torch.stack(chosen),
            progress=0.0,
            autocast=trainer.update.precision.autocast(),
        )
        return found.loss

    for weight in ((1.0, 0, 0, 0), (0, 1.0, 0, 0), (1e-9, 0, 1.0, 0), (1e-9, 0, 0, 1.0)):
        slope = sum(
            (one * way).sum() for one, way in zip(torch.autograd.grad(loss(weight), parameters), direction, strict=True)
        )
        ends = []
        for step in (1e-4, -1e-4):
            with torch.no_grad():
                for parameter, way in zip(parameters, direction, strict=True):
                    parameter.add_(step * way)
            ends.append(loss(weight).item())
            with torch.no_grad():
                for parameter, way in zip(parameters, direction, strict=True):
                    parameter.sub_(step * way)
        difference = (ends[0] - ends[1]) / 2e-4
        assert abs(difference) > 1e-6, weight
        assert float(slope) == pytest.approx(difference, rel=1e-3), weight
