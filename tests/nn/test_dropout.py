"""Dropout of channels and of whole structures."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from denskit.nn.dropout import EquivariantDropout, StochasticDepth


def ones() -> list[Tensor]:
    return [torch.ones(50, 2 * l + 1, 40) for l in range(3)]


def test_drops_channels_with_all_their_orders() -> None:
    dropped = EquivariantDropout(0.25)(ones())
    for part in dropped:
        assert torch.equal(part, part[:, :1].expand_as(part))
        kept = part[:, 0] != 0
        assert 0.65 < kept.float().mean().item() < 0.85
        torch.testing.assert_close(part[:, 0][kept], torch.full((int(kept.sum()),), 1 / 0.75))  # same mean
    assert not torch.equal(dropped[0][:, 0], dropped[1][:, 0])  # degrees by themselves


def test_drops_structures_whole() -> None:
    index = torch.arange(50) // 2
    parts = StochasticDepth(0.5)(ones(), index, 25)
    kept = parts[0][:, 0, 0]
    for part in parts:
        assert torch.equal(part, kept[:, None, None].expand_as(part))
    assert torch.equal(kept[0::2], kept[1::2])
    assert set(kept.tolist()) == {0.0, 2.0}


def test_idle_in_evaluation_and_at_probability_zero() -> None:
    x, index = ones(), torch.zeros(50, dtype=torch.int64)
    modules: list[nn.Module] = [EquivariantDropout(0.5).eval(), EquivariantDropout(0.0)]
    for module in modules:
        assert all(a is b for a, b in zip(module(x), x, strict=True))
    for depth in (StochasticDepth(0.5).eval(), StochasticDepth(0.0)):
        assert all(a is b for a, b in zip(depth(x, index, 1), x, strict=True))
