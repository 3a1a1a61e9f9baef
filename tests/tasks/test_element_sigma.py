"""Sigma by element: every denoising task asks one place for the sigma of an atom."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from denskit.batch import Batch
from denskit.random import keys_for
from denskit.tasks import CellDeNSConfig, DenoisingConfig, DeNSConfig, NoisyNodesConfig, build_task
from tasks.small import make_batch, make_targets

TABLE = {"H": 0.2, "O": 0.1}
CONFIGS = [
    DeNSConfig(probability=1.0, corruption_ratio=1.0, sigma=TABLE),
    CellDeNSConfig(probability=1.0, corruption_ratio=1.0, sigma=TABLE, strain_probability=0.0),
    NoisyNodesConfig(sigma=TABLE),
]


def water() -> Batch:
    batch = make_batch([3, 6])
    numbers = torch.tensor([8, 1, 1, 8, 1, 1, 8, 1, 1])
    return replace(batch, atomic_numbers=numbers)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_each_atom_moves_by_the_sigma_of_its_element(config: DenoisingConfig) -> None:
    batch = water()
    prepared = build_task(config).prepare(batch, make_targets(batch), keys_for(0, 0, [0, 1]), 0.0)  # type: ignore[arg-type]
    moved = prepared.batch.positions - batch.positions
    sigma = torch.tensor([0.1 if z == 8 else 0.2 for z in batch.atomic_numbers.tolist()], dtype=moved.dtype)
    torch.testing.assert_close(moved, sigma[:, None] * prepared.noise, rtol=1e-9, atol=1e-12)
    assert prepared.noise.all()
    plain = build_task(config.model_copy(update={"sigma": 0.3})).prepare(
        batch, make_targets(batch), keys_for(0, 0, [0, 1]), 0.0
    )
    assert torch.equal(plain.noise, prepared.noise)  # the target is in units of the sigma of the atom


def test_the_mean_moves_to_sigma_end_in_the_same_proportions() -> None:
    config = DeNSConfig(sigma=TABLE, sigma_end=0.03)
    assert [config.sigma_at(progress) for progress in (0.0, 0.5, 1.0)] == pytest.approx([0.15, 0.09, 0.03])
    assert config.sigma_of(water(), 1.0)[:3, 0].tolist() == pytest.approx([0.02, 0.04, 0.04])
    steady = config.with_sigma(0.3)
    assert steady.sigma == pytest.approx({"H": 0.4, "O": 0.2}) and steady.sigma_end is None


def test_an_element_without_noise_is_named() -> None:
    batch = water()
    config = DeNSConfig(sigma={"H": 0.1})
    with pytest.raises(ValueError, match="task.sigma gives no noise for O; add a number"):
        config.sigma_of(batch, 0.0)
    held = replace(batch, fixed=batch.atomic_numbers == 8)  # which never moves
    assert config.sigma_of(held, 0.0)[1].item() == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "a table of them"),
        ({"H": 0.0}, "a table of them"),
        ({"Hx": 0.1, "H": 0.1}, "no element Hx; write symbols like H or O"),
        ({"X": 0.1}, "no element X"),
        (-0.1, "write a number above 0"),
        ("large", "write a number above 0"),
    ],
)
def test_wrong_tables_are_refused(wrong: object, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DeNSConfig(sigma=wrong)
