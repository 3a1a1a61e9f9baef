"""SO(2) linear layers: rows by order, equivariance about the edge, and messages in chunks against plain operations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from denskit.geometry import so2_messages
from denskit.geometry.edge_frame import edge_frames, wigner_d
from denskit.geometry.order_major import order_major, pack_wigner, rows_of_degrees
from denskit.geometry.so2_messages import MessageEdges, orders, rotate_and_convolve, weigh_and_sum
from denskit.nn.so2_linear import SO2Linear

from tolerances import EXACT64

L_MAX, M_MAX, EDGES, ATOMS, CHANNELS = 3, 2, 11, 4, 5


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=EXACT64 * float(expected.detach().abs().max() + 1))


def test_rows_are_grouped_by_order() -> None:
    rows = [(l, m) for l, m, _ in order_major(3, 2)]
    assert rows == [
        (0, 0), (1, 0), (2, 0), (3, 0),
        (1, 1), (2, 1), (3, 1), (1, -1), (2, -1), (3, -1),
        (2, 2), (3, 2), (2, -2), (3, -2),
    ]  # fmt: skip
    assert sorted(position for _, _, position in order_major(3, 2)) == list(range(14))
    assert rows_of_degrees(3, 2, (1,)) == (1, 4, 7)


def test_packed_matrix_holds_the_blocks() -> None:
    frames = edge_frames(torch.randn(EDGES, 3), L_MAX)
    packed = pack_wigner(frames.wigner, L_MAX, M_MAX)
    for k, (l, m, _) in enumerate(order_major(L_MAX, M_MAX)):
        row = frames.wigner[l][:, 2 * abs(m) - (m > 0)]
        close(packed[:, k, l * l : (l + 1) ** 2], row)
        assert torch.equal(packed[:, k].square().sum(-1).round(decimals=9), torch.ones(EDGES))


@pytest.mark.parametrize("parity", [False, True])
def test_commutes_with_rotations_about_the_edge(parity: bool) -> None:
    """And with no other rotation."""
    layer = SO2Linear(L_MAX, M_MAX, CHANNELS, 3, extra=2, parity=parity, init="normal")
    x = torch.randn(EDGES, len(order_major(L_MAX, M_MAX)), CHANNELS)
    angle = torch.tensor(0.7)
    cos, sin = angle.cos(), angle.sin()
    about_y = torch.stack(
        [torch.stack((cos, 0 * cos, sin)), torch.tensor([0.0, 1.0, 0.0]), torch.stack((-sin, 0 * cos, cos))]
    )
    turn = _turn(about_y)
    out, extra = layer(x)
    turned, same = layer(turn @ x)
    close(turned, turn @ out)
    close(same, extra)
    other = _turn(torch.tensor([[1.0, 0, 0], [0, 0, -1.0], [0, 1.0, 0]]))
    assert not torch.allclose(layer(other @ x)[0], other @ out)


@pytest.mark.parametrize("parity", [False, True])
def test_with_parity_commutes_with_a_mirror_that_holds_the_edge(parity: bool) -> None:
    """It changes the sign of the rows -m alone."""
    layer = SO2Linear(L_MAX, M_MAX, CHANNELS, 3, extra=2, parity=parity, init="normal")
    rows = order_major(L_MAX, M_MAX)
    mirror = torch.tensor([[-1.0 if m < 0 else 1.0] for _, m, _ in rows])
    x = torch.randn(EDGES, len(rows), CHANNELS)
    (out, extra), (mirrored, same) = layer(x), layer(mirror * x)
    assert torch.allclose(mirrored, mirror * out) == parity
    close(same, extra)


def _turn(rotation: Tensor) -> Tensor:
    """What a rotation does to order-major rows, [K, K]."""
    blocks = wigner_d(rotation[None], L_MAX)
    rows = order_major(L_MAX, M_MAX)
    matrix = torch.zeros(len(rows), len(rows))
    for a, (l, m, _) in enumerate(rows):
        for b, (k, n, _) in enumerate(rows):
            if l == k:
                matrix[a, b] = blocks[l][0, l + m, l + n]
    return matrix


@pytest.mark.parametrize("parity", [False, True])
def test_chosen_degrees_are_rows_of_all(parity: bool) -> None:
    layer = SO2Linear(L_MAX, M_MAX, CHANNELS, 3, extra=2, parity=parity, init="uniform")
    x = torch.randn(EDGES, len(order_major(L_MAX, M_MAX)), CHANNELS)
    out, extra = layer(x)
    for degrees in ((0,), (1,), (0, 2), (0, 1, 2, 3)):
        some, same = layer(x, degrees=degrees)
        close(some, out[:, list(rows_of_degrees(L_MAX, M_MAX, degrees))])
        close(same, extra)


@pytest.mark.parametrize("parity", [False, True])
@pytest.mark.parametrize("values", [1, 200, 10**6])
def test_messages_in_chunks_equal_plain_ones(monkeypatch: pytest.MonkeyPatch, values: int, parity: bool) -> None:
    """Outputs and all gradients, whatever the size of the chunks."""
    monkeypatch.setattr(so2_messages, "VALUES", {"cpu": values, "cuda": values})
    frames = edge_frames(torch.randn(EDGES, 3), L_MAX)
    into = pack_wigner(frames.wigner, L_MAX, M_MAX)
    source, target = torch.randint(ATOMS, (2, EDGES))
    edges, layout = MessageEdges(source, target, into, ATOMS), orders(L_MAX, M_MAX)
    layer = SO2Linear(L_MAX, M_MAX, 2 * CHANNELS, 4, extra=3, parity=parity, init="normal")
    x, hidden = torch.randn(ATOMS, (L_MAX + 1) ** 2, CHANNELS), torch.randn(EDGES, 6)
    radial, offset = torch.randn(layer.num_factors, 6), torch.randn(layer.num_factors)
    inputs = [t.requires_grad_() for t in (x, hidden, radial, offset)]
    parameters = [*inputs, *layer.parameters()]

    chunked = rotate_and_convolve(edges, layout, *inputs, layer.bias, layer.matrices())
    ends = into @ torch.cat((x[source], x[target]), -1)
    out, extra = layer(ends, hidden @ radial.T + offset)
    plain = torch.cat((extra, out.flatten(1)), 1)
    close(chunked, plain)
    weight = torch.randn_like(plain)
    for a, b in zip(*(torch.autograd.grad((y * weight).sum(), parameters) for y in (chunked, plain)), strict=True):
        close(a, b)

    kept, share = torch.randn(EDGES, len(into[0]), 6, requires_grad=True), torch.rand(EDGES, 2, requires_grad=True)
    chunked = weigh_and_sum(edges, kept, share)
    weighted = (kept.unflatten(2, (2, 3)) * share[:, None, :, None]).flatten(2)
    plain = torch.zeros(ATOMS, (L_MAX + 1) ** 2, 6).index_add(0, target, into.mT @ weighted)
    close(chunked, plain)
    weight = torch.randn_like(plain)
    for a, b in zip(*(torch.autograd.grad((y * weight).sum(), (kept, share)) for y in (chunked, plain)), strict=True):
        close(a, b)


def test_no_edges_are_no_message() -> None:
    empty = torch.zeros(0, dtype=torch.long)
    edges = MessageEdges(empty, empty, torch.zeros(0, 14, 16), ATOMS)
    assert torch.equal(weigh_and_sum(edges, torch.zeros(0, 14, 6), torch.zeros(0, 2)), torch.zeros(ATOMS, 16, 6))


def test_shared_factors_act_on_all_orders_of_a_degree() -> None:
    layer = SO2Linear(L_MAX, M_MAX, CHANNELS, 3, init="normal")
    rows = order_major(L_MAX, M_MAX)
    x = torch.randn(EDGES, len(rows), CHANNELS, requires_grad=True)
    factors = torch.randn(EDGES, (L_MAX + 1) * CHANNELS, requires_grad=True)
    spread = factors.unflatten(1, (L_MAX + 1, CHANNELS))[:, [l for l, _, _ in rows]]
    found = [layer(x, factors, shared=True)[0], layer(x * spread)[0]]
    close(*found)
    weight = torch.randn_like(found[0])
    for actual, expected in zip(*(torch.autograd.grad((y * weight).sum(), (x, factors)) for y in found), strict=True):
        close(actual, expected)
