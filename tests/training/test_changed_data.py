from __future__ import annotations

from pathlib import Path

import pytest
from ase.build import molecule
from ase.calculators.emt import EMT
from ase.io import write

from denskit.training.load_config import load_config
from denskit.training.run import train

SMALL = [
    "model.num_layers=1", "model.channels=[4,2]", "model.feature_channels=[4,2]", "model.head_channels=[2,2]",
    "model.ffn_channels=[4,2]", "model.num_heads=1", "model.num_basis=4", "model.radial_hidden=[4]",
    "training.batch_size=2", "training.evaluate_every=1", "data.name=file",
]  # fmt: skip


def _write(path: Path, shift: float) -> None:
    frames = []
    for seed in range(6):
        atoms = molecule("H2O")
        atoms.rattle(0.05, seed=seed)
        atoms.calc = EMT()
        atoms.info["REF_energy"] = atoms.get_potential_energy() + shift * seed
        atoms.arrays["REF_forces"] = atoms.get_forces()
        frames.append(atoms)
    write(path, frames)


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    """The same number of frames with other labels is another training."""
    data, run = tmp_path / "mine.extxyz", tmp_path / "run"
    _write(data, 0.0)
    settings = [f"data.path={data}", f"output={run}", *SMALL]
    train(load_config("demo", [*settings, "training.max_steps=1"]))
    splits = (run / "splits.json").read_bytes()

    _write(data, 1.0)
    longer = load_config("demo", [*settings, "training.max_steps=2"])
    with pytest.raises(ValueError, match="the data file has changed since this run started"):
        train(longer, resume=True)
    assert (run / "splits.json").read_bytes() == splits

    _write(data, 0.0)
    train(longer, resume=True)


def test_a_run_does_not_go_on_backwards(tmp_path: Path) -> None:
    data, run = tmp_path / "mine.extxyz", tmp_path / "run"
    _write(data, 0.0)
    settings = [f"data.path={data}", f"output={run}", *SMALL]
    train(load_config("demo", [*settings, "training.max_steps=2"]))
    with pytest.raises(ValueError, match="is at step 2, but the training is to end at step 1"):
        train(load_config("demo", [*settings, "training.max_steps=1"]), resume=True)


def test_a_plain_model_can_be_fine_tuned_with_dens(tmp_path: Path) -> None:
    data = tmp_path / "mine.extxyz"
    _write(data, 0.0)
    settings = [f"data.path={data}", "training.max_steps=1", *SMALL]
    plain = train(load_config("demo", [*settings, f"output={tmp_path / 'plain'}"]))
    dens = [*settings, "task=dens", f"training.init_from={plain}", f"output={tmp_path / 'dens'}"]
    assert (train(load_config("demo", dens)) / "model.safetensors").is_file()


def test_best_by_a_label_without_weight_is_refused() -> None:
    with pytest.raises(ValueError, match=r"training.best_by=energy"):
        load_config("demo", ["task.forces_weight=0"])
