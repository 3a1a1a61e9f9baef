"""AniDS: covariances that turn with the structure, the target, the penalty, and gradients into the network."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from denskit.batch import Batch, Prepared
from denskit.geometry.neighbors import build_neighbors
from denskit.random import keys_for
from denskit.tasks import AniDS, AniDSConfig, DeNS, DeNSConfig
from denskit.tasks.anids import NoiseNetwork
from tasks.small import make_batch, make_targets

SETTINGS = {"probability": 1.0, "corruption_ratio": 0.5, "sigma": 0.1}
CUTOFF = 4.0


def molecules(*sizes: int) -> Batch:
    """Molecules in which atoms have neighbours."""
    batch = make_batch(sizes)
    return replace(batch, positions=0.4 * batch.positions)


def network() -> NoiseNetwork:
    """A network with random weights in all layers: the last ones begin at zero."""
    torch.manual_seed(0)
    made = NoiseNetwork(CUTOFF, 20).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.15 * torch.randn_like(parameter))
    return made


def prepared_by(task: AniDS, batch: Batch) -> Prepared:
    prepared = task.prepare(batch, make_targets(batch), keys_for(0, 0, range(batch.num_systems)), 0.0)
    return replace(prepared, batch=build_neighbors(prepared.batch, CUTOFF))


class Isotropic(torch.nn.Module):
    """A network that says what DeNS does, or the same with other variances."""

    def __init__(self, variance: float = 1.0) -> None:
        super().__init__()
        self.variance = variance

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        one = batch.positions.new_full((batch.num_atoms,), self.variance)
        return one, 0 * one, one[:, None, None] * torch.eye(3, dtype=one.dtype)


def test_covariances_are_positive_turn_with_the_structure_and_are_small_along_bonds() -> None:
    batch = build_neighbors(molecules(6, 9), CUTOFF)
    variance, shares, covariance = network()(batch)
    assert bool((torch.linalg.eigvalsh(covariance) > 0).all())
    assert bool((variance > 0).all() & (shares < 1).all() & (shares > 0.1).all())
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))[0]
    turned = network()(replace(batch, positions=batch.positions @ turn.T))
    torch.testing.assert_close(turned[2], turn @ covariance @ turn.T, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(turned[0], variance, rtol=1e-9, atol=1e-9)
    pair = replace(make_batch([2]), positions=torch.tensor([[0.0, 0, 0], [0, 0, 1.2]], dtype=torch.float64))
    variance, shares, covariance = network()(build_neighbors(pair, CUTOFF))
    along = variance * (1 - shares)
    expected = torch.diag_embed(torch.stack([variance, variance, along], 1))
    torch.testing.assert_close(covariance, expected + 1e-6 * torch.eye(3), rtol=1e-9, atol=1e-12)


def test_with_unit_covariances_it_is_dens() -> None:
    batch = molecules(6, 9)
    task = AniDS(AniDSConfig(**SETTINGS, anisotropy=0.0))
    corrupted = task.corrupt(Isotropic(), prepared_by(task, batch), 0.0)
    keys, targets = keys_for(0, 0, range(2)), make_targets(batch)
    dens = DeNS(DeNSConfig(**SETTINGS)).prepare(batch, targets, keys, 0.0)
    torch.testing.assert_close(corrupted.batch.positions, dens.batch.positions)
    torch.testing.assert_close(corrupted.noise, dens.noise)
    torch.testing.assert_close(corrupted.noise_penalty, torch.zeros(15, dtype=torch.float64), rtol=0, atol=1e-12)
    assert corrupted.batch.edges is None and torch.equal(corrupted.force_input, dens.force_input)


def test_the_target_is_the_score_times_the_variance() -> None:
    batch = molecules(6, 9)
    task = AniDS(AniDSConfig(**SETTINGS))
    prepared, net = prepared_by(task, batch), network()
    corrupted = task.corrupt(net, prepared, 0.0)
    variance, shares, covariance = net(prepared.batch)
    moved = (corrupted.batch.positions - batch.positions) / 0.1
    score = torch.linalg.solve(covariance, moved[..., None])[..., 0]
    torch.testing.assert_close(corrupted.noise, variance[:, None] * score, rtol=1e-8, atol=1e-10)
    assert not corrupted.noise[~prepared.noise_mask].any() and not moved[~prepared.noise_mask].any()
    flat = torch.distributions.MultivariateNormal(torch.zeros(3, dtype=torch.float64), torch.eye(3).double())
    made = torch.distributions.MultivariateNormal(torch.zeros(3, dtype=torch.float64), covariance)
    divergence = torch.distributions.kl_divergence(made, flat)
    torch.testing.assert_close(
        corrupted.noise_penalty, divergence + (0.3 - shares).clamp(min=0) ** 2, rtol=1e-6, atol=0
    )


def test_noise_has_the_covariance() -> None:
    batch = make_batch([3] * 4000)
    batch = replace(batch, positions=molecules(3).positions.repeat(4000, 1))
    task = AniDS(AniDSConfig(**(SETTINGS | {"corruption_ratio": 1.0})))
    prepared, net = prepared_by(task, batch), network()
    moved = (task.corrupt(net, prepared, 0.0).batch.positions - batch.positions).detach() / 0.1
    samples = moved.reshape(4000, 3, 3)
    found = torch.einsum("nai,naj->aij", samples, samples) / 4000
    torch.testing.assert_close(found, net(prepared.batch)[2][:3].detach(), rtol=0.1, atol=0.05)


def test_the_penalty_counts_corrupted_atoms() -> None:
    batch = molecules(6, 9)
    task = AniDS(AniDSConfig(**SETTINGS, anisotropy=0.0, covariance_coefficient=2.0))
    prepared = prepared_by(task, batch)
    prediction = {
        "energy": torch.zeros(2, dtype=torch.float64),
        "forces": torch.zeros_like(batch.positions),
        "noise": torch.zeros_like(batch.positions),
    }
    before = task.losses(prediction, prepared, 0.0)["covariance"]
    after = task.losses(prediction, task.corrupt(Isotropic(2.0), prepared, 0.0), 0.0)["covariance"]
    atoms = float(prepared.noise_mask.sum())
    assert (float(before.sum), float(before.count), before.weight) == (0.0, atoms, 2.0)
    each = 0.5 * (6 - 3 - 3 * torch.tensor(2.0).log().item())
    assert (after.sum.item(), after.count.item()) == pytest.approx((each * atoms, atoms))


def test_gradients_pass_through_positions_and_target_into_the_network() -> None:
    batch = molecules(6, 9)
    task, net = AniDS(AniDSConfig(**SETTINGS)), network()
    corrupted = task.corrupt(net, prepared_by(task, batch), 0.0)
    for value in (corrupted.batch.positions, corrupted.noise, corrupted.noise_penalty):
        assert value is not None
        found = torch.autograd.grad(value.square().sum(), list(net.parameters()), retain_graph=True)
        assert all(gradient.isfinite().all() and gradient.any() for gradient in found)
