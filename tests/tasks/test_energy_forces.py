from __future__ import annotations

from typing import Literal

import pytest
import torch

from denskit.random import keys_for
from denskit.tasks import (
    TASKS,
    DeNS,
    DeNSConfig,
    EnergyForces,
    EnergyForcesConfig,
    TaskEntry,
    build_task,
    total_loss,
)
from tasks.small import LinearModel, hide_labels, make_batch, make_targets, tensors


def test_the_batch_stays_as_it_is_and_nothing_is_shown_to_the_model() -> None:
    batch = make_batch([4, 3])
    targets = make_targets(batch)
    prepared = EnergyForces(EnergyForcesConfig()).prepare(batch, targets, keys_for(0, 0, range(2)), 0.5)
    assert prepared.batch is batch
    assert prepared.targets is targets
    assert not any(tensors(prepared)[name].any() for name in ("force_input", "noise", "noise_mask"))


def test_a_term_without_weight_needs_no_prediction() -> None:
    batch = make_batch([4, 3])
    task = EnergyForces(EnergyForcesConfig(forces_weight=0.0))
    prepared = task.prepare(batch, make_targets(batch), keys_for(0, 0, range(2)), 0.0)
    assert set(task.losses({"energy": torch.zeros(2, dtype=torch.float64)}, prepared, 0.0)) == {"energy"}


@pytest.mark.parametrize("loss", ["published", "paper", "huber"])
def test_absent_labels_may_be_nan(loss: str) -> None:
    batch, model = make_batch([4, 3]), LinearModel()
    targets = hide_labels(
        make_targets(batch),
        energy=torch.tensor([True, False]),
        forces=torch.arange(7) != 2,
        stress=torch.tensor([False, True]),
    )
    task = EnergyForces(EnergyForcesConfig(stress_weight=1.0, loss=loss))
    prepared = task.prepare(batch, targets, keys_for(0, 0, range(2)), 0.0)
    total_loss(task.losses(model(prepared), prepared, 0.0)).backward()
    for parameter in (model.energy, model.forces, model.stress):
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


def test_tasks_are_built_by_name() -> None:
    task = build_task(DeNSConfig(sigma=0.1))
    assert isinstance(task, DeNS)
    assert task.config == DeNSConfig(sigma=0.1)
    assert task.heads == {"noise": "1"}
    assert isinstance(build_task(EnergyForcesConfig()), EnergyForces)
    assert build_task(EnergyForcesConfig()).heads == {}
    assert set(TASKS) == {"energy_forces", "dens", "cell_dens", "noisy_nodes", "ndem", "anids"}
    assert all(entry.config().name == name for name, entry in TASKS.items())


class _OwnConfig(DeNSConfig):
    name: Literal["own"] = "own"  # type: ignore[assignment]


def test_a_task_that_is_not_among_the_tasks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would train, and nothing could open its run."""
    with pytest.raises(ValueError, match=r"task=own is not in denskit.tasks.TASKS; .* TASKS\['own'\] = TaskEntry"):
        build_task(_OwnConfig())
    monkeypatch.setitem(TASKS, "own", TaskEntry(_OwnConfig, DeNS))
    assert isinstance(build_task(_OwnConfig()), DeNS)


@pytest.mark.parametrize("loss", ["published", "published_oc20", "paper"])
def test_stress_loss_mae_is_the_mean_absolute_component(loss: str) -> None:
    """In every form, unlike the norm, which "paper" squares; its gradient is the sign over nine."""
    batch = make_batch([4, 3])
    task = EnergyForces(
        EnergyForcesConfig(stress_weight=5.0, stress_loss="mae", energy_weight=0, forces_weight=0, loss=loss)
    )
    prepared = task.prepare(batch, make_targets(batch), keys_for(0, 0, range(2)), 0.0)
    error = torch.tensor([[[3.0, -2, 1], [-2, 0, 0], [1, 0, -9]], [[0.9, 0, 0], [0, 0, 0], [0, 0, 0]]]).double()
    predicted = (prepared.targets.stress + error).requires_grad_()
    term = task.losses({"stress": predicted}, prepared, 0.0)["stress"]
    assert (float(term.sum.detach()), float(term.count), term.weight) == pytest.approx((18 / 9 + 0.1, 2, 5.0))
    total_loss({"stress": term}).backward()
    assert predicted.grad is not None
    torch.testing.assert_close(predicted.grad, 5.0 * error.sign() / 9 / 2)
