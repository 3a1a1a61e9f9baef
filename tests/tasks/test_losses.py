"""The losses against numbers worked out by hand.

System A has atoms 0, 1, 2 (2 is fixed), system B has atoms 3, 4.  Atom 0 is corrupted.
Differences between prediction and target, and their lengths:

    noise   atom 0: (0, 3, 4), 5
    forces  atom 1: (1, 2, 2), 3     atom 3: (2, 3, 6), 7     atom 4: (0, 0, 0), 0
    forces of atoms 0 (corrupted), 2 (fixed) and noise of all but atom 0: 1000, never to be counted
    energy  A: 2 - 5 = -3     B: 1 - 0.5 = 0.5
    stress  A: 1000 in each component, corrupted, not to be counted     B: 1 in each of 9 components, length 3
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from scipy.stats import special_ortho_group
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.functional import hessian
from torch.nn.functional import huber_loss

from denskit.batch import Prepared
from denskit.random import keys_for
from denskit.tasks import DeNS, DeNSConfig, EnergyForces, EnergyForcesConfig, Term, total_loss
from denskit.tasks.losses import HuberLoss
from tasks.small import LinearModel, make_batch, make_targets, select_systems

FAR = 1000.0


def worked_example() -> tuple[dict[str, Tensor], Prepared]:
    batch = make_batch([3, 2])
    batch = replace(batch, fixed=torch.tensor([False, False, True, False, False]))
    targets = replace(make_targets(batch), energy=torch.tensor([5.0, 0.5], dtype=torch.float64))
    noise_mask = torch.tensor([True, False, False, False, False])
    noise = torch.where(noise_mask[:, None], torch.tensor([0.3, -0.2, 1.1], dtype=torch.float64), 0.0)
    force_error = torch.tensor([[FAR] * 3, [1, 2, 2], [FAR] * 3, [2, 3, 6], [0, 0, 0]], dtype=torch.float64)
    noise_error = torch.full((5, 3), FAR, dtype=torch.float64)
    noise_error[0] = torch.tensor([0, 3, 4])
    prediction = {
        "energy": torch.tensor([2.0, 1.0], dtype=torch.float64),
        "forces": targets.forces + force_error,
        "noise": noise + noise_error,
        "stress": targets.stress + torch.tensor([FAR, 1.0], dtype=torch.float64)[:, None, None],
    }
    prepared = Prepared(
        batch=batch,
        targets=targets,
        force_input=torch.where(noise_mask[:, None], targets.forces, 0.0),
        noise=noise,
        noise_mask=noise_mask,
    )
    return {name: value.requires_grad_() for name, value in prediction.items()}, prepared


def numbers(terms: dict[str, Term]) -> dict[str, tuple[float, float, float]]:
    return {name: (t.sum.item(), float(t.count), t.weight) for name, t in terms.items()}


def approx(expected: dict[str, tuple[float, float, float]]) -> dict[str, object]:
    return {name: pytest.approx(value, rel=1e-12) for name, value in expected.items()}


def test_published_loss_of_the_worked_example() -> None:
    prediction, prepared = worked_example()
    config = DeNSConfig(energy_weight=2.0, forces_weight=80.0, stress_weight=0.5, coefficient=5.0, loss="published")
    terms = DeNS(config).losses(prediction, prepared, progress=0.25)
    assert numbers(terms) == approx(
        {
            "energy": (3.0 + 0.5, 2, 2.0),  # both structures
            "forces": (3.0 + 7.0 + 0.0, 3, 80.0),  # atoms 1, 3, 4
            "noise": (5.0, 1, 5.0 * 0.75),  # atom 0; a quarter of the training is over
            "stress": (3.0, 1, 0.5),  # B: sqrt(9 * 1**2)
        }
    )
    # 2 * 3.5 / 2 + 80 * 10 / 3 + 3.75 * 5 / 1 + 0.5 * 3 / 1 = 3.5 + 266.666... + 18.75 + 1.5
    assert total_loss(terms).item() == pytest.approx(290.0 + 5 / 12, rel=1e-12)


def test_paper_loss_of_the_worked_example() -> None:
    prediction, prepared = worked_example()
    config = DeNSConfig(energy_weight=2.0, forces_weight=80.0, stress_weight=0.5, coefficient=5.0, loss="paper")
    terms = DeNS(config).losses(prediction, prepared, progress=0.25)
    assert numbers(terms) == approx(
        {
            "energy": (3.0 + 0.5, 2, 2.0),  # the absolute value, not its square
            "forces": (3.0**2 / 2 + (7.0**2 + 0.0) / 2, 2, 80.0),  # A: |S| = 2 free atoms, one scored; B: |S| = 2
            "noise": (5.0**2 / 2, 2, 5.0 * 0.75),  # A: |S| = 2, one scored; B adds 0 and counts
            "stress": (9.0, 2, 0.5),  # B; A adds 0 and counts
        }
    )
    # 2 * 3.5 / 2 + 80 * (4.5 + 24.5) / 2 + 3.75 * 12.5 / 2 + 0.5 * 9 / 2 = 3.5 + 1160 + 23.4375 + 2.25
    assert total_loss(terms).item() == pytest.approx(1189.1875, rel=1e-12)


def test_published_oc20_loss_of_the_worked_example() -> None:
    prediction, prepared = worked_example()
    config = DeNSConfig(
        energy_weight=2.0, forces_weight=100.0, coefficient=10.0, coefficient_decay="none", loss="published_oc20"
    )
    terms = DeNS(config).losses(prediction, prepared, progress=0.25)
    assert numbers(terms) == approx(
        {
            "energy": (3.0 + 0.5, 2, 2.0),
            "forces": (3.0 + 7.0 + 0.0, 4, 100.0),  # of atoms 1, 3, 4, over all free atoms 0, 1, 3, 4
            "noise": (5.0, 4, 10.0),  # of atom 0, over the same
        }
    )
    # one mean over the free atoms: 2 * 3.5 / 2 + (10 * 5 + 100 * 3 + 100 * 7 + 100 * 0) / 4
    assert total_loss(terms).item() == pytest.approx(3.5 + 1050 / 4, rel=1e-12)


def test_huber_loss_of_the_worked_example() -> None:
    """With delta = 4: n^2 / 2 up to 4, then 4 (n - 2)."""
    prediction, prepared = worked_example()
    config = DeNSConfig(
        energy_weight=2.0, forces_weight=80.0, stress_weight=0.5, coefficient=5.0, loss="huber", huber_delta=4.0
    )
    terms = DeNS(config).losses(prediction, prepared, progress=0.25)
    assert numbers(terms) == approx(
        {
            "energy": (3.0**2 / 2 + 0.5**2 / 2, 2, 2.0),
            "forces": (3.0**2 / 2 + 4 * (7.0 - 2) + 0.0, 3, 80.0),  # atoms 1, 3, 4
            "noise": (4 * (5.0 - 2), 1, 5.0 * 0.75),
            "stress": (3.0**2 / 2, 1, 0.5),  # B
        }
    )
    # 2 * 4.625 / 2 + 80 * 24.5 / 3 + 3.75 * 12 + 0.5 * 4.5 = 4.625 + 653.333... + 45 + 2.25
    assert total_loss(terms).item() == pytest.approx(705.0 + 5 / 24, rel=1e-12)


@pytest.mark.parametrize("per_atom", [False, True])
@pytest.mark.parametrize("delta", [0.01, 0.3, 1.0, 100.0])
def test_huber_terms_are_those_of_torch(delta: float, per_atom: bool) -> None:
    """Of energies and components of stress as MACE has them; of forces torch's function of the norms."""
    batch = make_batch([4, 2, 5])
    config = EnergyForcesConfig(
        stress_weight=1.0, stress_loss="mae", energy_loss="mae_per_atom" if per_atom else "mae", loss="huber",
        huber_delta=delta,
    )  # fmt: skip
    task, targets = EnergyForces(config), make_targets(batch)
    prepared = task.prepare(batch, targets, keys_for(0, 0, range(3)), 0.0)
    prediction = LinearModel()(prepared)
    terms = task.losses(prediction, prepared, 0.0)
    divisor = batch.n_atoms if per_atom else 1
    norms = torch.linalg.vector_norm(prediction["forces"] - targets.forces, dim=-1)
    expected = {
        "energy": huber_loss(prediction["energy"] / divisor, targets.energy / divisor, delta=delta),
        "forces": huber_loss(norms, torch.zeros_like(norms), delta=delta),
        "stress": huber_loss(prediction["stress"], targets.stress, delta=delta),
    }
    for name, value in expected.items():
        torch.testing.assert_close(terms[name].mean, value, rtol=1e-12, atol=0)


def test_huber_loss_does_not_depend_on_the_axes() -> None:
    prediction, prepared = worked_example()
    rotation = torch.from_numpy(special_ortho_group.rvs(3, random_state=0))
    targets = prepared.targets
    turned = replace(
        prepared,
        noise=prepared.noise @ rotation.T,
        targets=replace(targets, forces=targets.forces @ rotation.T, stress=rotation @ targets.stress @ rotation.T),
    )
    turned_prediction = {
        "energy": prediction["energy"],
        "forces": prediction["forces"] @ rotation.T,
        "noise": prediction["noise"] @ rotation.T,
        "stress": rotation @ prediction["stress"] @ rotation.T,
    }
    task = DeNS(DeNSConfig(stress_weight=1.0, loss="huber", huber_delta=4.0))
    before, after = task.losses(prediction, prepared, 0.0), task.losses(turned_prediction, turned, 0.0)
    for name, term in before.items():
        torch.testing.assert_close(term.sum, after[name].sum, rtol=1e-12, atol=0)


def test_huber_loss_is_twice_differentiable() -> None:
    """At zero, where a norm is not; inside and outside of delta by finite differences."""
    form = HuberLoss(0.45)
    zero = torch.zeros(3, dtype=torch.float64)
    assert torch.equal(hessian(form.size, zero), torch.eye(3, dtype=torch.float64))
    assert float(hessian(form.size_of_number, zero[0])) == 1.0
    errors = torch.tensor([[0.1, -0.2, 0.3], [0.4, 0.5, -0.6], [0.0, 0.0, 9.0]], dtype=torch.float64)
    for size in (form.size, form.size_of_number):
        assert gradcheck(size, errors.requires_grad_()) and gradgradcheck(size, errors)


@pytest.mark.parametrize("loss", ["published", "published_oc20", "paper"])
def test_a_delta_without_huber_is_refused(loss: str) -> None:
    with pytest.raises(ValidationError, match=f"huber_delta=0.02 has no effect with loss={loss}; set loss=huber"):
        DeNSConfig(loss=loss, huber_delta=0.02)
    assert DeNSConfig.model_validate(DeNSConfig(loss=loss).model_dump()).loss == loss  # a saved run has the default


@pytest.mark.parametrize("delta", [0.0, -1.0, float("inf"), float("nan")])
def test_a_delta_is_a_finite_number_above_zero(delta: float) -> None:
    with pytest.raises(ValidationError, match="huber_delta"):
        EnergyForcesConfig(loss="huber", huber_delta=delta)


def test_published_oc20_counts_all_stresses() -> None:
    """As published, where the stress of a corrupted structure is a constant error: others weigh no more for it."""
    prediction, prepared = worked_example()
    corrupted = prepared.batch.count_atoms(prepared.noise_mask) > 0
    labelled = prepared.targets.stress_mask
    assert (labelled & corrupted).any()
    for loss, count in (("published", labelled & ~corrupted), ("published_oc20", labelled)):
        term = DeNS(DeNSConfig(stress_weight=1.0, loss=loss)).losses(prediction, prepared, 0.0)["stress"]
        assert float(term.count) == float(count.sum())


def test_without_corruption_the_published_forms_are_one() -> None:
    """OC20's l2mae: the mean of the norms over the free atoms of the batch."""
    prediction, prepared = worked_example()
    ordinary = replace(prepared, noise_mask=torch.zeros_like(prepared.noise_mask))
    free = torch.tensor([0, 1, 3, 4])
    l2mae = torch.linalg.vector_norm(prediction["forces"] - prepared.targets.forces, dim=-1)[free].mean()
    for loss in ("published", "published_oc20"):
        terms = EnergyForces(EnergyForcesConfig(loss=loss, forces_weight=100.0)).losses(prediction, ordinary, 0.0)
        assert terms["forces"].mean.item() == pytest.approx(l2mae.item(), rel=1e-12)
        assert total_loss(terms).item() == pytest.approx(1.75 + 100 * l2mae.item(), rel=1e-12)


@pytest.mark.parametrize("loss", ["published", "published_oc20", "paper", "huber"])
def test_what_is_not_scored_has_no_gradient(loss: str) -> None:
    prediction, prepared = worked_example()
    terms = DeNS(DeNSConfig(stress_weight=1.0, loss=loss)).losses(prediction, prepared, progress=0.0)
    total_loss(terms).backward()
    scored = {name: value.grad.flatten(1).ne(0).any(1) for name, value in prediction.items() if name != "energy"}
    # Atom 4 is scored with an error of exactly zero: zero gradient, and finite.
    assert scored["forces"].tolist() == [False, True, False, True, False]
    assert scored["noise"].tolist() == [True, False, False, False, False]
    assert scored["stress"].tolist() == [False, True]
    assert all(value.grad.isfinite().all() for value in prediction.values())


@pytest.mark.parametrize("loss", ["published", "published_oc20", "paper", "huber"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_perfect_prediction_has_loss_zero_and_finite_gradients(loss: str, dtype: torch.dtype) -> None:
    _, prepared = worked_example()
    prepared = prepared.to(dtype=dtype)
    prepared = replace(prepared, targets=replace(prepared.targets, energy=prepared.targets.energy.to(dtype)))
    prediction = {
        "energy": prepared.targets.energy.clone().requires_grad_(),
        "forces": prepared.targets.forces.clone().requires_grad_(),
        "noise": prepared.noise.clone().requires_grad_(),
    }
    loss_value = total_loss(DeNS(DeNSConfig(loss=loss)).losses(prediction, prepared, progress=0.0))
    loss_value.backward()
    assert loss_value.item() == 0.0
    assert all(torch.equal(value.grad, torch.zeros_like(value)) for value in prediction.values())


@pytest.mark.parametrize("loss", ["published", "published_oc20", "paper", "huber"])
def test_nothing_to_score_gives_zero_and_a_gradient_of_zero(loss: str) -> None:
    prediction, prepared = worked_example()
    targets = prepared.targets
    empty = replace(
        targets,
        energy_mask=torch.zeros_like(targets.energy_mask),
        forces_mask=torch.zeros_like(targets.forces_mask),
        stress_mask=torch.zeros_like(targets.stress_mask),
    )
    nothing = replace(prepared, targets=empty, noise_mask=torch.zeros_like(prepared.noise_mask))
    terms = DeNS(DeNSConfig(stress_weight=1.0, loss=loss)).losses(prediction, nothing, progress=0.0)
    assert {name: (t.sum.item(), float(t.count)) for name, t in terms.items()} == dict.fromkeys(prediction, (0.0, 0.0))
    total_loss(terms).backward()
    assert all(torch.equal(value.grad, torch.zeros_like(value)) for value in prediction.values())


@pytest.mark.parametrize("loss", ["published", "published_oc20", "paper", "huber"])
def test_without_corruption_the_noise_head_still_has_a_gradient_of_zero(loss: str) -> None:
    prediction, prepared = worked_example()
    ordinary = replace(prepared, noise_mask=torch.zeros_like(prepared.noise_mask))
    terms = DeNS(DeNSConfig(loss=loss)).losses(prediction, ordinary, progress=0.0)
    terms["noise"].sum.backward()
    assert torch.equal(prediction["noise"].grad, torch.zeros_like(prediction["noise"]))


def test_missing_labels_count_nowhere() -> None:
    prediction, prepared = worked_example()
    targets = replace(
        prepared.targets,
        energy_mask=torch.tensor([True, False]),
        forces_mask=torch.tensor([True, True, True, True, False]),
    )
    hidden = replace(prepared, targets=targets)
    published = numbers(DeNS(DeNSConfig(loss="published")).losses(prediction, hidden, progress=0.0))
    assert published["energy"] == approx({"energy": (3.0, 1, 1.0)})["energy"]
    assert published["forces"] == approx({"forces": (3.0 + 7.0, 2, 80.0)})["forces"]
    paper = numbers(DeNS(DeNSConfig(loss="paper")).losses(prediction, hidden, progress=0.0))
    assert paper["energy"] == approx({"energy": (3.0, 1, 1.0)})["energy"]
    assert paper["forces"] == approx({"forces": (3.0**2 / 2 + 7.0**2 / 1, 2, 80.0)})["forces"]  # B: |S| = 1


def test_energy_per_atom() -> None:
    prediction, prepared = worked_example()
    config = EnergyForcesConfig(energy_loss="mae_per_atom")
    terms = EnergyForces(config).losses(prediction, prepared, progress=0.0)
    assert terms["energy"].sum.item() == pytest.approx(3.0 / 3 + 0.5 / 2, rel=1e-12)
    assert float(terms["energy"].count) == 2


def test_the_published_noise_term_weighs_about_16_times_more() -> None:
    """With p = r = 0.25 and errors of length 1 everywhere: the mean over corrupted atoms is 1, the paper's is p r."""
    batch = make_batch([12] * 4000)
    targets = make_targets(batch)
    mask = torch.zeros(12 * 4000, dtype=torch.bool).reshape(4000, 12)
    mask[:1000, :3] = True
    unit = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    zeros = torch.zeros_like(batch.positions)
    prepared = Prepared(batch=batch, targets=targets, force_input=zeros, noise=zeros, noise_mask=mask.flatten())
    prediction = {"energy": targets.energy, "forces": targets.forces, "noise": zeros + unit}
    means = {
        loss: float(DeNS(DeNSConfig(loss=loss)).losses(prediction, prepared, progress=0.0)["noise"].mean)
        for loss in ("published", "paper")
    }
    assert means == {"published": pytest.approx(1.0), "paper": pytest.approx(1 / 16)}


@pytest.mark.parametrize("loss", ["published", "published_oc20", "paper", "huber"])
def test_terms_of_two_micro_batches_add_up_to_those_of_the_batch(loss: str) -> None:
    model, batch = LinearModel(), make_batch([4, 2, 5, 3])
    targets, keys = make_targets(batch), keys_for(0, 0, range(4))
    task = DeNS(DeNSConfig(probability=0.7, corruption_ratio=0.5, stress_weight=1.0, loss=loss))

    def terms(order: list[int]) -> dict[str, Term]:
        prepared = task.prepare(*select_systems(batch, targets, order), keys[order], progress=0.5)
        return task.losses(model(prepared), prepared, progress=0.5)

    whole, first, second = terms([0, 1, 2, 3]), terms([0, 1]), terms([2, 3])
    assert float(whole["noise"].count) > 0
    for name, term in whole.items():
        torch.testing.assert_close(term.sum, first[name].sum + second[name].sum, rtol=1e-12, atol=0)
        assert float(term.count) == float(first[name].count + second[name].count)
