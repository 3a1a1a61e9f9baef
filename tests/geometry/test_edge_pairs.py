"""Pairs of edges, and radial functions that are computed once for both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from contract.variants import build
from denskit.batch import Batch, Edges, System
from denskit.data.base import collate
from denskit.geometry.edge_pairs import edge_pairs, pair_of_edge, to_edges
from denskit.geometry.neighbors import build_neighbors


@pytest.fixture
def batch(systems: dict[str, System]) -> Batch:
    """Molecules and crystals, among them a cell so small that atoms neighbour their own images."""
    return build_neighbors(collate(list(systems.values()), torch.float64)[0], 4.0)


def test_every_edge_has_its_reverse(batch: Batch) -> None:
    pairs = edge_pairs(batch)
    assert pairs is not None
    index, shift = batch.built_edges.index, batch.built_edges.shift
    first, second = pairs.unbind(1)
    assert sorted(pairs.view(-1).tolist()) == list(range(batch.num_edges))
    assert torch.equal(index[:, first], index[:, second].flip(0))
    assert torch.equal(shift[first], -shift[second])
    assert bool((index[0] == index[1]).any()), "no atom neighbours its own image here"
    pair = pair_of_edge(pairs)
    assert torch.equal(pairs[pair].eq(torch.arange(len(pair))[:, None]).sum(1), torch.ones(len(pair), dtype=torch.long))


def test_what_is_not_in_pairs_is_left_alone(batch: Batch, systems: dict[str, System]) -> None:
    index, shift = batch.built_edges.index, batch.built_edges.shift
    assert edge_pairs(replace(batch, edges=Edges(index=index[:, 2:], shift=shift[2:]))) is None
    assert edge_pairs(replace(batch, edges=Edges(index=index.flip(1), shift=shift.flip(0)))) is None
    assert edge_pairs(replace(batch, edges=Edges(index=index[:, :0], shift=shift[:0]))) is None
    last = index.new_full((2, 2), batch.num_atoms - 1)  # padding
    padded = Edges(index=torch.cat((index, last), 1), shift=torch.cat((shift, shift[:2] * 0)))
    assert edge_pairs(replace(batch, edges=padded)) is None
    nearest = build_neighbors(collate([systems["ethanol"]], torch.float64)[0], 4.0, max_neighbors=2)
    assert edge_pairs(nearest) is None


def test_a_traced_graph_depends_on_no_edges(batch: Batch) -> None:
    seen = []

    def function(positions: torch.Tensor) -> torch.Tensor:
        seen.append(edge_pairs(replace(batch, positions=positions)))
        return positions * 2

    make_fx(function)(batch.positions)
    assert seen == [None]


def test_derivatives_of_values_of_pairs() -> None:
    pairs = torch.tensor([[0, 3], [1, 2], [4, 5]])
    values = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        return to_edges(x, pairs, pair_of_edge(pairs)) ** 2

    assert torch.autograd.gradcheck(function, values) and torch.autograd.gradgradcheck(function, values)


@pytest.mark.parametrize("name", ["envelope", "linear", "envelope_no_attention", "dot_product"])
def test_equiformer_with_and_without_pairs(batch: Batch, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same energies, forces and gradients of parameters, to rounding."""
    found = []
    for shared in (True, False):
        if not shared:
            monkeypatch.setattr("denskit.models.equiformer.model.edge_pairs", lambda batch: None)
        model = build(name, torch.float64).train()
        used = []
        model.backbone.basis.register_forward_hook(lambda module, given, out, rows=used: rows.append(len(out)))
        out = model(build_neighbors(batch, model.cutoff))
        sum(value.square().sum() for value in out.values()).backward()
        gradients = [p.grad.numpy() for p in model.parameters() if p.grad is not None]
        found.append((used[0], *(value.detach().numpy() for value in out.values()), *gradients))
    assert found[1][0] == 2 * found[0][0]
    for a, b in zip(found[0][1:], found[1][1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-11 * max(1.0, np.abs(b).max()))
