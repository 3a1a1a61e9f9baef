"""Structures that DeNS never corrupts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from denskit.batch import Batch, Targets
from denskit.random import keys_for
from denskit.tasks import DeNS, DeNSConfig
from tasks.small import make_batch, make_targets

NONE_DRAWN = torch.zeros(12, dtype=torch.bool)


def atoms(*chosen: int) -> Tensor:
    mask = torch.zeros(12, dtype=torch.bool)
    mask[list(chosen)] = True
    return mask


def allowed(batch: Batch, targets: Targets, drawn: Tensor = NONE_DRAWN, **settings: float) -> list[bool]:
    return DeNS(DeNSConfig(**settings))._allowed(batch, targets, drawn).tolist()


# Three systems: atoms 0 to 3, 4 to 6, 7 to 11.
BATCH = make_batch([4, 3, 5])
TARGETS = make_targets(BATCH)


def test_a_protected_structure_is_refused() -> None:
    batch = replace(BATCH, denoise=torch.tensor([True, False, True]))
    assert allowed(batch, TARGETS) == [True, False, True]


def test_a_missing_force_refuses_the_structure_unless_the_atom_is_fixed() -> None:
    targets = replace(TARGETS, forces_mask=~atoms(2, 5))
    assert allowed(BATCH, targets) == [False, False, True]
    batch = replace(BATCH, fixed=atoms(2))
    assert allowed(batch, targets) == [True, False, True]


def test_small_structures_are_refused() -> None:
    assert allowed(BATCH, TARGETS, min_atoms=4) == [True, False, True]


def test_large_forces_on_free_atoms_refuse_the_structure() -> None:
    forces = torch.zeros_like(TARGETS.forces)
    forces[1] = torch.tensor([0.0, 3.0, 4.0])  # length 5
    forces[8] = torch.tensor([0.0, 3.0, 4.1])
    targets = replace(TARGETS, forces=forces)
    assert allowed(BATCH, targets, max_force=5.0) == [True, True, False]
    assert allowed(BATCH, targets, max_force=4.9) == [False, True, False]
    assert allowed(replace(BATCH, fixed=atoms(1)), targets, max_force=4.9) == [True, True, False]


def test_too_large_a_share_of_the_free_atoms_refuses_the_structure() -> None:
    drawn = atoms(0, 1, 4, 7, 8, 9, 10)  # shares 2/4, 1/3, 4/5
    assert allowed(BATCH, TARGETS, drawn, max_corrupted_share=0.5) == [True, True, False]
    assert allowed(BATCH, TARGETS, drawn, max_corrupted_share=0.4) == [False, True, False]
    fixed = replace(BATCH, fixed=atoms(5))  # 1/2 of the free atoms of the second
    assert allowed(fixed, TARGETS, drawn, max_corrupted_share=0.4) == [False, False, False]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [True, True, True]),
        ({"min_atoms": 4}, [True, False, True]),
        ({"max_force": 4.9}, [False, True, True]),
    ],
)
def test_the_settings_reach_the_corruption(settings: dict[str, float], expected: list[bool]) -> None:
    forces = torch.zeros_like(TARGETS.forces)
    forces[1] = torch.tensor([0.0, 3.0, 4.0])
    task = DeNS(DeNSConfig(probability=1.0, corruption_ratio=1.0, **settings))
    prepared = task.prepare(BATCH, replace(TARGETS, forces=forces), keys_for(0, 0, range(3)), 0.0)
    assert torch.equal(prepared.noise_mask, torch.tensor(expected)[BATCH.system_index])


def test_a_structure_with_too_many_drawn_atoms_is_left_as_it_is() -> None:
    batch = make_batch([4] * 200)
    targets, keys = make_targets(batch), keys_for(0, 0, range(200))
    shared = {"probability": 1.0, "corruption_ratio": 0.5}

    def hits(config: DeNSConfig) -> Tensor:
        return DeNS(config).prepare(batch, targets, keys, 0.0).noise_mask.reshape(200, 4).sum(1)

    free, limited = hits(DeNSConfig(**shared)), hits(DeNSConfig(**shared, max_corrupted_share=0.75))
    assert set(free.tolist()) == {0, 1, 2, 3, 4}
    assert torch.equal(limited, torch.where(free > 3, 0, free))
