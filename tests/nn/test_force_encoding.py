"""Force encoding: its formula, equivariance, and zero forces."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from denskit.geometry.edge_frame import wigner_d
from denskit.nn.force_encoding import ForceEncoding

from tolerances import ORACLE64

CHANNELS = (4, 3, 2)


def encoding(scale: float = 23.06) -> ForceEncoding:
    return ForceEncoding(CHANNELS, scale).double()


def test_formula() -> None:
    """|f| Y(f / |f|) / sqrt(3), scaled, with e3nn's harmonics; its part of degree 1 is the scaled force itself."""
    o3 = pytest.importorskip("e3nn.o3")
    layer, forces = encoding(), torch.randn(6, 3, dtype=torch.float64)
    for l, (part, weight) in enumerate(zip(layer(forces), layer.linear.weights, strict=True)):
        harmonics = o3.spherical_harmonics(l, forces, normalize=True, normalization="component")
        expected = 23.06 / 3**0.5 * forces.norm(dim=1, keepdim=True) * harmonics
        torch.testing.assert_close(part, expected[:, :, None] * weight[0], rtol=0, atol=ORACLE64)
    torch.testing.assert_close(layer(forces)[1], 23.06 * forces[:, :, None] * layer.linear.weights[1][0])


def test_equivariant() -> None:
    layer, forces = encoding(), torch.randn(6, 3, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    rotation = rotation * rotation.det()
    for matrix, part, turned in zip(
        wigner_d(rotation[None], 2), layer(forces), layer(forces @ rotation.T), strict=True
    ):
        torch.testing.assert_close(matrix @ part, turned, rtol=0, atol=ORACLE64)


def test_zero_forces_encode_to_exactly_zero() -> None:
    forces = torch.randn(5, 3)
    forces[[1, 3]] = 0
    layer = ForceEncoding(CHANNELS, 1.0)
    assert not [name for name, _ in layer.named_parameters() if "bias" in name]  # one would act at inference
    for part in layer(forces):
        assert torch.equal(part[[1, 3]], torch.zeros_like(part[[1, 3]]))
        assert bool(part[[0, 2, 4]].any())


@pytest.mark.parametrize("mark", [False, True])
def test_forces_whose_square_vanishes_are_zero(mark: bool) -> None:
    """In float32 that of 1e-23 eV/Å does; NaN would end the training."""
    module = ForceEncoding([4, 4, 4], 1.0, mark=mark).float()
    forces = torch.tensor([[0.0, 1e-23, 0.0], [1e-30, 0.0, 0.0], [1.0, 0.0, 0.0]], requires_grad=True)
    features = module(forces)
    assert all((part[:2] == 0).all() and part[2].any() for part in features)
    [gradient] = torch.autograd.grad(sum(part.sum() for part in features), [forces])
    assert torch.isfinite(gradient).all()


def test_a_mark_tells_atoms_with_small_forces_from_those_without() -> None:
    """On the scalars alone, as large for a small force as for a large one; exactly nothing on atoms without force."""
    layer = ForceEncoding(CHANNELS, 1.0, mark=True)
    mark = layer.linear.bias
    assert mark is not None and float(mark.detach().std()) > 0.1
    forces = torch.tensor([[0.0, 0, 0], [0, 1e-6, 0], [3, 0, -1]])
    scalars, *others = layer(forces)
    assert torch.equal(scalars[0], torch.zeros_like(scalars[0]))
    torch.testing.assert_close(scalars[1, 0], mark)
    plain = ForceEncoding(CHANNELS, 1.0)
    plain.linear.load_state_dict(layer.linear.state_dict(), strict=False)
    torch.testing.assert_close(scalars[2, 0] - mark, plain(forces)[0][2, 0])
    assert all(torch.equal(part, bare) for part, bare in zip(others, plain(forces)[1:], strict=True))
    (gradient,) = torch.autograd.grad(layer(0 * forces)[0].sum(), mark)
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_gradients_of_zero_forces_are_finite() -> None:
    forces = torch.zeros(2, 3, requires_grad=True)
    layer = ForceEncoding(CHANNELS, 1.0)
    total = torch.stack([part.sum() for part in layer(forces)]).sum()
    gradients = torch.autograd.grad(total, [forces, *layer.parameters()])
    assert all(torch.equal(g, torch.zeros_like(g)) for g in gradients)


@pytest.mark.parametrize("force", [(0.0, 2.0, 0.0), (0.0, -1e-6, 0.0), (1.0, 0.0, 0.0), (0.3, -0.2, 5.0)])
def test_derivatives_are_right(force: tuple[float, float, float]) -> None:
    layer = encoding(1 / max(abs(x) for x in force))

    def values(x: Tensor) -> Tensor:
        return torch.cat([part.flatten() for part in layer(x)])

    x = torch.tensor([force], dtype=torch.float64)
    size = x.abs().max()
    assert gradcheck(lambda y: values(y * size), (x / size).requires_grad_())


def test_small_forces_are_not_lost() -> None:
    """Linear in the size of the force down to where float32 squares underflow."""
    layer = ForceEncoding(CHANNELS, 1.0)
    force = torch.tensor([[0.6, 0.0, 0.8]])
    for small, part in zip(layer(1e-15 * force), layer(force), strict=True):
        torch.testing.assert_close(small * 1e15, part, rtol=1e-4, atol=1e-4)
