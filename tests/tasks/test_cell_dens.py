"""Cell DeNS: some crystals are strained, their original stress is encoded, the strain is the target."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import special_ortho_group

from contract.variants import equiformer, equiformer_v3, esen
from denskit.batch import Batch, Prepared, Targets
from denskit.geometry.symmetric_matrices import coefficients_of, matrices_of
from denskit.models import ModelConfig, build_force_field
from denskit.models.scaling import Scaling
from denskit.random import keys_for
from denskit.tasks import CellDeNS, CellDeNSConfig, DeNS, DeNSConfig
from tasks.small import LinearModel, make_batch, make_targets, tensors

CONFIG = CellDeNSConfig(probability=0.5, sigma=0.1, strain_probability=0.5, strain_sigma=0.02, stress_weight=1.0)
HEADS = {"noise": "1", "strain": "0+2"}


def _crystals(count: int, atoms: int = 3) -> tuple[Batch, Targets]:
    batch = make_batch([atoms] * count)
    cell = 4 * torch.eye(3, dtype=torch.float64) + 0.3 * torch.randn(
        count, 3, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    batch = replace(batch, cell=cell, pbc=torch.ones(count, 3, dtype=torch.bool))
    targets = make_targets(batch)
    return batch, replace(targets, stress=(targets.stress + targets.stress.mT) / 2)


def _prepared(batch: Batch, targets: Targets, config: CellDeNSConfig = CONFIG) -> Prepared:
    return CellDeNS(config).prepare(batch, targets, keys_for(0, 0, range(batch.num_systems)), 0.0)


def test_strained_crystals_deform_as_a_whole_and_others_not() -> None:
    batch, targets = _crystals(40)
    calm = _prepared(batch, targets, CONFIG.model_copy(update={"probability": 0.0}))
    assert calm.strain is not None and calm.strain_mask is not None
    assert 10 < int(calm.strain_mask.sum()) < 30
    change = torch.eye(3, dtype=torch.float64) + CONFIG.strain_sigma * calm.strain
    torch.testing.assert_close(calm.batch.cell, batch.cell @ change)
    positions = torch.einsum("ni,nij->nj", batch.positions, change[batch.system_index])
    torch.testing.assert_close(calm.batch.positions, positions)
    assert torch.equal(calm.strain, calm.strain.mT)
    assert torch.equal(calm.strain.flatten(1).any(1), calm.strain_mask)


def test_strains_are_of_unit_size_without_a_direction() -> None:
    batch, targets = _crystals(4000, atoms=1)
    strain = _prepared(batch, targets, CONFIG.model_copy(update={"strain_probability": 1.0})).strain
    assert strain is not None
    assert float(strain.diagonal(dim1=1, dim2=2).std()) == pytest.approx(1.0, abs=0.03)
    assert float(strain[:, 0, 1].std()) == pytest.approx(0.5**0.5, abs=0.03)
    assert float(strain.mean()) == pytest.approx(0.0, abs=0.03)


def test_the_encoded_virial_is_that_of_the_original_structure() -> None:
    batch, targets = _crystals(30)
    prepared = _prepared(batch, targets)
    assert prepared.strain_mask is not None
    assert prepared.force_input.shape == (90, 9)
    virial = -targets.stress * batch.cell.det().abs()[:, None, None] / 3
    expected = torch.where(prepared.strain_mask[:, None], coefficients_of(virial), 0.0)[batch.system_index]
    torch.testing.assert_close(prepared.force_input[:, 3:], expected)
    blind = _prepared(batch, targets, CONFIG.model_copy(update={"stress_encoding": False}))
    assert not blind.force_input[:, 3:].any()
    assert torch.equal(blind.batch.positions, prepared.batch.positions)


def test_noise_on_atoms_is_that_of_dens() -> None:
    batch, targets = _crystals(20)
    keys = keys_for(0, 0, range(20))
    dens = DeNS(DeNSConfig(probability=0.5, sigma=0.1)).prepare(batch, targets, keys, 0.0)
    calm = CONFIG.model_copy(update={"strain_probability": 0.0})
    prepared = _prepared(batch, targets, calm)
    assert torch.equal(prepared.batch.positions, dens.batch.positions)
    assert torch.equal(prepared.force_input[:, :3], dens.force_input)


@pytest.mark.parametrize("obstacle", ["slab", "no stress", "not to be denoised"])
def test_crystals_that_cannot_be_strained_are_left_alone(obstacle: str) -> None:
    batch, targets = _crystals(20)
    none, all_of = torch.zeros(20, dtype=torch.bool), CONFIG.model_copy(update={"strain_probability": 1.0})
    if obstacle == "slab":
        batch = replace(batch, pbc=torch.tensor([True, True, False]).expand(20, 3))
    elif obstacle == "no stress":
        targets = replace(targets, stress=torch.full_like(targets.stress, torch.nan), stress_mask=none)
    else:
        batch = replace(batch, denoise=none)
    prepared = _prepared(batch, targets, all_of)
    assert prepared.strain_mask is not None
    assert not prepared.strain_mask.any()
    assert torch.equal(prepared.batch.cell, batch.cell)
    assert torch.isfinite(prepared.force_input).all()


def test_what_is_scored() -> None:
    """Strain of strained crystals, stress of untouched ones, energy of all; a perfect prediction costs nothing."""
    batch, targets = _crystals(40)
    task, prepared = CellDeNS(CONFIG), _prepared(batch, targets)
    assert prepared.strain is not None and prepared.strain_mask is not None
    right = {
        "energy": targets.energy, "forces": targets.forces, "stress": targets.stress, "noise": prepared.noise,
        "strain": prepared.strain,
    }  # fmt: skip
    terms = task.losses(right, prepared, 0.0)
    assert all(float(term.sum) == 0 for term in terms.values())
    touched = prepared.strain_mask | (batch.count_atoms(prepared.noise_mask) > 0)
    assert int(terms["strain"].count) == int(prepared.strain_mask.sum())
    assert int(terms["stress"].count) == int((~touched).sum())
    assert int(terms["energy"].count) == 40
    wrong = right | {"strain": prepared.strain + 1, "stress": targets.stress + touched[:, None, None]}
    terms = task.losses(wrong, prepared, 0.0)
    assert float(terms["strain"].mean) == pytest.approx(3.0), "a matrix of ones has norm 3"
    huber = CellDeNS(CONFIG.model_copy(update={"loss": "huber", "huber_delta": 2.0}))
    assert float(huber.losses(wrong, prepared, 0.0)["strain"].mean) == pytest.approx(2 * (3 - 1))
    assert float(terms["stress"].sum) == 0


def test_the_weight_of_the_strain_falls_as_that_of_the_noise() -> None:
    batch, targets = _crystals(4)
    task, prepared = CellDeNS(CONFIG), _prepared(batch, targets)
    prediction = LinearModel()(prepared)
    weights = [task.losses(prediction, prepared, progress)["strain"].weight for progress in (0.0, 0.5, 1.0)]
    assert weights == pytest.approx([1.0, 0.5, 0.0])
    alone = CellDeNS(CONFIG.model_copy(update={"coefficient": 0.0}))
    assert alone.losses(prediction, prepared, 0.5)["strain"].weight == 0.5, "without the noise of atoms"


def test_corruption_does_not_depend_on_the_batch() -> None:
    batch, targets = _crystals(6)
    whole = tensors(_prepared(batch, targets))
    again = tensors(_prepared(batch, targets))
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    other = CellDeNS(CONFIG).prepare(batch, targets, keys_for(1, 0, range(6)), 0.0)
    assert not torch.equal(other.batch.positions, whole["batch.positions"])


def test_matrices_and_coefficients() -> None:
    matrix = torch.randn(7, 3, 3, dtype=torch.float64)
    symmetric = (matrix + matrix.mT) / 2
    torch.testing.assert_close(matrices_of(coefficients_of(matrix)), symmetric)
    torch.testing.assert_close(coefficients_of(symmetric).norm(dim=1), symmetric.flatten(1).norm(dim=1))


@pytest.mark.parametrize("config", [equiformer(), equiformer_v3(), esen()], ids=lambda config: config.name)
def test_models_encode_the_virial_and_predict_the_strain_equivariantly(config: ModelConfig) -> None:
    torch.manual_seed(0)
    elements = [6]
    force_field = build_force_field(config, heads=HEADS, scaling=Scaling(elements=elements)).double().eval()
    batch, targets = _crystals(3, atoms=4)
    prepared = _prepared(batch, targets, CONFIG.model_copy(update={"strain_probability": 1.0}))
    rotation = torch.from_numpy(special_ortho_group.rvs(3, random_state=np.random.default_rng(2)))

    def strain(turn: torch.Tensor, virial: bool) -> torch.Tensor:
        turned = replace(prepared.batch, positions=prepared.batch.positions @ turn.T, cell=prepared.batch.cell @ turn.T)
        matrices = turn @ matrices_of(prepared.force_input[:, 3:]) @ turn.T * virial
        given = torch.cat([prepared.force_input[:, :3] @ turn.T, coefficients_of(matrices)], 1)
        found: torch.Tensor = force_field(config.with_neighbors(turned), given, ("strain",))["strain"]
        return found.detach()

    still = strain(torch.eye(3, dtype=torch.float64), True)
    scale = float(still.square().mean().sqrt())
    turned = strain(rotation, True)
    assert float((turned - rotation @ still @ rotation.T).abs().max()) < 1e-9 * scale + 1e-12
    assert float((strain(torch.eye(3, dtype=torch.float64), False) - still).abs().max()) > 1e-3 * scale
    assert torch.equal(still, still.mT) or float((still - still.mT).abs().max()) < 1e-12
    assert "strain" not in force_field.predict(config.with_neighbors(batch))
