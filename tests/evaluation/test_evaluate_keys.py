from __future__ import annotations

from pathlib import Path

import pytest
from ase.build import molecule
from ase.io import write

from denskit.evaluation.evaluate import evaluate
from denskit.training.load_config import load_config
from denskit.training.run import train

SMALL = [
    "model.num_layers=1", "model.channels=[4,2]", "model.feature_channels=[4,2]", "model.head_channels=[2,2]",
    "model.ffn_channels=[4,2]", "model.num_heads=1", "model.num_basis=4", "model.radial_hidden=[4]",
    "training.max_steps=1", "training.batch_size=2", "training.evaluate_every=1", "data.name=file",
]  # fmt: skip


def test_a_test_file_is_read_with_the_keys_of_training(tmp_path: Path) -> None:
    """Labels under the user's own names, in kcal/mol, mean the same to evaluate as they did to train."""
    frames = []
    for seed in range(6):
        atoms = molecule("H2O")
        atoms.rattle(0.05, seed=seed)
        atoms.info["my_energy"] = 23.0 + seed
        atoms.arrays["my_forces"] = 3 * atoms.positions
        frames.append(atoms)
    write(tmp_path / "mine.extxyz", frames)
    write(tmp_path / "test.extxyz", frames[-2:])
    keys = ["data.energy_key=my_energy", "data.forces_key=my_forces", "data.units=kcal/mol", "data.split.seed=0"]
    files = [f"data.path={tmp_path / 'mine.extxyz'}", "data.split.test=0", f"output={tmp_path / 'run'}"]
    run = train(load_config("demo", [*files, *keys, *SMALL, "data.references=fit"]))

    same = {
        name: evaluate(run, str(tmp_path / "mine.extxyz"))[name] for name in ("energy_mae_meV", "forces_mae_meV_per_A")
    }
    from_model = evaluate(run / "model.safetensors", str(tmp_path / "mine.extxyz"))
    train_and_valid = [evaluate(run, split=split) for split in ("train", "valid")]
    assert from_model["energy_mae_meV"] == pytest.approx(same["energy_mae_meV"])
    for name, value in same.items():
        parts = [part[name] for part in train_and_valid]
        assert min(parts) * 0.99 <= value <= max(parts) * 1.01
