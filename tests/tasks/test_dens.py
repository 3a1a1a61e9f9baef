from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from denskit.batch import Batch, Prepared, Targets
from denskit.geometry.neighbors import build_neighbors
from denskit.random import keys_for
from denskit.tasks import DeNS, DeNSConfig, EnergyForces, EnergyForcesConfig, Term, total_loss
from tasks.small import LinearModel, hide_labels, make_batch, make_targets, select_systems, tensors

from tolerances import EXACT64

ALWAYS = DeNSConfig(probability=1.0, corruption_ratio=0.5, sigma=0.2)


def prepared_by(config: DeNSConfig, batch: Batch, targets: Targets, progress: float = 0.0) -> Prepared:
    return DeNS(config).prepare(batch, targets, keys_for(0, 0, range(batch.num_systems)), progress)


def replace_config(config: DeNSConfig, **changes: object) -> DeNSConfig:
    return DeNSConfig(**{**config.model_dump(), **changes})


def some_of_each() -> tuple[Prepared, Batch, Targets]:
    """Corrupted and uncorrupted atoms in corrupted structures."""
    batch = make_batch([6, 5, 7])
    targets = make_targets(batch)
    prepared = prepared_by(ALWAYS, batch, targets)
    assert 0 < int(prepared.noise_mask.sum()) < batch.num_atoms
    return prepared, batch, targets


# The mutation table: scripts/check_mutations.py breaks the code and sees the named test fail.


def test_noise_target_is_in_units_of_sigma() -> None:
    prepared, batch, _ = some_of_each()
    moved = prepared.batch.positions - batch.positions
    torch.testing.assert_close(prepared.noise, moved / ALWAYS.sigma, rtol=1e-12, atol=1e-12)
    rms = float(prepared.noise[prepared.noise_mask].square().mean().sqrt())
    assert 0.6 < rms < 1.5  # about 30 standard normal numbers; undivided they would be near sigma = 0.2


def test_forces_of_corrupted_atoms_are_not_scored() -> None:
    prepared, _, targets = some_of_each()
    wrong = targets.forces + 1e6 * prepared.noise_mask[:, None]
    prediction = {"energy": targets.energy, "forces": wrong.requires_grad_(), "noise": prepared.noise}
    forces = DeNS(ALWAYS).losses(prediction, prepared, progress=0.0)["forces"]
    assert forces.sum.item() == 0.0
    assert float(forces.count) == float((~prepared.noise_mask).sum())


def test_forces_of_uncorrupted_atoms_are_not_encoded() -> None:
    prepared, _, targets = some_of_each()
    assert torch.equal(prepared.force_input[prepared.noise_mask], targets.forces[prepared.noise_mask])
    assert not prepared.force_input[~prepared.noise_mask].any()


def springs(positions: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """A potential that labels any positions: every atom on a spring of 1 eV/Å^2 to the origin.  E [B], F [N, 3]."""
    atom_energy = 0.5 * positions.square().sum(-1)
    energy = torch.zeros(batch.num_systems, dtype=torch.float64).index_add(0, batch.system_index, atom_energy)
    return energy, -positions


def test_labels_are_those_of_the_original_positions() -> None:
    batch = make_batch([6, 5, 7])
    energy, forces = springs(batch.positions, batch)
    targets = replace(make_targets(batch), energy=energy, forces=forces)
    prepared = prepared_by(ALWAYS, batch, targets)
    elsewhere_energy, elsewhere_forces = springs(prepared.batch.positions, batch)
    assert not torch.allclose(elsewhere_energy, energy)
    assert not torch.allclose(elsewhere_forces, forces)
    assert torch.equal(prepared.targets.energy, energy)
    assert torch.equal(prepared.targets.forces, forces)
    assert torch.equal(prepared.force_input[prepared.noise_mask], forces[prepared.noise_mask])


def test_edges_belong_to_the_corrupted_positions() -> None:
    batch = make_batch([6, 5, 7])
    stale = build_neighbors(batch, 4.0)
    prepared = prepared_by(replace_config(ALWAYS, sigma=1.0), stale, make_targets(batch))
    assert prepared.batch.edges is None
    fresh = build_neighbors(prepared.batch, 4.0)
    distance = torch.cdist(prepared.batch.positions, prepared.batch.positions)
    same = batch.system_index[:, None] == batch.system_index[None, :]
    expected = torch.nonzero((distance < 4.0) & same & ~torch.eye(batch.num_atoms, dtype=torch.bool))
    assert set(map(tuple, fresh.built_edges.index.T.tolist())) == set(map(tuple, expected.tolist()))
    assert set(map(tuple, fresh.built_edges.index.T.tolist())) != set(map(tuple, stale.built_edges.index.T.tolist()))


@pytest.mark.parametrize("label", ["energy", "forces"])
def test_labels_of_corrupted_structures_are_not_scored_when_switched_off(label: str) -> None:
    config = replace_config(ALWAYS, probability=0.5, **{f"{label}_on_corrupted": False})
    batch = make_batch([6] * 8)
    targets = make_targets(batch)
    prepared = prepared_by(config, batch, targets)
    corrupted = prepared.noise_mask.reshape(8, 6).any(1)
    assert 0 < int(corrupted.sum()) < 8
    prediction = {"energy": targets.energy, "forces": targets.forces, "noise": prepared.noise}
    prediction[label] = (prediction[label] + 1.0).requires_grad_()
    term = DeNS(config).losses(prediction, prepared, progress=0.0)[label]
    (gradient,) = torch.autograd.grad(term.sum, prediction[label])
    scored = gradient.bool().reshape(8, -1)
    assert torch.equal(scored, ~corrupted[:, None].expand_as(scored))
    assert float(term.count) == float((~corrupted).sum()) * (6 if label == "forces" else 1)


# What is drawn.


def test_each_structure_is_chosen_for_itself() -> None:
    count, size = 4000, 5
    batch = make_batch([size] * count)
    config = DeNSConfig(probability=0.3, corruption_ratio=0.4, sigma=0.07)
    prepared = prepared_by(config, batch, make_targets(batch))
    hits = prepared.noise_mask.reshape(count, size)
    per_structure = 0.3 * (1 - 0.6**size)  # chosen, and some atom drawn
    assert float(hits.any(1).double().mean()) == pytest.approx(per_structure, abs=4.5 * math.sqrt(0.21 / count))
    assert float(hits.double().mean()) == pytest.approx(0.12, abs=0.01)
    assert float(hits[hits.any(1)].double().sum(1).mean()) == pytest.approx(size * 0.12 / per_structure, abs=0.1)
    moved = (prepared.batch.positions - batch.positions)[prepared.noise_mask]
    assert float(moved.std()) == pytest.approx(0.07, rel=0.03)


def test_probability_one_and_ratio_one_corrupt_every_free_atom() -> None:
    batch = make_batch([4, 3])
    fixed = torch.tensor([True, False, False, True, False, False, False])
    batch = replace(batch, fixed=fixed)
    prepared = prepared_by(DeNSConfig(probability=1, corruption_ratio=1), batch, make_targets(batch))
    assert torch.equal(prepared.noise_mask, ~fixed)


def test_a_structure_draws_the_same_in_any_batch() -> None:
    batch = make_batch([4, 6, 3, 5])
    targets, keys = make_targets(batch), keys_for(0, 0, range(4))
    whole = DeNS(ALWAYS).prepare(batch, targets, keys, 0.0)
    order = [2, 0, 3]
    part = DeNS(ALWAYS).prepare(*select_systems(batch, targets, order), keys[order], 0.0)
    rows = torch.cat([torch.nonzero(batch.system_index == system)[:, 0] for system in order])
    torch.testing.assert_close(part.batch.positions, whole.batch.positions[rows], rtol=0, atol=EXACT64)
    torch.testing.assert_close(part.noise, whole.noise[rows], rtol=0, atol=EXACT64)
    assert torch.equal(part.noise_mask, whole.noise_mask[rows])


def test_float32_draws_are_those_of_float64() -> None:
    batch = make_batch([6, 5, 7])
    single = prepared_by(ALWAYS, batch.to(dtype=torch.float32), make_targets(batch).to(dtype=torch.float32))
    double = prepared_by(ALWAYS, batch, make_targets(batch))
    assert single.batch.positions.dtype == single.noise.dtype == single.force_input.dtype == torch.float32
    assert torch.equal(single.noise_mask, double.noise_mask)
    assert torch.equal(single.noise, double.noise.float())


# Schedules.


def test_sigma_moves_linearly_to_its_end() -> None:
    batch = make_batch([6, 5])
    config = replace_config(ALWAYS, sigma=0.1, sigma_end=0.02)
    for progress, sigma in ((0.0, 0.1), (0.25, 0.08), (1.0, 0.02)):
        prepared = prepared_by(config, batch, make_targets(batch), progress)
        moved = prepared.batch.positions - batch.positions
        torch.testing.assert_close(moved, sigma * prepared.noise, rtol=1e-9, atol=1e-12)


def test_the_coefficient_falls_to_zero_or_stays() -> None:
    prepared, _, targets = some_of_each()
    prediction = {"energy": targets.energy, "forces": targets.forces, "noise": prepared.noise}

    def weight(progress: float, decay: str) -> float:
        config = DeNSConfig(coefficient=8.0, coefficient_decay=decay)
        return DeNS(config).losses(prediction, prepared, progress)["noise"].weight

    assert [weight(progress, "linear") for progress in (0.0, 0.25, 1.0)] == [8.0, 6.0, 0.0]
    assert [weight(progress, "none") for progress in (0.0, 0.25, 1.0)] == [8.0, 8.0, 8.0]


# The ablations of the paper: each switch changes the term it is meant to change.


def gradients(config: DeNSConfig) -> dict[str, dict[str, Tensor | None]]:
    """Gradient of each term's sum with respect to each parameter of the linear model."""
    model, batch = LinearModel(), make_batch([6, 5, 7, 4])
    prepared = prepared_by(config, batch, make_targets(batch), 0.5)
    terms = DeNS(config).losses(model(prepared), prepared, 0.5)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return {
        name: dict(
            zip(names, torch.autograd.grad(term.sum, parameters, retain_graph=True, allow_unused=True), strict=True)
        )
        for name, term in terms.items()
    }


def changed(first: dict[str, dict[str, Tensor | None]], second: dict[str, dict[str, Tensor | None]]) -> set[str]:
    """Names "term by parameter" whose gradient is not the same."""
    found = set()
    for term, by_parameter in first.items():
        for parameter, value in by_parameter.items():
            other = second[term][parameter]
            assert (value is None) == (other is None)
            if value is not None and not torch.equal(value, other):
                found.add(f"{term} by {parameter}")
    return found


SOME = DeNSConfig(probability=0.6, corruption_ratio=0.5, sigma=0.3, stress_weight=1.0)


@pytest.mark.parametrize("loss", ["published", "paper"])
def test_energy_switch_changes_the_energy_term_alone(loss: str) -> None:
    on = gradients(replace_config(SOME, loss=loss))
    off = gradients(replace_config(SOME, loss=loss, energy_on_corrupted=False))
    assert changed(on, off) == {"energy by energy", "energy by encoding"}
    assert float(off["energy"]["encoding"].abs()) == 0.0  # only corrupted structures have encoded forces


@pytest.mark.parametrize("loss", ["published", "paper"])
def test_force_encoding_switch_changes_only_what_reaches_the_encoding(loss: str) -> None:
    on = gradients(replace_config(SOME, loss=loss))
    off = gradients(replace_config(SOME, loss=loss, force_encoding=False))
    # The encoding of the linear model is zero, so no output differs; only its own gradient does, where it is scored.
    assert changed(on, off) == {"energy by encoding", "noise by encoding"}
    assert all(float(by_parameter["encoding"].abs()) == 0.0 for by_parameter in off.values())


@pytest.mark.parametrize("loss", ["published", "paper"])
def test_all_atoms_corrupted_leaves_ordinary_structures_alone(loss: str) -> None:
    batch = make_batch([6, 5, 7, 4])
    targets, model = make_targets(batch), LinearModel()
    partly, wholly = replace_config(SOME, loss=loss), replace_config(SOME, loss=loss, partial=False)
    first, second = prepared_by(partly, batch, targets), prepared_by(wholly, batch, targets)
    chosen = second.noise_mask[torch.searchsorted(batch.system_index, torch.arange(4))]
    assert 0 < int(chosen.sum()) < 4
    assert torch.equal(second.noise_mask, chosen[batch.system_index])  # all atoms of a structure, or none

    def force_gradient(config: DeNSConfig, prepared: Prepared) -> Tensor:
        prediction = model(prepared)
        term = DeNS(config).losses(prediction, prepared, 0.0)["forces"]
        return torch.autograd.grad(term.sum, prediction["forces"])[0]

    ordinary = ~chosen[batch.system_index]
    assert torch.equal(force_gradient(partly, first)[ordinary], force_gradient(wholly, second)[ordinary])
    assert not force_gradient(wholly, second)[~ordinary].any()
    assert force_gradient(partly, first)[~ordinary].any()


@pytest.mark.parametrize("loss", ["published", "paper"])
def test_probability_zero_is_the_ordinary_task(loss: str) -> None:
    batch = make_batch([6, 5, 7, 4])
    targets, model, keys = make_targets(batch), LinearModel(), keys_for(0, 0, range(4))
    dens = DeNS(DeNSConfig(probability=0.0, stress_weight=1.0, loss=loss))
    plain = EnergyForces(EnergyForcesConfig(stress_weight=1.0, loss=loss))
    ours, theirs = dens.prepare(batch, targets, keys, 0.0), plain.prepare(batch, targets, keys, 0.0)
    assert all(torch.equal(value, tensors(theirs)[name]) for name, value in tensors(ours).items())
    terms = dens.losses(model(ours), ours, 0.0)
    noise = terms.pop("noise")
    assert {name: t.mean.item() for name, t in terms.items()} == {
        name: t.mean.item() for name, t in plain.losses(model(theirs), theirs, 0.0).items()
    }
    noise.sum.backward()
    assert torch.equal(model.noise.grad, torch.zeros_like(model.noise))


def test_chosen_without_a_drawn_atom_is_an_ordinary_structure() -> None:
    """Algorithm 2 then scores the energy and the forces of all atoms, and its noise term is an empty sum."""
    batch = make_batch([3] * 50)
    config = DeNSConfig(probability=1.0, corruption_ratio=0.1, energy_on_corrupted=False, stress_weight=1.0)
    targets = make_targets(batch)
    prepared = prepared_by(config, batch, targets)
    empty = ~prepared.noise_mask.reshape(50, 3).any(1)
    assert 0 < int(empty.sum()) < 50
    prediction = {"noise": prepared.noise, **{k: getattr(targets, k) for k in ("energy", "forces", "stress")}}
    terms = DeNS(config).losses(prediction, prepared, 0.0)
    assert float(terms["energy"].count) == float(terms["stress"].count) == float(empty.sum())
    assert float(terms["forces"].count) == float((~prepared.noise_mask).sum())


# Properties.


@st.composite
def situations(draw: st.DrawFn) -> tuple[DeNSConfig, Batch, Targets, Tensor, float]:
    """Any settings, with fixed atoms, missing labels (NaN in their place) and protected structures."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    batch = make_batch(sizes, seed=draw(st.integers(0, 99)))

    def flags(count: int, share: float) -> Tensor:
        return torch.rand(count, generator=generator) < share

    batch = replace(batch, fixed=flags(batch.num_atoms, 0.2), denoise=flags(len(sizes), 0.8))
    targets = hide_labels(
        make_targets(batch),
        energy=flags(len(sizes), 0.8),
        forces=flags(batch.num_atoms, 0.95),
        stress=flags(len(sizes), 0.5),
    )
    partial = draw(st.booleans())
    config = DeNSConfig(
        probability=draw(st.sampled_from([0.0, 0.5, 1.0])),
        corruption_ratio=draw(st.sampled_from([0.1, 0.5, 1.0])),
        sigma_end=draw(st.sampled_from([None, 0.2])),
        stress_weight=1.0,
        energy_on_corrupted=draw(st.booleans()),
        forces_on_corrupted=draw(st.booleans()),
        force_encoding=draw(st.booleans()),
        partial=partial,
        min_atoms=draw(st.sampled_from([None, 3])),
        max_force=draw(st.sampled_from([None, 2.5])),
        max_corrupted_share=draw(st.sampled_from([None, 0.6])) if partial else None,
        loss=draw(st.sampled_from(["published", "paper", "huber"])),
        energy_loss=draw(st.sampled_from(["mae", "mae_per_atom"])),
    )
    keys = keys_for(draw(st.integers(0, 2**62)), draw(st.integers(0, 1000)), range(len(sizes)))
    return config, batch, targets, keys, draw(st.floats(0, 1))


@given(situation=situations())
@settings(max_examples=150)
def test_prepare_is_pure_and_moves_only_what_it_may(
    situation: tuple[DeNSConfig, Batch, Targets, Tensor, float],
) -> None:
    config, batch, targets, keys, progress = situation
    before = {name: value.clone() for name, value in (tensors(batch) | tensors(targets)).items()}
    prepared = DeNS(config).prepare(batch, targets, keys, progress)
    for name, value in (tensors(batch) | tensors(targets)).items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, equal_nan=True)
    again = tensors(DeNS(config).prepare(batch, targets, keys, progress))
    for name, value in tensors(prepared).items():
        torch.testing.assert_close(value, again[name], rtol=0, atol=0, equal_nan=True)

    mask = prepared.noise_mask
    assert not (mask & ~(~batch.fixed & targets.forces_mask)).any()
    assert not (mask & ~batch.denoise[batch.system_index]).any()
    still = ~mask
    assert torch.equal(prepared.batch.positions[still], batch.positions[still])
    assert torch.equal(prepared.noise[still], torch.zeros_like(prepared.noise[still]))
    assert torch.equal(prepared.force_input[still], torch.zeros_like(prepared.noise[still]))
    encoded = targets.forces[mask] if config.force_encoding else torch.zeros_like(targets.forces[mask])
    assert torch.equal(prepared.force_input[mask], encoded)
    assert (prepared.batch.positions[mask] != batch.positions[mask]).all()
    assert prepared.targets is targets


@given(situation=situations())
@settings(max_examples=100)
def test_absent_labels_may_be_nan_and_all_stays_finite(
    situation: tuple[DeNSConfig, Batch, Targets, Tensor, float],
) -> None:
    config, batch, targets, keys, progress = situation
    model = LinearModel()
    prepared = DeNS(config).prepare(batch, targets, keys, progress)
    assert prepared.batch.positions.isfinite().all()
    assert prepared.force_input.isfinite().all()
    terms: dict[str, Term] = DeNS(config).losses(model(prepared), prepared, progress)
    assert set(terms) == {"energy", "forces", "stress", "noise"}
    total_loss(terms).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


# Settings.


@pytest.mark.parametrize(
    "wrong",
    [
        {"probability": 1.5},
        {"sigma": 0.0},
        {"corruption_ratio": 0.0},
        {"sigma_end": -1.0},
        {"coefficient": -1.0},
        {"probabilty": 0.5},
        {"loss": "l2"},
        {"partial": False, "max_corrupted_share": 0.75},
        {"energy_weight": 0, "forces_weight": 0, "stress_weight": 0},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DeNSConfig(**wrong)
