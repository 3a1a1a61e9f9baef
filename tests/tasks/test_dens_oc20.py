"""DeNS on structures with fixed atoms and from molecular dynamics, as in OC20: real relaxations where there are any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from denskit.batch import Batch, System, Targets
from denskit.data.base import collate
from denskit.random import keys_for
from denskit.tasks import DeNS, DeNSConfig, EnergyForces, EnergyForcesConfig, total_loss
from denskit.tasks.metrics import Metrics

OC20 = DeNSConfig(
    probability=0.5, corruption_ratio=0.5, sigma=0.1, coefficient=10.0, coefficient_decay="none", energy_weight=2.0,
    forces_weight=100.0, loss="published_oc20",
)  # fmt: skip


@pytest.fixture(scope="module")
def relaxations(data_dir: Path) -> list[System]:
    """Sixty frames; every third is said to be from molecular dynamics."""
    with np.load(data_dir / "oc20_s2ef_train.npz") as file:
        arrays = {name: file[name] for name in file.files}
    starts = np.concatenate([[0], np.cumsum(arrays["natoms"])])
    systems = []
    for number, frame in enumerate(np.linspace(0, len(arrays["natoms"]) - 1, 60).astype(int)):
        atoms = slice(starts[frame], starts[frame + 1])
        systems.append(
            System(
                positions=arrays["pos"][atoms].astype(np.float64),
                atomic_numbers=arrays["z"][atoms].astype(np.int64),
                cell=arrays["cell"][frame],
                pbc=np.ones(3, bool),
                fixed=arrays["fixed"][atoms],
                tags=arrays["tags"][atoms].astype(np.int64),
                energy=float(arrays["energy"][frame]),
                forces=arrays["forces"][atoms].astype(np.float64),
                denoise=number % 3 != 0,
                index=int(frame),
            )
        )
    return systems


@pytest.fixture
def batch(relaxations: list[System]) -> tuple[Batch, Targets]:
    batch, targets = collate(relaxations, torch.float64)
    fixed = batch.fixed
    assert 0.1 < fixed.double().mean() < 0.9
    assert targets.forces[fixed].abs().max() > 0.01  # the labels of fixed atoms are not zero
    return batch, targets


def test_only_free_atoms_of_relaxations_are_corrupted(batch: tuple[Batch, Targets]) -> None:
    structures, targets = batch
    prepared = DeNS(OC20).prepare(structures, targets, keys_for(0, 0, range(60)), 0.0)
    allowed = ~structures.fixed & structures.denoise[structures.system_index]
    assert not prepared.noise_mask[~allowed].any()
    assert torch.equal(prepared.batch.positions[~prepared.noise_mask], structures.positions[~prepared.noise_mask])
    assert not prepared.force_input[~prepared.noise_mask].any()
    assert torch.equal(prepared.force_input[prepared.noise_mask], targets.forces[prepared.noise_mask])
    # of the 40 relaxations about half, and of their free atoms about half
    per_system = torch.zeros(60).index_add(0, structures.system_index, prepared.noise_mask.float())
    assert 12 <= (per_system > 0).sum() <= 28
    chosen = (per_system > 0)[structures.system_index] & ~structures.fixed
    assert 0.4 < (prepared.noise_mask[chosen]).double().mean() < 0.6


def test_the_ratio_is_of_free_atoms_whatever_is_fixed(batch: tuple[Batch, Targets]) -> None:
    """Fixing more atoms takes them out and draws the same for the others."""
    structures, targets = batch
    keys = keys_for(0, 0, range(60))
    before = DeNS(OC20).prepare(structures, targets, keys, 0.0).noise_mask
    more = structures.fixed | (torch.arange(structures.num_atoms) % 5 == 0)
    after = DeNS(OC20).prepare(replace(structures, fixed=more), targets, keys, 0.0).noise_mask
    assert torch.equal(after, before & ~more)


def test_the_loss_is_the_published_one_over_free_atoms(batch: tuple[Batch, Targets]) -> None:
    """Written out: one mean of 100 |force error| and 10 |noise error| over the free atoms, and 2 |energy error|."""
    structures, targets = batch
    task = DeNS(OC20)
    prepared = task.prepare(structures, targets, keys_for(0, 0, range(60)), 0.0)
    generator = torch.Generator().manual_seed(0)
    energy = targets.energy + torch.randn(60, generator=generator, dtype=torch.float64)
    forces, noise = (torch.randn(structures.num_atoms, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    loss = total_loss(task.losses({"energy": energy, "forces": forces, "noise": noise}, prepared, 0.7))
    weights, errors = [], []
    for atom in torch.nonzero(~structures.fixed)[:, 0].tolist():
        corrupted = bool(prepared.noise_mask[atom])
        difference = noise[atom] - prepared.noise[atom] if corrupted else forces[atom] - targets.forces[atom]
        weights.append(10.0 if corrupted else 100.0)
        errors.append(float(difference.square().sum().sqrt()))
    expected = np.mean(np.array(weights) * np.array(errors)) + 2 * float((energy - targets.energy).abs().mean())
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    # with all structures from molecular dynamics it is the ordinary task's
    md = replace(structures, denoise=torch.zeros(60, dtype=torch.bool))
    ordinary = EnergyForces(EnergyForcesConfig(energy_weight=2.0, forces_weight=100.0, loss="published_oc20"))
    losses = [
        total_loss(
            each.losses(
                {"energy": energy, "forces": forces, "noise": noise},
                each.prepare(md, targets, keys_for(0, 0, range(60)), 0.0),
                0.0,
            )
        ).item()
        for each in (task, ordinary)
    ]
    assert losses[0] == losses[1]


def test_errors_are_of_free_atoms(batch: tuple[Batch, Targets]) -> None:
    structures, targets = batch
    free = ~structures.fixed
    wrong_on_fixed = torch.where(free[:, None], targets.forces, targets.forces + 100)
    metrics = Metrics()
    metrics.update({"energy": targets.energy, "forces": wrong_on_fixed}, structures, targets)
    summary = metrics.summary()
    assert summary["forces_mae_meV_per_A"] == summary["forces_magnitude_mae_meV_per_A"] == 0.0
    assert summary["efwt_percent"] == 100.0
    assert summary["forces_cosine"] == pytest.approx(1.0)
