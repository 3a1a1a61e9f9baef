"""Features at both ends of edges, and their sums, against indexing."""

from __future__ import annotations

import torch

from denskit.geometry.edge_ends import gather_ends

SOURCE, TARGET = torch.tensor([1, 2, 0, 2, 2]), torch.tensor([0, 0, 1, 1, 1])


def test_sources_come_first() -> None:
    x = torch.randn(4, 3, 2)
    assert torch.equal(gather_ends(x, SOURCE, TARGET), torch.cat((x[SOURCE], x[TARGET]), -1))


def test_derivatives_to_third_order() -> None:
    x = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)  # atom 3 has no edge
    assert torch.autograd.gradgradcheck(lambda x: gather_ends(x, SOURCE, TARGET) ** 3, x)
    results = []
    for ends in (gather_ends(x, SOURCE, TARGET), torch.cat((x[SOURCE], x[TARGET]), -1)):
        (value,) = torch.autograd.grad(ends.pow(5).sum(), x, create_graph=True)
        (value,) = torch.autograd.grad(value.square().sum(), x, create_graph=True)
        (value,) = torch.autograd.grad(value.sum(), x)
        results.append(value)
    torch.testing.assert_close(*results)
    assert not results[0][3].any() and results[0][:3].all()
