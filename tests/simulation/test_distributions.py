"""h(r) and its distances against plain numpy and scipy."""

from __future__ import annotations

from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance

from denskit.simulation.distributions import (
    BINS,
    WIDTH,
    DistanceHistogram,
    h_of_r_error,
    halves_error,
    histogram_of,
    wasserstein,
)

from tolerances import EXACT64


def trajectory(seed: int, frames: int = 40, atoms: int = 7, spread: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=spread, size=(frames, atoms, 3))


def published_h_of_r(frames: np.ndarray) -> np.ndarray:
    """The benchmark's formula: every entry of every distance matrix, numpy's density on 500 bins."""
    matrices = np.sqrt(((frames[:, :, None] - frames[:, None]) ** 2).sum(-1))
    return np.histogram(matrices.ravel(), np.linspace(1e-6, 10, 501), density=True)[0]


@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])  # the last has distances beyond 10 Å
def test_h_of_r_is_the_published_density(spread: float) -> None:
    frames = trajectory(0, spread=spread)
    found = histogram_of(frames).h_of_r()
    assert np.allclose(found, published_h_of_r(frames), rtol=EXACT64, atol=0)
    assert found.sum() * WIDTH == pytest.approx(1.0, abs=EXACT64)


def test_h_of_r_of_real_frames_is_the_published_density(data_dir: Path) -> None:
    frames = np.stack([atoms.positions for atoms in ase.io.read(data_dir / "rmd17_ethanol_a.extxyz", ":300")])
    assert np.allclose(histogram_of(frames).h_of_r(), published_h_of_r(frames), rtol=EXACT64, atol=0)


def test_a_trajectory_against_itself_has_no_error() -> None:
    histogram = histogram_of(trajectory(1))
    assert h_of_r_error(histogram.h_of_r(), histogram.h_of_r()) == 0
    assert histogram.wasserstein(histogram) == 0


def test_error_is_the_published_one() -> None:
    one, other = trajectory(1), trajectory(2, spread=1.5)
    wanted = np.mean(np.abs(published_h_of_r(one) - published_h_of_r(other))) * 10
    assert h_of_r_error(histogram_of(one).h_of_r(), histogram_of(other).h_of_r()) == pytest.approx(wanted, rel=EXACT64)


def test_systems_are_counted_apart_and_together() -> None:
    frames = np.stack([trajectory(3, frames=5), trajectory(4, frames=5)])  # [B, F, n, 3]
    both = DistanceHistogram(2)
    for frame in torch.from_numpy(frames).transpose(0, 1):
        both.add(frame.flip(0), torch.tensor([1, 0]))
    for system in range(2):
        assert np.array_equal(both.h_of_r(system), histogram_of(frames[system]).h_of_r())
    assert np.array_equal(both.h_of_r(), histogram_of(frames.reshape(-1, 7, 3)).h_of_r())


def test_one_of_several_systems_can_be_counted_alone() -> None:
    frames = trajectory(3, frames=2)
    histogram = DistanceHistogram(3)
    for frame in torch.from_numpy(frames):
        histogram.add(frame[None], torch.tensor([1]))
    assert np.array_equal(histogram.h_of_r(1), histogram_of(frames).h_of_r())
    assert not histogram.h_of_r(0).any() and not histogram.counts[2].any()


@pytest.mark.parametrize("others", [10, 40, 1000])
def test_the_error_by_chance_is_that_of_other_samples(others: int) -> None:
    """Of the same distribution: halves of the reference tell it for any number of others."""
    rng = np.random.default_rng(0)
    at = rng.normal(size=(5, 3)) * 2
    reference, found = (at + 0.1 * rng.normal(size=(number, 5, 3)) for number in (40, others))
    error = h_of_r_error(histogram_of(found).h_of_r(), histogram_of(reference).h_of_r())
    assert halves_error(reference) * np.sqrt(0.25 + 40 / (4 * others)) == pytest.approx(error, rel=0.25)
    assert np.isnan(halves_error(reference[:3]))


def test_wasserstein_of_a_shift_is_the_shift() -> None:
    counts = np.zeros(BINS + 1, dtype=np.int64)
    counts[100:110] = 5
    shifted = np.roll(counts, 25)
    assert wasserstein(counts, shifted) == pytest.approx(25 * WIDTH, rel=EXACT64)
    assert h_of_r_error(counts[:BINS] / 50 / WIDTH, shifted[:BINS] / 50 / WIDTH) == pytest.approx(2.0)  # no overlap


def test_wasserstein_agrees_with_samples_clipped_to_the_range() -> None:
    one, other = (trajectory(seed, spread=spread) for seed, spread in ((5, 2.0), (6, 4.0)))
    pairs = np.triu_indices(one.shape[1], 1)
    samples = [np.linalg.norm(t[:, pairs[0]] - t[:, pairs[1]], axis=-1).ravel().clip(max=10) for t in (one, other)]
    assert max(sample.max() for sample in samples) == 10  # something is clipped
    found = histogram_of(one).wasserstein(histogram_of(other))
    assert abs(found - wasserstein_distance(*samples)) < WIDTH
    assert 0 < found < 10


def test_wasserstein_of_nothing_is_not_a_number() -> None:
    nothing = np.zeros(BINS + 1, dtype=np.int64)
    assert np.isnan(wasserstein(nothing, nothing))
