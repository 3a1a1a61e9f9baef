"""Replay: what a model knew is kept while it learns new structures, and what cannot work is refused."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
import torch
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.evaluation.evaluate import evaluate
from denskit.models.model_file import load_model
from denskit.simulation.calculator import DenskitCalculator
from denskit.training.load_config import load_config
from denskit.training.loader import Mixture
from denskit.training.replay import old_structures
from denskit.training.run import train
from denskit.training.run_folder import model_file

from trained import TRAINED

Labels = Callable[[ase.Atoms], tuple[float, np.ndarray]]


def _rattled(path: Path, count: int, name: str, labels: Labels) -> Path:
    frames = []
    for seed in range(count):
        atoms = molecule(name)
        atoms.rattle(0.03, seed=seed)
        energy, forces = labels(atoms)
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        frames.append(atoms)
    ase.io.write(path, frames)
    return path


def _as_predicted(atoms: ase.Atoms) -> tuple[float, np.ndarray]:
    atoms.calc = DenskitCalculator(TRAINED, dtype="float64")
    return atoms.get_potential_energy(), atoms.get_forces()


def _springs(atoms: ase.Atoms) -> tuple[float, np.ndarray]:
    """Another potential, at other energies: springs to the ideal geometry, and 100 eV for each oxygen."""
    away = atoms.positions - molecule("H2O").positions
    return 100.0 + 20.0 * float((away**2).sum()), -40.0 * away


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Old structures (methane, as the model knows it) and new ones (water in another potential)."""
    folder = tmp_path_factory.mktemp("files")
    return _rattled(folder / "old.xyz", 40, "CH4", _as_predicted), _rattled(folder / "new.xyz", 24, "H2O", _springs)


def _tuned(folder: Path, new: Path, *settings: str) -> Path:
    config = load_config(
        "equiformer",
        [f"training.init_from={TRAINED}", f"data.path={new}", "data.split={train: 16, valid: 4, test: 4}",
         "data.references=fit", "training.max_steps=60", "training.lr=0.005", "training.batch_size=4", "device=cpu",
         "training.evaluate_every=30 steps", f"output={folder}", "sizes=[]", *_model(), *settings],
    )  # fmt: skip
    return train(config)


def _model() -> list[str]:
    from denskit.models.model_file import read_header

    return [f"model.{key}={value}" for key, value in read_header(TRAINED)["model"].items() if value is not None]


def test_old_structures_are_remembered(tmp_path: Path, files: tuple[Path, Path]) -> None:
    old, new = files
    forgetful = _tuned(tmp_path / "forgetful", new)
    faithful = _tuned(tmp_path / "faithful", new, f"training.replay={old}", "training.replay_share=0.5")
    forgotten, kept = (evaluate(run, old)["forces_mae_meV_per_A"] for run in (forgetful, faithful))
    assert kept < 0.7 * forgotten
    rows = list(csv.DictReader((faithful / "metrics.csv").open()))
    judged = [float(row["replay_forces_mae_meV_per_A"]) for row in rows if row["replay_forces_mae_meV_per_A"]]
    assert len(judged) == 2
    assert float(rows[-1]["replay_energy_mae_meV"]) < 1000, "energies of old structures moved with the references"
    log = (faithful / "train.log").read_text()
    assert "replay: 16 of 36 old structures in each epoch" in log
    assert "references that the new compositions leave free are those with which energies of CH4 stay" in log
    old_model, now, alone = (load_model(model_file(one)).scaling.references for one in (TRAINED, faithful, forgetful))
    methane = torch.zeros(119, dtype=torch.float64)
    methane[[1, 6]] = torch.tensor([4.0, 1.0], dtype=torch.float64)
    assert float(methane @ (now - old_model)) == pytest.approx(0, abs=1e-6)
    assert abs(float(methane @ (alone - old_model))) > 1
    water = torch.zeros(119, dtype=torch.float64)
    water[[1, 8]] = torch.tensor([2.0, 1.0], dtype=torch.float64)
    assert float(water @ (now - alone)) == pytest.approx(0, abs=1e-6), "the fit to the new structures is as good"
    assert len(load_model(model_file(faithful)).scaling.compositions) == 2, "both are known to be right"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["training.replay={old}", "training.replay_share=0.01"], "come to 0 an epoch"),
        (["training.replay={wrong}"], "it was not trained on them, or their labels are in another unit"),
        (["training.replay_share=0.5"], "without replay has no effect"),
        (["training.replay={foreign}"], "N"),
        (["training.replay={new}"], "a file of this run's own data"),
        (["training.replay={pattern}"], "a file of this run's own data"),
        (["data.split.test=0", "data.test={old}", "training.replay={old}"], "of this run's own data"),
    ],
)
def test_replay_without_effect_is_refused(
    tmp_path: Path, files: tuple[Path, Path], settings: list[str], words: str
) -> None:
    old, new = files
    paths = {"old": old, "new": new, "wrong": tmp_path / "wrong.xyz", "foreign": tmp_path / "foreign.xyz"}
    paths["pattern"] = new.with_stem(f"{new.stem[:-1]}*")
    _rattled(paths["wrong"], 20, "CH4", lambda atoms: tuple(-label for label in _as_predicted(atoms)))  # type: ignore
    _rattled(paths["foreign"], 20, "NH3", lambda atoms: (0.0, np.zeros((4, 3))))
    with pytest.raises(ValueError, match=words):
        _tuned(tmp_path / "run", new, *(setting.format(**paths) for setting in settings))


def test_old_structures_are_read_as_they_were_trained_on(tmp_path: Path) -> None:
    """Filtered, and of their origin: molecular dynamics, which DeNS never corrupts."""

    def labels(atoms: ase.Atoms) -> tuple[float, np.ndarray]:
        energy, forces = _springs(atoms)
        return energy, forces * (1000.0 if len(seen) == 3 else 1.0)

    seen: list[int] = []
    first = _rattled(tmp_path / "first.xyz", 20, "H2O", lambda atoms: (seen.append(0), labels(atoms))[1])
    valid = _rattled(tmp_path / "valid.xyz", 4, "H2O", _springs)
    settings = [f"data.train={first}", f"data.valid={valid}", "data.filter.max_force=50", "data.origin=md"]
    config = load_config("demo", [*settings, "data.name=file", "data.molecule=null", "training.max_steps=2",
                                  "training.batch_size=4", f"output={tmp_path / 'first'}", "device=cpu"])  # fmt: skip
    run = train(config)
    config = load_config("demo", [f"training.init_from={run}", f"training.replay={first}", f"data.path={valid}",
                                  "data.name=file", "data.molecule=null", f"output={tmp_path / 'x'}"])  # fmt: skip
    old, said, _ = old_structures(config)
    assert len(old) == 19 and not any(system.denoise for system in old)
    assert "left out 1 of 20" in said[-1]


def test_old_structures_take_turns() -> None:
    mixture = Mixture(range(13), new=3, old=4)  # type: ignore[arg-type]
    seen = [mixture.structures(epoch, np.arange(7)).tolist() for epoch in range(3)]
    assert all(order[:3] == [0, 1, 2] for order in seen)
    assert sorted(seen[0][3:] + seen[1][3:] + seen[2][3:]) == sorted([*range(3, 13), 3, 4])
