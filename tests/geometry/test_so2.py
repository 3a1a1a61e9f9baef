"""Tensor products in the edge frame against e3nn's in the laboratory frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from denskit.geometry.edge_frame import edge_frames
from denskit.geometry.so2 import CouplingPath, paths_to, ranges_of, split_orders
from denskit.models.equiformer.kernels.reference import couple
from denskit.models.equiformer.tensor_product import DepthwiseTensorProductLinear, SharedTensorProductLinear

from tolerances import EXACT64, ORACLE64

EDGES = 7
CASES = [((4, 3, 2), (5, 2, 3)), ((3, 2, 2, 1), (4, 2, 1, 2))]  # channels in and out, L = 2 and 3
# e3nn makes its constants in the default type
pytestmark = pytest.mark.usefixtures("double_precision")
CHANGED = {(1, 2, 2), (1, 3, 3)}  # sorted degrees whose Wigner 3j e3nn has had with the other sign since 0.5


@pytest.fixture
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def flat(x: Sequence[Tensor]) -> Tensor:
    """Features as e3nn lays them out: [E, sum over degrees of (channel, m)]."""
    return torch.cat([x_l.mT.flatten(1) for x_l in x], 1)


def e3nn_product(
    paths: Sequence[CouplingPath], channels: Sequence[int], x: Sequence[Tensor], vectors: Tensor, weights: Tensor
) -> list[Tensor]:
    """e3nn's depthwise tensor product with the harmonics of edges, path by path: [E, 2 l3 + 1, C_l1] each.

    Weights [E, sum of C_l1] are multiplied by the sign that makes e3nn's constants the published ones.
    """
    o3 = pytest.importorskip("e3nn.o3")
    l_max = len(channels) - 1
    product = o3.TensorProduct(
        "+".join(f"{c}x{l}e" for l, c in enumerate(channels)),
        "+".join(f"1x{l}e" for l in range(l_max + 1)),
        "+".join(f"{channels[p.l1]}x{p.l3}e" for p in paths),
        [(p.l1, p.l2, k, "uvu", True) for k, p in enumerate(paths)],
        irrep_normalization="component", path_normalization="none", shared_weights=False, internal_weights=False,
    )  # fmt: skip
    signs = torch.cat(
        [torch.full((channels[p.l1],), -1.0 if tuple(sorted((p.l1, p.l2, p.l3))) in CHANGED else 1.0) for p in paths]
    )
    harmonics = o3.spherical_harmonics(list(range(l_max + 1)), vectors, normalize=True, normalization="component")
    out = product(flat(x), harmonics, weights * signs)
    parts = out.split([channels[p.l1] * (2 * p.l3 + 1) for p in paths], 1)
    return [part.reshape(EDGES, channels[p.l1], 2 * p.l3 + 1).mT for part, p in zip(parts, paths, strict=True)]


def in_laboratory(
    layer: DepthwiseTensorProductLinear | SharedTensorProductLinear,
    x: Sequence[Tensor],
    vectors: Tensor,
    weights: Tensor,
) -> list[Tensor]:
    """The same function as a layer of ours, by e3nn: [E, 2 l3 + 1, C'] for each l3, rows m = -l..l."""
    out = []
    for paths, weight, own in zip(layer.plan(0).paths, layer.weights, weights.split(layer.widths, 1), strict=True):
        coupled = e3nn_product(paths, layer.channels_in, x, vectors, own)
        out.append(torch.cat(coupled, -1) @ weight)
    out[0] = out[0] + layer.bias
    return out


def random_input(channels: Sequence[int]) -> tuple[list[Tensor], Tensor]:
    x = [torch.randn(EDGES, 2 * l + 1, c) for l, c in enumerate(channels)]
    vectors = torch.randn(EDGES, 3)
    vectors[0], vectors[1] = torch.tensor([0.0, -1.0, 0.0]), torch.tensor([1.0, 0.0, 0.0])
    return x, vectors


@pytest.mark.parametrize("parity", [False, True])
@pytest.mark.parametrize(("channels_in", "channels_out"), CASES)
def test_depthwise_equals_e3nn(channels_in: tuple[int, ...], channels_out: tuple[int, ...], parity: bool) -> None:
    l_max = len(channels_in) - 1
    layer = DepthwiseTensorProductLinear(channels_in, channels_out, init="normal", parity=parity)
    torch.nn.init.normal_(layer.bias)
    x, vectors = random_input(channels_in)
    weights = torch.randn(EDGES, layer.num_path_weights)
    expected = in_laboratory(layer, x, vectors, weights)
    wigner, all_edges = edge_frames(vectors, l_max).wigner, torch.arange(EDGES)
    for m_max in range(l_max + 1):
        plan = layer.plan(m_max)
        coupled = couple(plan, x, [torch.zeros_like(x_l) for x_l in x], all_edges, all_edges, wigner, weights)
        mixed = layer(coupled, m_max)
        assert [(b.l3, b.m) for b in plan.blocks] == [
            (l, m) for l in range(l_max + 1) for m in range(min(l, m_max) + 1)
        ]
        for block, rows in zip(plan.blocks, mixed, strict=True):
            turned = split_orders(wigner[block.l3] @ expected[block.l3])[block.m]
            torch.testing.assert_close(rows, turned, rtol=0, atol=ORACLE64)


@pytest.mark.parametrize("parity", [False, True])
@pytest.mark.parametrize(("channels_in", "channels_out"), CASES)
def test_shared_equals_e3nn(channels_in: tuple[int, ...], channels_out: tuple[int, ...], parity: bool) -> None:
    l_max = len(channels_in) - 1
    layer = SharedTensorProductLinear(channels_in, channels_out, init="uniform", parity=parity)
    torch.nn.init.normal_(layer.bias)
    x, vectors = random_input(channels_in)
    weights = torch.cat(list(layer.path_weights)).expand(EDGES, -1)
    expected = in_laboratory(layer, x, vectors, weights)
    wigner = edge_frames(vectors, l_max).wigner
    frame = [split_orders(wigner[l] @ x_l) for l, x_l in enumerate(x)]
    for degrees in [tuple(range(l_max + 1)), (0,), (1,), (0, l_max)]:
        grouped = [torch.cat([rows[m] for rows in frame[m:]], -1) for m in range(max(degrees) + 1)]
        for m, value in enumerate(layer(grouped, degrees)):
            turned = [split_orders(wigner[l3] @ expected[l3])[m] for l3 in degrees if l3 >= m]
            torch.testing.assert_close(value, torch.cat(turned, -1), rtol=0, atol=ORACLE64)


def test_second_derivatives_of_the_products() -> None:
    channels = (2, 1, 1)
    depthwise = DepthwiseTensorProductLinear(channels, channels, init="normal")
    shared = SharedTensorProductLinear(channels, channels, init="normal")
    sizes = [(2 * l + 1) * c for l, c in enumerate(channels)]

    def function(x: Tensor, weights: Tensor) -> Tensor:
        parts = [part.reshape(1, 2 * l + 1, -1) for l, part in enumerate(x.split(sizes))]
        turned = [torch.eye(2 * l + 1)[None] for l in range(3)]
        zeros, edge = [torch.zeros_like(part) for part in parts], torch.zeros(1, dtype=torch.long)
        plan = depthwise.plan(2)
        mixed = depthwise(couple(plan, parts, zeros, edge, edge, turned, weights), 2)
        frame = {(block.l3, block.m): part for block, part in zip(plan.blocks, mixed, strict=True)}
        values = shared([torch.cat([frame[l, m] for l in range(m, 3)], -1) for m in range(3)], (0, 1, 2))
        return torch.cat([value.flatten() for value in values])

    x = torch.randn(sum(sizes), requires_grad=True)
    weights = torch.randn(1, depthwise.num_path_weights, requires_grad=True)
    assert gradcheck(function, (x, weights))
    assert gradgradcheck(function, (x, weights))


@pytest.mark.parametrize("l3", range(4))
def test_paths_at_each_order_are_contiguous(l3: int) -> None:
    paths = paths_to(l3, 3, 3)
    assert len(set(paths)) == len(paths)
    assert all(abs(p.l1 - p.l2) <= l3 <= p.l1 + p.l2 and p.l3 == l3 for p in paths)
    for m in range(l3 + 1):
        for even in (True, False):
            places = [k for k, p in enumerate(paths) if p.even == even and p.l1 >= m]
            assert places == list(range(places[0], places[0] + len(places))) if places else True


def test_paths_of_parity_are_the_even_ones() -> None:
    """11 of the 15 up to degree 2."""
    assert [path for l3 in range(4) for path in paths_to(l3, 3, 3, parity=True)] == [
        path for l3 in range(4) for path in paths_to(l3, 3, 3) if path.even
    ]
    assert sum(len(paths_to(l3, 2, 2)) for l3 in range(3)) == 15
    assert sum(len(paths_to(l3, 2, 2, parity=True)) for l3 in range(3)) == 11


def test_coefficients_by_hand() -> None:
    """A scalar times Y_l is Y_l; a vector times the edge: its component along it, and the cross product."""
    for l in range(4):
        assert CouplingPath(0, l, l).coefficient(0) == pytest.approx((2 * l + 1) ** 0.5, abs=EXACT64)
        assert CouplingPath(l, 0, l).coefficient(l) == pytest.approx(1.0, abs=EXACT64)
    assert CouplingPath(1, 1, 0).coefficient(0) == pytest.approx(1.0, abs=EXACT64)
    assert CouplingPath(1, 1, 1).coefficient(0) == 0.0
    assert abs(CouplingPath(1, 1, 1).coefficient(1)) == pytest.approx(1.5**0.5, abs=EXACT64)


def test_overlapping_ranges() -> None:
    ranges = ((0, 3), (1, 5), (2, 2), (0, 6))
    x = torch.randn(2, 6, requires_grad=True)
    for part, (start, stop) in zip(ranges_of(x, ranges), ranges, strict=True):
        assert torch.equal(part, x[:, start:stop])

    def squares(x: Tensor) -> tuple[Tensor, ...]:
        return tuple((k + 1) * part**3 for k, part in enumerate(ranges_of(x, ranges)))

    assert gradcheck(squares, x)
    assert gradgradcheck(squares, x)


def test_ranges_that_the_loss_does_not_use() -> None:
    x = torch.randn(2, 6, requires_grad=True)
    used, _ = ranges_of(x, ((1, 3), (0, 6)))
    (gradient,) = torch.autograd.grad(used.sum(), x)
    expected = torch.zeros_like(x)
    expected[:, 1:3] = 1
    assert torch.equal(gradient, expected)
