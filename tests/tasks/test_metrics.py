from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from denskit.batch import Batch, Prepared, Targets
from denskit.tasks.metrics import _SLOTS, Metrics
from tasks.small import make_batch, make_targets, select_systems


def worked_example() -> tuple[dict[str, Tensor], Batch, Targets]:
    """Systems of 2 and 4 atoms; atom 5 is fixed.  Errors are written out in the test."""
    batch = make_batch([2, 4])
    batch = replace(batch, fixed=torch.arange(6) == 5)
    forces = torch.tensor([[3, 0, 0], [0, 2, 0], [0, 0, 1], [0, 0, 0], [0, 1, 1], [9, 9, 9]]).double()
    errors = torch.tensor([[0, 1, 0], [0, 0, 2], [0, 0, 0], [1, 0, 0], [0, -1, -1], [50, 0, 0]]).double()
    targets = replace(
        make_targets(batch), energy=torch.tensor([-4213.5, 7.0]).double(), forces=forces, stress=torch.ones(2, 3, 3)
    )
    prediction = {
        "energy": targets.energy + torch.tensor([0.004, -0.008]).double(),
        "forces": forces + errors,
        "stress": targets.stress + torch.tensor([0.001, -0.003])[:, None, None],
    }
    return prediction, batch, targets


def test_metrics_of_the_worked_example() -> None:
    metrics = Metrics()
    metrics.update(*worked_example())
    cosines = [
        3 / math.sqrt(10),  # (3, 0, 0) predicted as (3, 1, 0)
        2 / math.sqrt(8),  # (0, 2, 0) predicted as (0, 2, 2)
        1.0,
        0.0,  # zero predicted as (1, 0, 0): as published, what has no direction counts as a right angle
        0.0,  # (0, 1, 1) predicted as zero
    ]
    magnitudes = [math.sqrt(10) - 3, math.sqrt(8) - 2, 0.0, 1.0, math.sqrt(2)]
    prediction, _, targets = worked_example()
    predicted, label = prediction["stress"].double().flatten(), targets.stress.double().flatten()
    assert metrics.summary() == {
        "energy_mae_meV": pytest.approx((4 + 8) / 2),
        "energy_rmse_meV": pytest.approx(math.sqrt((16 + 64) / 2)),
        "energy_mae_meV_per_atom": pytest.approx((4 / 2 + 8 / 4) / 2),
        "energy_rmse_meV_per_atom": pytest.approx(math.sqrt((2**2 + 2**2) / 2)),
        "forces_mae_meV_per_A": pytest.approx(1000 * (1 + 2 + 0 + 1 + 2) / 15),
        "forces_rmse_meV_per_A": pytest.approx(1000 * math.sqrt((1 + 4 + 0 + 1 + 2) / 15)),
        "forces_cosine": pytest.approx(sum(cosines) / 5),
        "forces_magnitude_mae_meV_per_A": pytest.approx(1000 * sum(magnitudes) / 5),
        "forces_slope": pytest.approx((9 + 4 + 1 + 0 + 0) / (9 + 4 + 1 + 0 + 2)),
        "forces_mae_relative_to_zero": pytest.approx(6 / (3 + 2 + 1 + 0 + 2)),
        "ewt_percent": 100.0,
        "efwt_percent": 0.0,
        "stress_mae_meV_per_A3": pytest.approx(2.0, rel=1e-4),
        "stress_slope": pytest.approx(float((predicted * label).sum() / label.square().sum())),
        "stress_cosine": pytest.approx(float(torch.cosine_similarity(predicted, label, dim=0))),
    }


def test_cosine_is_torchs_mean_over_free_atoms() -> None:
    """The published evaluation: torch's function with its defaults, one mean over the free atoms of the split."""
    batch = replace(make_batch([6, 3]), fixed=torch.arange(9) % 4 == 0)
    targets = make_targets(batch)
    forces = make_targets(batch, seed=5).forces
    metrics = Metrics()
    metrics.update({"forces": forces}, batch, targets)
    free = ~batch.fixed
    expected = torch.cosine_similarity(forces[free], targets.forces[free]).mean()
    assert metrics.summary()["forces_cosine"] == pytest.approx(float(expected), rel=1e-12)


def test_energies_and_forces_within_thresholds() -> None:
    """EFwT wants both, in every component of every free atom, and both thresholds are strict."""
    batch = replace(make_batch([2] * 7), fixed=torch.arange(14) == 13)
    targets = make_targets(batch)
    error = torch.zeros(14, 3, dtype=torch.float64)
    energy_error = torch.tensor([0.019, 0.021, -0.019, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    error[4, 1] = -0.029
    error[7, 2] = -0.031  # one component of one atom of structure 3
    error[8, 0] = torch.nan
    error[13, 0] = 7.0  # fixed
    targets = replace(targets, energy=torch.zeros(7, dtype=torch.float64), forces=torch.zeros(14, 3).double())
    targets = replace(targets, energy_mask=torch.arange(7) != 5)  # structure 5 has no energy and is not judged
    metrics = Metrics()
    metrics.update({"energy": energy_error, "forces": error}, batch, targets)
    summary = metrics.summary()
    assert summary["ewt_percent"] == pytest.approx(100 * 5 / 6)
    assert summary["efwt_percent"] == pytest.approx(100 * 3 / 6)  # structures 0, 2 and 6


def test_a_structure_without_free_atoms_is_in_no_share() -> None:
    batch = replace(make_batch([2, 2]), fixed=torch.arange(4) < 2)
    targets = make_targets(batch)
    metrics = Metrics()
    metrics.update({"energy": targets.energy, "forces": targets.forces}, batch, targets)
    assert metrics.summary()["efwt_percent"] == 100.0
    assert dict(zip(_SLOTS, metrics.state.tolist(), strict=True))["both_count"] == 1


def test_predicting_zero_has_relative_error_one_and_no_direction() -> None:
    batch = make_batch([5, 4])
    metrics = Metrics()
    metrics.update({"forces": torch.zeros_like(batch.positions)}, batch, make_targets(batch))
    summary = metrics.summary()
    assert summary["forces_mae_relative_to_zero"] == pytest.approx(1.0, rel=1e-12)
    assert summary["forces_cosine"] == 0.0
    assert "energy_mae_meV" not in summary


def test_predicting_the_mean_energy_has_relative_error_one() -> None:
    batch = make_batch([5, 4])
    targets = replace(make_targets(batch), energy_mask=torch.tensor([True, False]))
    mean = targets.energy + torch.tensor([0.3, -7.0], dtype=torch.float64)
    for share in (1.0, 0.5):
        metrics = Metrics()
        metrics.update({"energy": targets.energy + share * (mean - targets.energy)}, batch, targets, mean)
        assert metrics.summary()["energy_mae_relative_to_mean"] == pytest.approx(share, rel=1e-9)


def test_energies_that_the_references_explain_have_no_relative_error() -> None:
    """Their deviations are rounding, and a ratio to these would say nothing."""
    batch = make_batch([5, 4])
    targets = make_targets(batch)
    metrics = Metrics()
    metrics.update({"energy": targets.energy + 0.1}, batch, targets, targets.energy + 1e-11)
    assert "energy_mae_relative_to_mean" not in metrics.summary()


def test_a_difference_of_a_microelectronvolt_survives_a_large_total_energy() -> None:
    batch = make_batch([3])
    targets = replace(make_targets(batch), energy=torch.tensor([-17643.25], dtype=torch.float64))
    metrics = Metrics()
    metrics.update({"energy": targets.energy + 1e-6}, batch, targets)
    assert metrics.summary()["energy_mae_meV"] == pytest.approx(1e-3, rel=1e-4)


def test_batches_and_processes_add_up() -> None:
    batch = make_batch([5, 4, 3])
    targets = make_targets(batch)
    prediction = {"energy": torch.ones(3).double(), "forces": torch.ones_like(batch.positions)}
    whole, first, second = Metrics(), Metrics(), Metrics()
    whole.update(prediction, batch, targets)
    for metrics, order in ((first, [0]), (second, [1, 2])):
        part, labels = select_systems(batch, targets, order)
        some = {"energy": torch.ones(len(order)).double(), "forces": torch.ones_like(part.positions)}
        metrics.update(some, part, labels)
    torch.testing.assert_close((first + second).state, whole.state, rtol=1e-12, atol=0)
    assert first.state.dtype == torch.float64
    assert first.state.dim() == 1
    assert (first + Metrics()).summary() == first.summary()


def test_absent_labels_count_nowhere() -> None:
    prediction, batch, targets = worked_example()
    targets = replace(
        targets,
        energy=torch.tensor([torch.nan, 7.0]).double(),
        energy_mask=torch.tensor([False, True]),
        forces=torch.where(torch.arange(6)[:, None] == 1, torch.nan, targets.forces),
        forces_mask=targets.forces_mask & (torch.arange(6) != 1),
        stress_mask=torch.tensor([False, False]),
    )
    metrics = Metrics()
    metrics.update(prediction, batch, targets)
    summary = metrics.summary()
    assert summary["energy_mae_meV"] == pytest.approx(8.0)
    assert summary["forces_mae_meV_per_A"] == pytest.approx(1000 * (1 + 0 + 1 + 2) / 12)
    assert "stress_mae_meV_per_A3" not in summary


def test_a_nan_prediction_is_not_hidden() -> None:
    prediction, batch, targets = worked_example()
    metrics = Metrics()
    metrics.update({"forces": prediction["forces"] * torch.nan}, batch, targets)
    assert math.isnan(metrics.summary()["forces_mae_meV_per_A"])


def test_noise_error_relative_to_predicting_zero() -> None:
    batch = make_batch([3])
    noise_mask = torch.tensor([True, False, True])
    noise = torch.tensor([[1.0, -2.0, 0.0], [0, 0, 0], [0, 0, 1.0]], dtype=torch.float64)
    prepared = Prepared(
        batch=batch, targets=make_targets(batch), force_input=torch.zeros(3, 3), noise=noise, noise_mask=noise_mask
    )
    predicted = noise + torch.tensor([[0.5, 0, 0], [99, 99, 99], [0, -0.5, 0]], dtype=torch.float64)
    metrics = Metrics()
    metrics.update_noise(predicted, prepared)
    metrics.update_noise(torch.zeros_like(noise), prepared)
    assert metrics.summary() == {"noise_error_relative_to_zero": pytest.approx((1.0 + 4.0) / (4.0 + 4.0))}


def test_nothing_counted_gives_no_metric() -> None:
    assert Metrics().summary() == {}
