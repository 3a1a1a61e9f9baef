"""Decay groups, the flat gradient, the running average."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from denskit.models import build_force_field
from denskit.models.equiformer import EquiformerConfig
from denskit.models.scaling import Scaling
from denskit.training.load_config import load_config
from denskit.training.optimizer import (
    Gradients,
    WeightAverage,
    build_optimizer,
    load_optimizer_state,
    set_learning_rate,
)
from denskit.training.settings import TrainingConfig


def test_weight_decay_spares_what_the_model_names() -> None:
    config = EquiformerConfig(
        num_layers=1, channels=(8, 8), feature_channels=(16, 8), head_channels=(4, 4), ffn_channels=(8, 8)
    )
    force_field = build_force_field(config, heads={}, scaling=Scaling(elements=[1, 8]))
    optimizer = build_optimizer(force_field, TrainingConfig(max_steps=1, weight_decay=0.1, lr=0.25))
    decayed, spared = optimizer.param_groups
    names = {id(parameter): name for name, parameter in force_field.named_parameters()}
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert {names[id(parameter)] for parameter in spared["params"]} == force_field.no_decay_parameters()
    assert len(decayed["params"]) + len(spared["params"]) == len(names)
    assert any(name.endswith("bias") for name in force_field.no_decay_parameters())
    set_learning_rate(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]


def test_gradients_are_views_that_backward_adds_to() -> None:
    used, unused = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.ones(3))
    gradients = Gradients([used, unused])
    for _ in range(2):
        used.square().sum().backward()
    assert gradients.flat.tolist() == [4.0, 8.0, 0.0, 0.0, 0.0]
    assert used.grad is not None
    assert used.grad.data_ptr() == gradients.flat.data_ptr()
    gradients.zero()
    assert used.grad.tolist() == [0.0, 0.0]


def test_clipping_scales_down_only() -> None:
    parameter = nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
    gradients = Gradients([parameter])
    (parameter.square().sum() / 2).backward()
    assert gradients.clip(None).item() == 5.0
    assert gradients.clip(10.0).item() == 5.0
    assert gradients.flat.tolist() == [3.0, 4.0]
    assert gradients.clip(1.0).item() == 5.0
    assert gradients.flat.tolist() == pytest.approx([0.6, 0.8])


def test_average_follows_its_formula_and_gives_the_weights_back() -> None:
    parameter = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    average = WeightAverage([parameter], decay=0.9)
    for step, value in ((1, 2.0), (1000, 3.0)):
        with torch.no_grad():
            parameter.fill_(value)
        average.update(step)
    early = 2 / 11  # (1 + 1) / (10 + 1)
    expected = 0.9 * (early * 1.0 + (1 - early) * 2.0) + 0.1 * 3.0
    with average.applied():
        assert parameter.item() == pytest.approx(expected, rel=1e-15)
    assert parameter.item() == 3.0
    assert average.state()[0].item() == pytest.approx(expected, rel=1e-15)


def test_the_published_average_has_one_decay_from_the_first_step() -> None:
    parameter = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    average = WeightAverage([parameter], decay=0.9, warmup=False)
    for step, value in ((1, 2.0), (2, 3.0)):
        with torch.no_grad():
            parameter.fill_(value)
        average.update(step)
    with average.applied():
        assert parameter.item() == pytest.approx(0.9 * (0.9 * 1.0 + 0.1 * 2.0) + 0.1 * 3.0, rel=1e-15)


def test_amsgrad_remembers_the_largest_second_moment() -> None:
    force_field = build_force_field(
        EquiformerConfig(
            num_layers=1, channels=(8, 8), feature_channels=(16, 8), head_channels=(4, 4), ffn_channels=(8, 8)
        ),
        heads={},
        scaling=Scaling(elements=[1, 8]),
    )
    optimizer = build_optimizer(force_field, TrainingConfig(max_steps=1, amsgrad=True))
    for parameter in force_field.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all("max_exp_avg_sq" in state for state in optimizer.state.values())


def test_a_shared_state_is_loaded_beside_its_parameters() -> None:
    """ZeroRedundancyOptimizer moves numbers of steps to the CPU; "meta" stands in for the GPU."""

    class Shared:
        optim = SimpleNamespace(state={})

        def load_state_dict(self, state: dict[nn.Parameter, dict[str, Tensor]]) -> None:
            self.optim.state |= {parameter: {**values} for parameter, values in state.items()}

    shared, parameter = Shared(), nn.Parameter(torch.zeros(2, device="meta"))
    load_optimizer_state(shared, {parameter: {"step": torch.tensor(5.0)}})  # type: ignore[arg-type]
    assert shared.optim.state[parameter]["step"].device.type == "meta"


def test_embeddings_of_equiformer_v3_have_no_weight_decay() -> None:
    """As published; those of other models have."""
    for name, spared in (("equiformer_v3", True), ("esen", False)):
        config = load_config(name, ["output=unused"]).model.model_copy(update={"average_degree": 10.0})
        force_field = build_force_field(config, heads={}, scaling=Scaling(elements=[1, 8]))
        assert ("backbone.atom_embedding" in force_field.no_decay_parameters()) == spared
        assert force_field.element_tables() <= force_field.no_decay_parameters() or not spared
