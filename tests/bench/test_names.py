"""Models, systems and opponents by name: each is what it says, and an unknown name is answered with the known ones."""

from __future__ import annotations

import pytest
import torch

from denskit.geometry.neighbors import build_neighbors
from denskit_bench.job import Job
from denskit_bench.models import MODELS, build, config_of
from denskit_bench.systems import benchmark_batch, structure


def job(**choices: object) -> Job:
    return Job(**{"work": "train", "model": "equiformer_l2", "system": "ethanol", **choices})


def test_aspirin_is_a_molecule_of_the_size_that_is_benchmarked() -> None:
    batch, targets = benchmark_batch("aspirin", 8)
    batch = build_neighbors(batch, 5.0)
    assert batch.n_atoms.tolist() == [21] * 8
    assert 8 * 290 < batch.num_edges < 8 * 320
    assert batch.edge_vectors().norm(dim=1).min() > 0.7
    assert targets.forces_mask.all()


def test_liquids_grow_at_one_density_and_slabs_are_periodic() -> None:
    small, large = structure("liquid-72"), structure("liquid-500")
    assert (len(small), len(large)) == (72, 576)
    assert small.pbc.all()
    assert len(small) / small.get_volume() == pytest.approx(len(large) / large.get_volume())
    assert len(structure("slab")) == 82


def test_no_bond_of_the_crystal_lies_along_the_y_axis() -> None:
    assert len(structure("crystal")) == 72
    batch, _ = benchmark_batch("crystal", 1)
    vectors = build_neighbors(batch, 6.0).edge_vectors()
    assert vectors.shape[0] > 60 * 72
    assert (vectors[:, 1].abs() / vectors.norm(dim=1)).max() < 0.99999  # published code: 0.999999


@pytest.mark.parametrize("name", ["benzene", "liquid-", "liquid-0", "liquid-x"])
def test_an_unknown_system_is_answered_with_the_known(name: str) -> None:
    with pytest.raises(ValueError, match=r"ethanol.*aspirin.*liquid-N.*slab"):
        structure(name)


def test_an_unknown_model_is_answered_with_the_known() -> None:
    with pytest.raises(ValueError, match=r"no model 'mace'.*equiformer_l2.*escn"):
        config_of(job(model="mace"))


def test_an_unknown_opponent_is_answered_with_those_of_the_work() -> None:
    with pytest.raises(ValueError, match=r"no opponent 'mace'.*e3nn.*fairchem"):
        job(against="mace")
    with pytest.raises(ValueError, match="--peer-python"):
        job(against="fairchem")


def test_kernels_are_for_models_that_have_several() -> None:
    with pytest.raises(ValueError, match="for Equiformer"):
        config_of(job(model="escn", against="plain"))


@pytest.mark.parametrize("name", MODELS)
def test_models_have_no_dropout_and_can_be_built(name: str) -> None:
    config = config_of(job(model=name, layers=1))
    assert config.num_layers == 1
    assert all(value == 0 for key, value in config.model_dump().items() if "dropout" in key)
    assert config.model_dump().get("stochastic_depth", 0) == 0
    build(config, dens=True, dtype=torch.float32, device=torch.device("cpu"), kernels="auto")


@pytest.mark.parametrize("name", ["equiformer_small", "equiformer_v2", "escn"])
@pytest.mark.parametrize("degree", [1, 4])
def test_another_degree_is_the_same_model_otherwise(name: str, degree: int) -> None:
    config = config_of(job(model=name, l_max=degree))
    assert config.l_max == degree
    assert config.num_layers == config_of(job(model=name)).num_layers
