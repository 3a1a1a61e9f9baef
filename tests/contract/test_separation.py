"""Atoms whose isolated energies are known: exact without neighbours, and smooth on the way there, in every model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from contract.variants import VARIANTS, build
from denskit.batch import System
from denskit.data.base import collate
from denskit.models import ForceField
from denskit.models.scaling import Scaling
from denskit.nn.covalent_origins import RADII
from denskit.nn.separation import REACH, Separation
from denskit.simulation.potential import Potential
from denskit.testing import JUMP, STEP, batch_of, jump_at_cutoff, molecule, moved

from tolerances import ENERGY_ROUND_TRIP_EV

ATOMS = {"H": -12.5, "O": -1998.0}


def separable(name: str, dtype: torch.dtype = torch.float64, isolated: dict[str, float] = ATOMS) -> ForceField:
    force_field = build(name, dtype)
    table = {"C": -1000.0, "H": -13.0, "N": -1500.0, "O": -2000.0}
    force_field.scaling = Scaling(**{**force_field.scaling.to_dict(), "energy_shift": 0.0, "references": table})
    said = force_field.scaling.take_isolated(isolated)
    assert not said.startswith("warning"), said
    return force_field


@pytest.mark.parametrize("name", VARIANTS)
def test_atoms_beyond_the_cutoff_have_the_energies_of_isolated_ones(name: str) -> None:
    force_field = separable(name)
    far = 2.5 * force_field.cutoff
    apart = molecule([[0.0, 0.0, 0.0], [far, 0.0, 0.0], [0.0, far, 0.0]], [8, 1, 1])
    alone = molecule([[0.3, 0.1, 0.2]], [1])
    out = force_field.predict(batch_of([apart, alone], force_field))
    wanted = torch.tensor([ATOMS["O"] + 2 * ATOMS["H"], ATOMS["H"]], dtype=torch.float64)
    assert float((out["energy"] - wanted).abs().max()) < ENERGY_ROUND_TRIP_EV
    if VARIANTS[name].config.forces == "gradient":
        assert float(out["forces"].abs().max()) == 0.0


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if variant.config.forces == "gradient"])
def test_forces_are_the_gradient_while_atoms_leave(name: str, systems: dict[str, System]) -> None:
    force_field = separable(name)
    water = systems["water"]
    leaving = water.positions.copy()
    leaving[-1] += (0.5 * force_field.cutoff, 0.4, 0.0)
    batch = batch_of([replace(water, positions=leaving, forces=None)], force_field)
    forces = force_field(batch, None, ("energy", "forces"))["forces"]
    way = torch.randn(batch.positions.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before, after = (force_field(moved(batch, s * STEP * way), None, ("energy",))["energy"] for s in (-0.1, 0.1))
        work = float((forces * way).sum())
    assert work == pytest.approx(float(before - after) / (0.2 * STEP), rel=1e-6)


def test_the_way_is_smooth() -> None:
    """No jump in energy, forces or curvature where the last neighbour goes beyond the cutoff."""
    name = next(name for name in VARIANTS if build(name, torch.float32).backbone.smooth)
    assert jump_at_cutoff(separable(name)) < JUMP
    reach = REACH * (0.32 + 0.63)
    length = torch.linspace(reach - 0.1, reach + 0.1, 2001, dtype=torch.float64, requires_grad=True)
    index, numbers = (
        torch.stack([torch.arange(2001), torch.arange(2001, 4002)]),
        torch.tensor([1, 8]).repeat_interleave(2001),
    )
    share = Separation(5.0)(length, index, numbers)[2001:]
    for _ in range(3):
        assert bool((share[length >= reach] == 0).all())
        assert float(share.detach().diff().abs().max()) < 1e-2 * max(1.0, float(share.detach().abs().max()))
        (share,) = torch.autograd.grad(share.sum(), length, create_graph=True)


def test_bound_atoms_are_as_without(systems: dict[str, System]) -> None:
    """Within a hundredth of the difference to an isolated atom; elements that are not known exactly."""
    name = next(name for name, variant in VARIANTS.items() if variant.config.name == "equiformer")
    plain, known = separable(name, isolated={}), separable(name, isolated={"H": -12.5})
    batch = batch_of([systems["ethanol"]], plain)
    before, after = (model.predict(batch, ("energies",))["energies"] for model in (plain, known))
    hydrogen = batch.atomic_numbers == 1
    assert bool((before[~hydrogen] == after[~hydrogen]).all())
    assert 0 < float((before - after)[hydrogen].abs().max()) < 0.01 * float((before[hydrogen] + 12.5).abs().max())


def test_padding_is_no_neighbour() -> None:
    index, numbers = torch.tensor([[1, 0, 1], [0, 1, 2]]), torch.tensor([1, 8, 8])
    length, mask = torch.tensor([0.95, 0.95, 1.0], dtype=torch.float64), torch.tensor([True, True, False])
    padded = Separation(5.0)(length, index, numbers, mask)
    assert torch.equal(padded, Separation(5.0)(length[:2], index[:, :2], numbers))
    assert float(padded[2]) == 0.0 and 0.99 < float(padded[0]) < 1.0


@pytest.mark.parametrize("cutoff", [4.0, 5.0, 6.0, 12.0])
def test_a_bond_binds_whatever_its_length_and_the_cutoff(cutoff: float) -> None:
    """Also that of two atoms of caesium, nearly as long as the cutoff of most models."""
    for radius, number in zip(RADII, range(1, len(RADII) + 1), strict=True):
        bond = 2 * radius / 100
        pair = torch.tensor([[0], [1]]), torch.tensor([number, number])
        shares = [float(Separation(cutoff)(torch.tensor([length]), *pair)[1]) for length in (bond, 4.01 * bond, cutoff)]
        assert shares[0] > 0.99 or bond > 0.9 * cutoff
        assert shares[1:] == [0.0, 0.0]
    carbon = [float(Separation(12.0)(torch.tensor([n * 1.5]), torch.tensor([[0], [1]]), torch.tensor([6, 6]))[1])
              for n in (1, 2, 3)]  # fmt: skip
    assert carbon[0] > 0.99 > carbon[1] > 0.9 > carbon[2] > 0.3


def test_dissociation_of_a_pair_ends_at_its_atoms() -> None:
    """The curve of a diatomic through a potential: continuous, and exact from the cutoff on."""
    name = next(name for name in VARIANTS if build(name, torch.float32).backbone.smooth)
    model = separable(name)
    distances = np.linspace(0.9, model.cutoff + 0.2, 300)
    curve = [molecule([[0.0, 0.0, 0.0], [0.0, distance, 0.0]], [1, 8]) for distance in distances]
    energies = Potential(model, skin=0.0)(collate(curve, torch.float64)[0]).energy.numpy()
    wanted = ATOMS["H"] + ATOMS["O"]
    assert np.abs(energies[distances > model.cutoff] - wanted).max() < ENERGY_ROUND_TRIP_EV
    assert np.abs(np.diff(energies)).max() < 0.1 * np.ptp(energies)
    assert abs(energies[0] - wanted) > 0.1
