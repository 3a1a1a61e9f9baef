from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from denskit.random import Use, fold, keys_for, normal, permuted, uniform

COUNT = 200_000
SIGMAS = 4.5  # allowed deviation of a statistic, in its own standard deviations: one false alarm in 150,000 tests


def within(value: float, expected: float, spread: float, count: int = COUNT) -> bool:
    """Whether a mean of ``count`` draws of standard deviation ``spread`` is where it should be."""
    return abs(value - expected) < SIGMAS * spread / math.sqrt(count)


def pairs() -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Pairs of streams that must not know of each other: neighbours in each thing that a draw depends on."""
    keys = keys_for(0, 0, range(COUNT))
    number = torch.arange(COUNT)
    one = keys[:1]
    return [
        ("seed", uniform(keys, 1, 0), uniform(keys_for(1, 0, range(COUNT)), 1, 0)),
        ("epoch", uniform(keys, 1, 0), uniform(keys_for(0, 1, range(COUNT)), 1, 0)),
        ("sample", uniform(keys, 1, 0), uniform(keys_for(0, 0, range(1, COUNT + 1)), 1, 0)),
        ("use", uniform(keys, 1, 0), uniform(keys, 2, 0)),
        ("atom", uniform(one, 1, number), uniform(one, 1, number + 1)),
        ("component", uniform(one, 1, number, 0), uniform(one, 1, number, 1)),
        ("seed against epoch", uniform(keys, 1), uniform(keys_for(0, 1, range(COUNT)), 1)),
        ("use against atom", uniform(keys, 1, 2), uniform(keys, 2, 1)),
        ("key bits", uniform(one + number, 1), uniform(one + (number << 32), 1)),
    ]


PAIRS = pairs()


@pytest.mark.parametrize(("name", "first", "second"), PAIRS, ids=[name for name, _, _ in PAIRS])
def test_neighbouring_streams_are_uniform_and_independent(name: str, first: torch.Tensor, second: torch.Tensor) -> None:
    for stream in (first, second):
        assert within(float(stream.mean()), 0.5, math.sqrt(1 / 12))
        assert within(float((stream - 0.5).square().mean()), 1 / 12, math.sqrt(1 / 180))
    product = (first - 0.5) * (second - 0.5)
    assert within(float(product.mean()), 0.0, 1 / 12)
    cells = torch.bincount((16 * first).long() * 16 + (16 * second).long(), minlength=256).double()
    expected = COUNT / 256
    chi_square = float(((cells - expected).square() / expected).sum())
    assert abs(chi_square - 255) < SIGMAS * math.sqrt(2 * 255)


def test_every_bit_is_fair() -> None:
    bits = (uniform(keys_for(0, 0, range(COUNT)), 1) * 2.0**53).long()
    for position in range(53):
        assert within(float(((bits >> position) & 1).double().mean()), 0.5, 0.5)


def test_uniform_is_uniform_in_its_tails() -> None:
    draws = uniform(keys_for(5, 0, range(COUNT)), Use.CHOOSE_SYSTEM)
    assert float(draws.min()) >= 0.0
    assert float(draws.max()) < 1.0
    for edge in (0.001, 0.01, 0.1, 0.25, 0.5):
        assert within(float((draws < edge).double().mean()), edge, math.sqrt(edge * (1 - edge)))
        assert within(float((draws >= 1 - edge).double().mean()), edge, math.sqrt(edge * (1 - edge)))


def test_normal_has_the_moments_of_a_normal() -> None:
    draws = normal(keys_for(0, 3, range(COUNT)), Use.NOISE, 4, 2)
    assert within(float(draws.mean()), 0.0, 1.0)
    assert within(float(draws.square().mean()), 1.0, math.sqrt(2))
    assert within(float((draws**3).mean()), 0.0, math.sqrt(15))
    assert within(float((draws**4).mean()), 3.0, math.sqrt(96))
    for edge in (-2.0, -0.5, 1.0, 3.0):
        share = 0.5 * (1 + math.erf(edge / math.sqrt(2)))
        assert within(float((draws < edge).double().mean()), share, math.sqrt(share * (1 - share)))


def test_components_of_noise_are_uncorrelated() -> None:
    keys = keys_for(0, 0, range(COUNT // 2))
    draws = normal(keys[:, None], Use.NOISE, torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 2, 0]))
    covariance = draws.T @ draws / len(draws)
    assert (covariance - torch.eye(4)).abs().max() < SIGMAS * math.sqrt(2 / len(draws))


def test_keys_are_distinct_and_do_not_depend_on_their_neighbours() -> None:
    keys = keys_for(9, 2, range(COUNT))
    assert len(torch.unique(keys)) == COUNT
    order = torch.randperm(COUNT)
    assert torch.equal(keys_for(9, 2, order), keys[order])
    assert keys_for(9, 2, [17]).item() == keys[17].item()


def test_draws_are_those_of_this_version_for_ever() -> None:
    """A resumed run and another machine must draw the same: a change here breaks every stored run."""
    assert fold(0) == 8147104208329303767
    assert fold(1, 2, 3) == 1434657543605386066
    assert keys_for(1, 2, [3, 4]).tolist() == [2869315087210772132, 4356551549751739576]
    draws = normal(keys_for(1, 2, [3]), Use.NOISE, torch.arange(3))
    expected = torch.tensor([0.25496709319168215, 0.449266708217706, 1.2489232556053411], dtype=torch.float64)
    torch.testing.assert_close(draws, expected, rtol=1e-14, atol=0)


def test_the_mixing_is_splitmix64() -> None:
    """The first outputs of the reference implementation for state 0: keys over samples walk its sequence."""
    from denskit.random import _absorb

    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    drawn = _absorb(torch.zeros(3, dtype=torch.int64), torch.arange(3))
    assert [value % 2**64 for value in drawn.tolist()] == expected


def test_fold_depends_on_every_value_and_on_their_order() -> None:
    values = [fold(0), fold(1), fold(0, 0), fold(0, 1), fold(1, 0), fold(0, 0, 0), fold(-1), fold(2**63)]
    assert len(set(values)) == len(values)
    assert all(0 <= value < 2**63 for value in values)


def test_float32_is_float64_rounded() -> None:
    keys = keys_for(0, 0, range(COUNT))
    single, double = uniform(keys, 1, dtype=torch.float32), uniform(keys, 1)
    assert single.dtype == torch.float32
    assert float(single.max()) < 1.0
    assert torch.all((double - single.double() >= 0) & (double - single.double() < 2.0**-24))
    assert torch.equal(normal(keys, 3, dtype=torch.float32), normal(keys, 3).float())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_draws_the_same() -> None:
    keys = keys_for(0, 0, range(COUNT))
    assert torch.equal(uniform(keys.cuda(), 1).cpu(), uniform(keys, 1))
    torch.testing.assert_close(normal(keys.cuda(), 3).cpu(), normal(keys, 3), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("size", [*range(1, 70), 1000, 4097, 99_991])
def test_permuted_is_a_permutation(size: int) -> None:
    for key in range(3):
        assert sorted(permuted(fold(key, size), size, np.arange(size)).tolist()) == list(range(size))


def test_permuted_places_do_not_depend_on_each_other() -> None:
    """One place, some places or all: the same; also where there are as many structures as OC20 has."""
    whole = permuted(fold(1), 1000, np.arange(1000))
    chosen = np.array([999, 3, 3, 500])
    assert np.array_equal(permuted(fold(1), 1000, chosen), whole[chosen])
    size = 172_249_423
    places = np.concatenate([np.arange(5000), np.arange(size - 5000, size)])
    found = permuted(fold(1), size, places)
    assert len(np.unique(found)) == 10_000 and found.min() >= 0 and found.max() < size


def test_orders_are_those_of_this_version_for_ever() -> None:
    """A run must go on with the same batches under a later version; numbers by the same steps in plain integers."""
    assert permuted(fold(3), 10, np.arange(10)).tolist() == [
        _permuted_slowly(fold(3), 10, place) for place in range(10)
    ]
    assert permuted(fold(3), 10**9, np.array([12345])).tolist() == [_permuted_slowly(fold(3), 10**9, 12345)]
    assert permuted(fold(0), 8, np.arange(8)).tolist() == [1, 4, 0, 5, 3, 6, 7, 2]


def _permuted_slowly(key: int, size: int, place: int) -> int:
    rows = math.isqrt(size - 1) + 1
    columns = -(-size // rows)
    row, column = divmod(place, columns)
    for number in range(0, 12, 2):
        row = (row + fold(key, number, column) % rows) % rows
        column = (column + fold(key, number + 1, row) % columns) % columns
    value = row * columns + column
    return value if value < size else _permuted_slowly(key, size, value)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_orders_of_few_things_come_equally_often(size: int) -> None:
    """Chi-squared over all size! orders; a fair shuffle exceeds the bound once in 10,000 draws of the keys."""
    counts = Counter(tuple(permuted(fold(key, 7), size, np.arange(size)).tolist()) for key in range(2400))
    expected = 2400 / math.factorial(size)
    squared = sum((counts[order] - expected) ** 2 / expected for order in itertools.permutations(range(size)))
    assert squared < chi2.isf(1e-4, math.factorial(size) - 1)


def test_every_thing_comes_to_every_place_equally_often() -> None:
    size, keys = 30, 2000
    table = np.zeros((size, size))
    for key in range(keys):
        table[np.arange(size), permuted(fold(key, 8), size, np.arange(size))] += 1
    expected = keys / size
    assert ((table - expected) ** 2).sum() / expected < chi2.isf(1e-4, (size - 1) ** 2)


def test_an_order_has_no_memory_of_the_last_nor_of_itself() -> None:
    """Neighbours in one order, and one place in two orders, are not correlated; fixed points are rare."""
    size = 100_000
    numbers = np.arange(size)
    orders = [permuted(fold(0, epoch), size, numbers) for epoch in range(4)]
    bound = SIGMAS / math.sqrt(size)
    for order in orders:
        for lag in (1, 2, 32, 317):
            assert abs(np.corrcoef(order[:-lag], order[lag:])[0, 1]) < bound
        assert abs(np.corrcoef(order, numbers)[0, 1]) < bound
        assert (order == numbers).sum() < 10  # 1 is expected, Poisson
        assert (abs(np.diff(order)) == 1).sum() < 14  # 2 are expected, Poisson
    for one, other in itertools.combinations(orders, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < bound
        assert (one == other).sum() < 10
