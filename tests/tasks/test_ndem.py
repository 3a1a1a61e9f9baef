"""NDeM: structures stay as they are; their displaced copies have no labels, and f(x) - g(x + noise) is the noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import huber_loss

from denskit.batch import Batch, Prepared, Targets
from denskit.geometry.neighbors import build_neighbors
from denskit.random import keys_for
from denskit.tasks import NDeM, NDeMConfig, total_loss
from tasks.small import LinearModel, make_batch, make_targets, select_systems, tensors

from tolerances import EXACT64

CONFIG = NDeMConfig(sigma=0.2, corruption_ratio=0.5, stress_weight=1.0)


def prepared_by(batch: Batch, targets: Targets, config: NDeMConfig = CONFIG) -> Prepared:
    return NDeM(config).prepare(batch, targets, keys_for(0, 0, range(batch.num_systems)), 0.0)


def test_structures_stay_and_copies_are_displaced() -> None:
    batch = make_batch([4, 3, 5])
    batch = replace(batch, fixed=torch.arange(12) % 4 == 0, denoise=torch.tensor([True, True, False]))
    prepared = prepared_by(batch, make_targets(batch))
    both = prepared.batch
    assert torch.equal(both.positions[:12], batch.positions)
    assert both.system_index.tolist() == [*batch.system_index.tolist(), *(batch.system_index + 3).tolist()]
    assert both.n_atoms.tolist() == [4, 3, 5, 4, 3, 5] and both.edges is None
    movable = batch.free_atoms & (batch.system_index < 2)
    assert prepared.noise_mask.tolist() == [*[False] * 12, *movable.tolist()]
    moved = both.positions[12:] - batch.positions
    torch.testing.assert_close(moved, CONFIG.sigma * prepared.noise[12:], rtol=1e-9, atol=1e-12)
    assert 0 < int(moved.any(1).sum()) < int(movable.sum())  # some of the atoms that may move
    assert not moved[~movable].any() and not prepared.noise[:12].any() and not prepared.force_input.any()


def test_noise_of_a_structure_has_one_size_between_the_bounds() -> None:
    batch = make_batch([200] * 40)
    prepared = prepared_by(batch, make_targets(batch), NDeMConfig(corruption_ratio=1.0, smallest_noise=0.5))
    sizes = prepared.noise[8000:].reshape(40, -1).std(1)
    assert 0.45 < float(sizes.min()) < 0.6 and 0.9 < float(sizes.max()) < 1.05
    one = prepared_by(batch, make_targets(batch), NDeMConfig(corruption_ratio=1.0, smallest_noise=1.0))
    assert float(one.noise[8000:].std()) == pytest.approx(1.0, abs=0.02)


def test_only_the_structures_have_labels() -> None:
    batch = make_batch([4, 3, 5])
    targets = make_targets(batch)
    prepared = prepared_by(batch, targets)
    prediction = LinearModel()(prepared)
    terms = NDeM(CONFIG).losses(prediction, prepared, progress=0.25)
    assert {name: float(term.count) for name, term in terms.items()} == {
        "energy": 3.0, "forces": 12.0, "stress": 3.0, "noise": 12.0,
    }  # fmt: skip
    expected = torch.linalg.vector_norm(prediction["forces"][:12] - targets.forces, dim=-1).sum()
    assert terms["forces"].sum.item() == pytest.approx(expected.item(), rel=1e-12)
    assert terms["energy"].sum.item() == pytest.approx((prediction["energy"][:3] - targets.energy).abs().sum().item())
    assert terms["noise"].weight == CONFIG.coefficient == 1.0


@pytest.mark.parametrize("loss", ["published", "published_oc20", "paper", "huber"])
def test_the_change_of_the_forces_is_compared_with_the_noise(loss: str) -> None:
    """In the well c x^2 / 2 with sigma = 1/c a head of forces is exact, a head of noise is not."""
    batch, curvature = make_batch([4, 3, 5]), 5.0
    config = NDeMConfig(sigma=1 / curvature, corruption_ratio=0.5, loss=loss)  # type: ignore[arg-type]
    prepared = prepared_by(batch, make_targets(batch), config)
    force = -curvature * prepared.batch.positions
    prediction = {"energy": torch.zeros(6, dtype=torch.float64), "forces": force, "noise": force}
    assert float(NDeM(config).losses(prediction, prepared, 0.0)["noise"].sum) < EXACT64
    wrong = NDeM(config).losses({**prediction, "noise": prepared.noise}, prepared, 0.0)["noise"]
    size = torch.linalg.vector_norm(force[:12] - 2 * prepared.noise[12:], dim=-1)
    if loss == "huber":
        size = huber_loss(size, torch.zeros_like(size), reduction="none", delta=config.huber_delta)
    if loss != "paper":
        assert (wrong.sum.item(), wrong.count.item()) == pytest.approx((size.sum().item(), 12.0))
    else:
        mean = batch.sum_over_atoms(size**2) / batch.n_atoms
        assert (wrong.sum.item(), wrong.count.item()) == pytest.approx((mean.sum().item(), 3.0))


def test_gradients_reach_the_forces_of_the_structures_and_the_head_of_the_copies() -> None:
    batch = make_batch([4, 3])
    prepared = prepared_by(batch, make_targets(batch))
    forces, noise = (torch.randn(14, 3, dtype=torch.float64).requires_grad_() for _ in range(2))
    prediction = {"energy": torch.zeros(4, dtype=torch.float64), "forces": forces, "noise": noise}
    config = CONFIG.model_copy(update={"stress_weight": 0.0, "forces_weight": 0.0, "energy_weight": 1.0})
    total_loss(NDeM(config).losses(prediction, prepared, 0.0)).backward()
    assert forces.grad is not None and noise.grad is not None
    assert forces.grad[:7].any(1).all() and not forces.grad[7:].any()
    assert noise.grad[7:].any(1).all() and not noise.grad[:7].any()


def test_prepare_is_pure_and_the_same_in_any_batch() -> None:
    batch = build_neighbors(make_batch([4, 6, 3, 5]), 4.0)
    targets, keys = make_targets(batch), keys_for(0, 0, range(4))
    before = {name: value.clone() for name, value in (tensors(batch) | tensors(targets)).items()}
    whole = NDeM(CONFIG).prepare(batch, targets, keys, 0.0)
    for name, value in (tensors(batch) | tensors(targets)).items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    order = [2, 0, 3]
    part = NDeM(CONFIG).prepare(*select_systems(replace(batch, edges=None), targets, order), keys[order], 0.0)
    rows = torch.cat([torch.nonzero(whole.batch.system_index == system)[:, 0] for system in (2, 0, 3, 6, 4, 7)])
    torch.testing.assert_close(part.batch.positions, whole.batch.positions[rows], rtol=0, atol=EXACT64)
    torch.testing.assert_close(part.noise, whole.noise[rows], rtol=0, atol=EXACT64)
