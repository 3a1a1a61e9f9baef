"""What a recorded training step needs of every model: padding without effect, and nothing that looks at the CPU."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from contract.variants import VARIANTS, build
from denskit.batch import Prepared, System
from denskit.data.base import collate
from denskit.geometry.neighbors import build_neighbors
from denskit.geometry.padding import padded_shape, with_ghosts
from denskit.models.execution import Execution
from denskit.random import keys_for
from denskit.tasks import TASKS, DeNS, DeNSConfig, EnergyForces, EnergyForcesConfig, Task, build_task
from denskit.training.batch_loss import batch_loss, counts_of, terms_without

from tolerances import SAME_GRADIENT64

HOST = {
    torch.ops.aten._local_scalar_dense.default: "a number of a tensor is read",
    torch.ops.aten.nonzero.default: "a shape depends on values",
    torch.ops.aten.masked_select.default: "a shape depends on values",
    torch.ops.aten._unique2.default: "a shape depends on values",
    torch.ops.aten.lift_fresh.default: "a tensor is made from numbers",
}


def task_for(name: str) -> Task:
    """A task that uses all that the variant gives."""
    weight = 0.0 if VARIANTS[name].config.stress == "none" else 2.0
    if VARIANTS[name].heads:
        return DeNS(DeNSConfig(probability=0.6, stress_weight=weight))
    return EnergyForces(EnergyForcesConfig(stress_weight=weight))


def prepared(name: str, task: Task, systems: dict[str, System]) -> Prepared:
    """A training batch of the variant, in float64."""
    chosen = [systems[of] for of in ("ethanol", "water", "triclinic")]
    batch, targets = collate(chosen, torch.float64)
    part = task.prepare(batch, targets, keys_for(3, 0, torch.arange(3)), 0.25)
    return replace(part, batch=VARIANTS[name].config.with_neighbors(part.batch))


def learned(name: str, task: Task, part: Prepared, counts: Tensor) -> dict[str, Tensor]:
    """Loss terms, training errors and the gradient of the loss."""
    force_field = build(name, torch.float64).train()
    found = batch_loss(force_field, task, part, counts=counts, progress=0.25, autocast=nullcontext())
    gradients = torch.autograd.grad(found.loss, list(force_field.parameters()), allow_unused=True)
    flat = [gradient.flatten() for gradient in gradients if gradient is not None]
    return {"sums": found.sums, "metrics": found.metrics.state, "gradient": torch.cat(flat)}


@pytest.mark.parametrize("name", VARIANTS)
def test_ghosts_change_nothing(name: str, systems: dict[str, System]) -> None:
    task = task_for(name)
    part = prepared(name, task, systems)
    larger, counts = with_ghosts(part, padded_shape(part.batch)), counts_of(terms_without(task, part, 0.25))
    assert torch.equal(counts_of(terms_without(task, larger, 0.25)), counts)
    expected, found = learned(name, task, part, counts), learned(name, task, larger, counts)
    for key, value in expected.items():
        size = value.square().mean().sqrt().clamp(min=1e-12)
        assert (found[key] - value).abs().max() < SAME_GRADIENT64 * size, key


@pytest.mark.parametrize("name", [name for name in TASKS if name != "anids"])  # which is not recorded
def test_ghosts_change_no_term(name: str, systems: dict[str, System]) -> None:
    """Whatever the model says of them."""
    settings = {"stress_weight": 1.0, "forces_weight": 1.0, "probability": 1.0, "strain_probability": 1.0}
    config = TASKS[name].config()
    config = config.model_copy(update={key: value for key, value in settings.items() if hasattr(config, key)})
    task = build_task(config)
    batch, targets = collate([systems[of] for of in ("ethanol", "triclinic", "water")], torch.float64)
    part = task.prepare(batch, targets, keys_for(3, 0, torch.arange(3)), 0.25)
    part = replace(part, batch=build_neighbors(part.batch, 4.0))
    larger = with_ghosts(part, padded_shape(part.batch))
    shapes = {"forces": (3,), "noise": (3,), "energy": (), "stress": (3, 3), "strain": (3, 3)}
    generator = torch.Generator().manual_seed(0)
    said = {
        key: torch.randn(
            larger.batch.num_atoms if key in ("forces", "noise") else larger.batch.num_systems,
            *shape,
            dtype=torch.float64,
            generator=generator,
        )
        for key, shape in shapes.items()
    }
    rows = {"forces": part.batch.num_atoms, "noise": part.batch.num_atoms}
    own = {key: value[: rows.get(key, part.batch.num_systems)] for key, value in said.items()}
    expected, found = task.losses(own, part, 0.25), task.losses(said, larger, 0.25)
    assert expected.keys() == found.keys() and expected.keys() >= {"energy", "forces"}
    for term, value in expected.items():
        torch.testing.assert_close(found[term].sum, value.sum, rtol=1e-12, atol=0)
        assert found[term].count == value.count and (value.sum > 0 or term == "stress")  # strained: not scored


class NeedsNoHost(TorchDispatchMode):
    """Notes operations that would make a GPU wait for the CPU, or the CPU for it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        boolean = func is torch.ops.aten.index.Tensor and any(
            isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in tree_leaves(args[1])
        )
        if func in HOST or boolean:
            self.found.add(f"{func}: {HOST.get(func, 'a shape depends on values')}")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_step_never_looks_at_values(name: str, systems: dict[str, System], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("denskit.models.equiformer.model.edge_pairs", lambda batch: None)  # as on a GPU
    task = task_for(name)
    part = prepared(name, task, systems)
    part = with_ghosts(part, padded_shape(part.batch))
    counts = counts_of(terms_without(task, part, 0.25))
    force_field = build(name, torch.float64).train()
    force_field.execution = Execution(kernels="plain")
    batch_loss(force_field, task, part, counts=counts, progress=0.25, autocast=nullcontext())  # fills caches
    with NeedsNoHost() as seen:
        found = batch_loss(force_field, task, part, counts=counts, progress=0.25, autocast=nullcontext())
        found.loss.backward()
    assert not seen.found
