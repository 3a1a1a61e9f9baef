"""Noisy Nodes: every free atom moves, the target is noise or the way to the relaxed position, all labels count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from denskit.batch import Batch, Prepared, System, Targets
from denskit.data.base import collate
from denskit.geometry.neighbors import build_neighbors
from denskit.random import keys_for
from denskit.tasks import DeNS, DeNSConfig, NoisyNodes, NoisyNodesConfig, total_loss
from tasks.small import LinearModel, hide_labels, make_batch, make_targets, select_systems, tensors

from tolerances import EXACT64

CONFIG = NoisyNodesConfig(sigma=0.2, stress_weight=1.0)


def prepared_by(batch: Batch, targets: Targets, config: NoisyNodesConfig = CONFIG) -> Prepared:
    return NoisyNodes(config).prepare(batch, targets, keys_for(0, 0, range(batch.num_systems)), 0.0)


def with_relaxation(targets: Targets, batch: Batch, relaxed: list[bool]) -> Targets:
    """Ways to relaxed positions for some systems; NaN stands in the place of the others."""
    generator = torch.Generator().manual_seed(3)
    mask = torch.tensor(relaxed)[batch.system_index]
    ways = torch.randn(batch.num_atoms, 3, generator=generator, dtype=torch.float64)
    return replace(targets, relaxation=torch.where(mask[:, None], ways, torch.nan), relaxation_mask=mask)


def test_every_free_atom_is_displaced_and_no_force_is_shown() -> None:
    batch = make_batch([4, 3, 5])
    fixed = torch.arange(12) % 4 == 0
    batch = replace(batch, fixed=fixed, denoise=torch.tensor([True, True, False]))
    prepared = prepared_by(batch, make_targets(batch))
    expected = ~fixed & (batch.system_index < 2)
    assert torch.equal(prepared.noise_mask, expected)
    moved = prepared.batch.positions - batch.positions
    assert torch.equal(moved.bool().any(-1), expected)
    torch.testing.assert_close(moved, CONFIG.sigma * prepared.noise, rtol=1e-12, atol=1e-12)
    assert not prepared.force_input.any()
    assert prepared.batch.edges is None


def test_noise_is_standard_normal_and_that_of_dens() -> None:
    batch = make_batch([5] * 2000)
    targets, keys = make_targets(batch), keys_for(0, 0, range(2000))
    prepared = prepared_by(batch, targets)
    assert float(prepared.noise.std()) == pytest.approx(1.0, abs=0.02)
    assert float(prepared.noise.mean()) == pytest.approx(0.0, abs=0.02)
    dens = DeNS(DeNSConfig(probability=1.0, corruption_ratio=1.0, sigma=0.2)).prepare(batch, targets, keys, 0.0)
    assert torch.equal(prepared.batch.positions, dens.batch.positions)  # so that the two differ in nothing else


def test_the_target_is_the_way_to_the_relaxed_positions() -> None:
    batch = make_batch([4, 3, 5])
    batch = replace(batch, fixed=torch.arange(12) == 1)
    targets = with_relaxation(make_targets(batch), batch, [True, False, True])
    prepared = prepared_by(batch, targets)
    home = batch.positions + torch.where(targets.relaxation_mask[:, None], targets.relaxation, 0.0)
    way_back = (prepared.batch.positions - home) / CONFIG.sigma
    free = prepared.noise_mask
    torch.testing.assert_close(prepared.noise[free], way_back[free], rtol=1e-10, atol=1e-10)
    assert free.tolist() == (~batch.fixed).tolist()
    assert not prepared.noise[1].any()


def test_all_labels_are_scored_and_stay_those_of_the_original() -> None:
    batch = make_batch([4, 3, 5])
    targets = make_targets(batch)
    prepared = prepared_by(batch, targets)
    assert prepared.targets is targets
    prediction = LinearModel()(prepared)
    terms = NoisyNodes(CONFIG).losses(prediction, prepared, progress=0.25)
    assert {name: float(term.count) for name, term in terms.items()} == {
        "energy": 3.0, "forces": 12.0, "stress": 3.0, "noise": 12.0,
    }  # fmt: skip
    expected = torch.linalg.vector_norm(prediction["forces"] - targets.forces, dim=-1).sum()
    assert terms["forces"].sum.item() == pytest.approx(expected.item(), rel=1e-12)
    assert terms["energy"].sum.item() == pytest.approx((prediction["energy"] - targets.energy).abs().sum().item())
    assert terms["noise"].weight == 0.75 * CONFIG.coefficient


def test_noise_counts_where_there_are_no_force_labels() -> None:
    """Energies alone, as for IS2RE; whichever loss."""
    batch = make_batch([4, 3])
    hidden = hide_labels(
        make_targets(batch), energy=torch.ones(2).bool(), forces=torch.zeros(7).bool(), stress=torch.zeros(2).bool()
    )
    for loss, count in (("published", 7.0), ("published_oc20", 7.0), ("paper", 2.0), ("huber", 7.0)):
        config = NoisyNodesConfig(loss=loss, forces_weight=0)
        prepared = prepared_by(batch, hidden, config)
        prediction = {"energy": hidden.energy, "noise": torch.zeros_like(prepared.noise).requires_grad_()}
        terms = NoisyNodes(config).losses(prediction, prepared, 0.0)
        assert set(terms) == {"energy", "noise"}
        assert float(terms["noise"].count) == count
        total_loss(terms).backward()
        assert prediction["noise"].grad.isfinite().all() and prediction["noise"].grad.any()


def test_prepare_is_pure_and_the_same_in_any_batch() -> None:
    batch = build_neighbors(make_batch([4, 6, 3, 5]), 4.0)
    targets = with_relaxation(make_targets(batch), batch, [True, False, True, True])
    keys = keys_for(0, 0, range(4))
    before = {name: value.clone() for name, value in (tensors(batch) | tensors(targets)).items()}
    whole = NoisyNodes(CONFIG).prepare(batch, targets, keys, 0.0)
    for name, value in (tensors(batch) | tensors(targets)).items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, equal_nan=True)
    bare = replace(batch, edges=None)
    order = [2, 0, 3]
    part = NoisyNodes(CONFIG).prepare(*select_systems(bare, targets, order), keys[order], 0.0)
    rows = torch.cat([torch.nonzero(batch.system_index == system)[:, 0] for system in order])
    torch.testing.assert_close(part.batch.positions, whole.batch.positions[rows], rtol=0, atol=EXACT64)
    torch.testing.assert_close(part.noise, whole.noise[rows], rtol=0, atol=EXACT64)


def test_float32_is_float64_rounded() -> None:
    batch = make_batch([4, 3])
    targets = with_relaxation(make_targets(batch), batch, [True, False])
    single = prepared_by(batch.to(dtype=torch.float32), targets.to(dtype=torch.float32))
    assert single.noise.dtype == single.batch.positions.dtype == torch.float32
    torch.testing.assert_close(single.noise, prepared_by(batch, targets).noise.float(), rtol=1e-5, atol=1e-5)


def test_relaxed_positions_reach_the_targets_by_the_nearest_image(systems: dict[str, System]) -> None:
    copper, water = systems["copper"], systems["water"]
    step = np.array([0.1, -0.2, 0.05])
    across = copper.positions + step + copper.cell[1]  # the same place, one cell further
    _, targets = collate([replace(copper, relaxed_positions=across), water], torch.float64)
    assert targets.relaxation is not None and targets.relaxation_mask is not None
    assert targets.relaxation_mask.tolist() == [True] * len(copper) + [False] * len(water)
    np.testing.assert_allclose(targets.relaxation[: len(copper)], np.tile(step, (len(copper), 1)), atol=1e-12)
    assert not targets.relaxation[len(copper) :].any()
    assert collate([water])[1].relaxation is None


@pytest.mark.parametrize("wrong", [{"sigma": 0.0}, {"probability": 0.5}, {"coefficient": -1.0}])
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        NoisyNodesConfig(**wrong)
