"""The two steps of the published trainings on crystals: direct forces with DeNS, then gradient forces without."""

from __future__ import annotations

from pathlib import Path

import ase.io
import pytest
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.models.model_file import load_model, read_header
from denskit.simulation.calculator import DenskitCalculator
from denskit.training import energy_constants
from denskit.training.load_config import load_config
from denskit.training.run import train
from training.strained import crystals

SMALL = {"channels": 8, "hidden_channels": 8, "edge_channels": 8, "num_layers": 1, "l_max": 2, "num_basis": 8}
OF_ATTENTION = {"num_heads": 2, "alpha_channels": 4, "value_channels": 4, "ffn_channels": 8}
DIRECT = [
    "task=dens", "task.sigma=0.025", "task.probability=0.5", "task.corruption_ratio=0.5",
    "task.max_corrupted_share=0.75", "model.forces=direct", "model.stress=direct", "task.loss=published_oc20",
]  # fmt: skip


def _train(preset: str, data: Path, output: Path, *settings: str) -> Path:
    sizes = SMALL | (OF_ATTENTION if preset == "equiformer_v3" else {})
    given = [f"model.{name}={value}" for name, value in sizes.items()] if "model.forces=direct" in settings else []
    rest = ["training.max_steps=2", "training.batch_size=2", "task.stress_weight=5", "device=cpu"]
    return train(load_config(preset, [f"data.path={data}", f"output={output}", *given, *rest, *settings]))


@pytest.fixture(params=["equiformer_v3", "esen"])
def preset(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return crystals(tmp_path / "crystals.extxyz", [22, 8], 12)


def test_a_model_with_random_heads_is_not_the_best(preset: str, data: Path, tmp_path: Path) -> None:
    """Heads of direct forces and stress, which the trained model does not have, begin at random."""
    gradient = _train(
        preset, data, tmp_path / "gradient", "model.forces=direct", "model.stress=none", "task.stress_weight=0"
    )
    given = [f"training.init_from={gradient}", "training.lr=1e-9", *DIRECT]
    direct = _train(preset, data, tmp_path / "direct", *given)
    assert read_header(direct / "model.safetensors")["metadata"]["step"] == 2
    log = (direct / "train.log").read_text()
    assert "before the first step: valid MAE" in log
    assert "note: heads of stress begin at random, so this model is not kept as the best" in log
    again = _train(preset, data, tmp_path / "again", *given[1:], f"training.init_from={direct}")
    assert "begin at random" not in (again / "train.log").read_text()


def test_gradient_forces_start_from_direct_ones(preset: str, data: Path, tmp_path: Path) -> None:
    direct = _train(preset, data, tmp_path / "direct", *DIRECT)
    assert set(load_model(direct).heads) == {"energy", "forces", "noise", "stress"}
    settings = [f"training.init_from={direct}", "model.stress=strain", "training.lr=1e-6", "training.warmup=0"]
    tuned = _train(preset, data, tmp_path / "gradient", *settings)
    before, after = load_model(direct), load_model(tuned / "checkpoints" / "last.safetensors")
    assert (after.config.forces, after.config.stress) == ("gradient", "strain")
    assert set(after.heads) == {"energy"}
    assert after.scaling.to_dict() == before.scaling.to_dict()
    then = before.state_dict()
    moved = [float((value.detach() - then[name]).abs().max()) for name, value in after.named_parameters()]
    assert 0 < max(moved) < 1e-5, "two steps of 1e-6 from the weights of the direct model"
    log = (tuned / "train.log").read_text()
    assert "of its own not used, since nothing here reads them: " in log and "heads.noise" in log


def test_the_energy_head_may_start_fresh(preset: str, data: Path, tmp_path: Path) -> None:
    """As published for EquiformerV3."""
    direct = _train(preset, data, tmp_path / "direct", *DIRECT)
    settings = [f"training.init_from={direct}", "training.lr=1e-6", "training.warmup=0", "model.stress=strain"]
    tuned = _train(preset, data, tmp_path / "fresh", *settings, "training.fresh_heads=[energy]", "seed=1")
    then = load_model(direct).state_dict()
    moved = {
        name: float((value.detach() - then[name]).abs().max()) for name, value in load_model(tuned).named_parameters()
    }
    of_head = [value for name, value in moved.items() if name.startswith("heads.energy.") and name.endswith("weight")]
    assert of_head and min(of_head) > 1e-2, "random numbers"
    assert max(value for name, value in moved.items() if not name.startswith("heads.")) < 1e-5
    log = (tuned / "train.log").read_text()
    assert "; fresh by training.fresh_heads: heads.energy (" in log
    assert "level of theory" not in log and "labels minus predictions" not in log, "a random head tells nothing"
    with pytest.raises(ValueError, match=r"no head 'charge'; this model has energy"):
        _train(preset, data, tmp_path / "none", *settings, "training.fresh_heads=[charge]")
    with pytest.raises(ValueError, match="has untrained weights"):
        _train(
            preset, data, tmp_path / "f", *settings, "training.fresh_heads=[energy]", "training.frozen=[heads.energy]"
        )


def test_a_fresh_energy_head_moves_no_references(
    preset: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far its random energies are from the labels."""
    monkeypatch.setattr(energy_constants, "ELSEWHERE", 0.0)
    direct = _train(preset, data, tmp_path / "direct", *DIRECT)
    settings = [f"training.init_from={direct}", "training.lr=1e-6", "training.warmup=0", "model.stress=strain"]
    before = load_model(direct).scaling.to_dict()["references"]
    tuned = _train(preset, data, tmp_path / "fresh", *settings, "training.fresh_heads=[energy]")
    assert load_model(tuned).scaling.to_dict()["references"] == before
    kept = _train(preset, data, tmp_path / "kept", *settings)
    assert load_model(kept).scaling.to_dict()["references"] != before, "with the trained head they would be corrected"


def test_what_direct_forces_learned_is_replayed_for_gradient_forces(preset: str, data: Path, tmp_path: Path) -> None:
    """Gradients of an energy that was learned beside direct forces are wrong at first; the structures are known."""
    direct = _train(preset, data, tmp_path / "direct", *DIRECT)
    new = crystals(tmp_path / "new.extxyz", [22, 8], 12)
    settings = [f"training.init_from={direct}", "training.lr=1e-6", "training.warmup=0", "model.stress=strain"]
    same = _train(preset, new, tmp_path / "same", *settings, f"training.replay={data}")
    assert "structures that the model was trained on" in (same / "train.log").read_text()
    labelled = []
    for atoms in ase.io.read(data, ":"):
        atoms.calc = DenskitCalculator(direct)
        results = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        atoms.calc = SinglePointCalculator(atoms, **results, stress=atoms.get_stress())
        labelled.append(atoms)
    other = tmp_path / "other.extxyz"  # known by the errors of the direct model, not by its content
    ase.io.write(other, labelled)
    _train(preset, new, tmp_path / "as_predicted", *settings, f"training.replay={other}")
    for atoms in labelled:
        atoms.calc.results["forces"] = -atoms.calc.results["forces"]
    ase.io.write(other, labelled)
    with pytest.raises(ValueError, match=r"error is 2.00 of a trivial prediction's on these structures"):
        _train(preset, new, tmp_path / "wrong", *settings, f"training.replay={other}")


def test_fresh_heads_want_a_trained_model(preset: str) -> None:
    with pytest.raises(ValueError, match="fresh_heads=energy would change nothing"):
        load_config(preset, ["data.path=x.extxyz", "training.fresh_heads=[energy]"])
