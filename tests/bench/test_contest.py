"""Two formulations of one function are compared before they are timed, and a difference is noticed."""

from __future__ import annotations

import pytest
import torch

from denskit_bench.contender import Agreement
from denskit_bench.job import Job, Side, Work

from tolerances import SAME_GRADIENT64

pytest.importorskip("e3nn", reason="the benchmark's baseline needs e3nn: pip install denskit[test]")

from denskit.geometry.neighbors import build_neighbors
from denskit.models.equiformer.published import convert_equiformer
from denskit.models.equiformer.published_settings import MD17_CONFIGS
from denskit_bench.contest import TOLERANCE_64, Contestant, build_contestants, differences

TRAIN = Job(work="train", model="equiformer_l2", system="ethanol", batch=2, against="e3nn-eager", dens=True)


@pytest.fixture(scope="module")
def contestants() -> dict[Side, Contestant]:
    return build_contestants(TRAIN, ("theirs", "ours"), torch.float64)


def ours(job: Job, dtype: torch.dtype = torch.float64) -> Contestant:
    return build_contestants(job, ("ours",), dtype)["ours"]


def test_both_have_the_parameters_of_the_paper(contestants: dict[Side, Contestant]) -> None:
    """4,000,577 as published; ours has no bias in the encoding of forces (128)."""
    counts = {side: sum(p.numel() for p in one.module.parameters()) for side, one in contestants.items()}
    assert counts == {"theirs": 4_000_577, "ours": 4_000_577 - 128}


def test_weight_gradients_of_both_models_are_the_same(contestants: dict[Side, Contestant]) -> None:
    for contestant in contestants.values():
        contestant.loss(contestant.predict(contestant.prepared)).backward()
    state = contestants["theirs"].module.published_state()
    parameters = dict(contestants["theirs"].module.named_parameters())
    gradients = {name: parameters[name].grad if name in parameters else value for name, value in state.items()}
    expected, _ = convert_equiformer(gradients, MD17_CONFIGS[2])
    # the import adds the bias of the force encoding to the atoms' bias; both have the gradient of ours
    expected["backbone.atom_bias"] = expected["backbone.atom_bias"] / 2
    found = {name: p.grad for name, p in contestants["ours"].module.named_parameters() if p.grad is not None}
    assert len(found) > 100
    for name, gradient in found.items():
        scale = expected[name].square().mean().sqrt().clamp(min=1e-30)
        error = float((gradient.reshape(expected[name].shape) - expected[name]).abs().max() / scale)
        assert error < SAME_GRADIENT64, f"gradient of {name}: relative error {error:.1e}"


def test_a_slightly_different_function_is_noticed(contestants: dict[Side, Contestant]) -> None:
    tolerance = dict.fromkeys(("energy", "forces", "noise", "loss"), TOLERANCE_64)
    Agreement(differences=differences(contestants), tolerance=tolerance).check()
    weights = contestants["ours"].module.backbone.blocks[0].feed_forward.second.weights[1].detach()
    weights.mul_(1.001)
    other = differences(contestants)
    weights.div_(1.001)
    with pytest.raises(ValueError, match="disagree.*forces"):
        Agreement(differences=other, tolerance=tolerance).check()


def test_a_step_leaves_the_weights_as_they_are() -> None:
    contestant = ours(Job(work="train", model="equiformer_small", system="ethanol", batch=1, layers=1, dens=True))
    before = {name: value.clone() for name, value in contestant.module.state_dict().items()}
    contestant.step()
    assert any(p.grad is not None and p.grad.any() for p in contestant.module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in contestant.module.state_dict().items())


def test_the_batch_has_corrupted_atoms_and_atoms_left_alone() -> None:
    prepared = ours(TRAIN, torch.float32).prepared
    assert prepared.noise_mask.any()
    assert not prepared.noise_mask.all()
    assert prepared.batch.num_edges == 2 * 9 * 8  # ethanol lies within 5 Å
    assert prepared.batch.positions.dtype == prepared.targets.energy.dtype == torch.float32


@pytest.mark.parametrize("work", ["train", "energy_forces"])
def test_edges_belong_to_the_positions_that_the_models_see(work: Work) -> None:
    prepared = ours(Job(work=work, model="equiformer_small", system="aspirin", batch=8, dens=True)).prepared
    assert prepared.noise_mask.any() == (work == "train")
    again = build_neighbors(prepared.batch, 5.0)
    assert torch.equal(prepared.batch.built_edges.index, again.built_edges.index)
    assert prepared.batch.edge_vectors().norm(dim=1).max() < 5.0


def test_with_and_without_dens_differ_by_its_parts() -> None:
    both = build_contestants(
        Job(work="dens", model="escn", system="ethanol", batch=1, layers=1, against="without"),
        ("theirs", "ours"),
        torch.float32,
    )
    names = {side: {name for name, _ in one.module.named_parameters()} for side, one in both.items()}
    assert names["theirs"] < names["ours"]
    assert "noise" in both["ours"].predict(both["ours"].prepared)
    assert "noise" not in both["theirs"].predict(both["theirs"].prepared)


def test_the_e3nn_formulation_has_the_published_sizes_only() -> None:
    with pytest.raises(ValueError, match="knows equiformer_l2 and equiformer_l3"):
        build_contestants(
            Job(work="train", model="equiformer_small", system="ethanol", against="e3nn"),
            ("theirs", "ours"),
            torch.float32,
        )
