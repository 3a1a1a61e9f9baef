"""Denskit from Python: training on atoms in memory, and the object of a run."""

from __future__ import annotations

import pickle
import shutil
import signal
import warnings
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
import torch
import yaml
from ase.build import molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator

from denskit import (
    DenskitCalculator,
    Potential,
    Run,
    dynamics,
    evaluate,
    load_config,
    load_model,
    predict,
    read,
    relax,
    train,
)
from denskit.analysis.report import plot, report
from denskit.analysis.run_results import RunResults
from denskit.data.base import collate
from denskit.data.frames import structures_of
from denskit.models.model_file import read_header, save_model
from denskit.simulation.dynamics.folder import DynamicsPlan
from denskit.simulation.dynamics.settings import DynamicsSettings
from denskit.simulation.relaxation.settings import RelaxationSettings
from denskit.simulation.structures import batch_of, system_of
from denskit.training.overview import overview_of
from denskit.training.run import _alone
from denskit.units import KCAL_PER_MOL

from trained import trained

TINY = Path(__file__).parent / "training" / "tiny.yaml"


def labelled(count: int) -> list[ase.Atoms]:
    frames = []
    for index in range(count):
        atoms = molecule(("CH3CH2OH", "H2O")[index % 2])
        atoms.rattle(0.05, seed=index)
        reference = atoms.copy()
        reference.calc = EMT()
        atoms.calc = SinglePointCalculator(
            atoms, energy=reference.get_potential_energy(), forces=reference.get_forces()
        )
        frames.append(atoms)
    return frames


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained_run(**more: object) -> Run:
    settings = {"training.max_steps": 3, "data.molecule": None, "data.split": {"train": 14, "valid": 4, "test": 6}}
    return train(TINY, labelled(24), settings=settings, task="dens", device="cpu", output="runs/mine", **more)


def test_a_run_holds_all_that_came_of_a_training(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = trained_run()
    assert capfd.readouterr() == ("", "")
    assert run.state == "finished"
    assert run.config.task.name == "dens" and run.config.training.max_steps == 3
    assert any("14 train / 4 valid / 6 test" in line for line in run.messages)
    assert not any(line.startswith("step ") for line in run.messages)
    assert run.curves["step"][-1] == 3
    assert run.errors == evaluate(run.path) == run.errors
    assert load_model(run).config == run.model.config
    assert "finished, 3 of 3 steps" in repr(run) and "meV/Å" in repr(run)
    assert "<td>test</td>" in run._repr_html_()
    assert pickle.loads(pickle.dumps(run)) == run
    with pytest.raises(FileNotFoundError, match="holds no run"):
        Run(here)


def test_a_run_is_that_of_its_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After another training there, from another working directory, and when it is gone."""
    run, water = trained_run(), molecule("H2O")
    before = run.predict(water).energy
    assert run.model is run.model
    kept = read_header(run.path / "model.safetensors")["metadata"]["validation"]
    assert overview_of(run).validation == kept and f"forces {kept['forces_mae_meV_per_A']:.3g}" in repr(run)
    train("runs/mine", settings={"training.max_steps": 6, "training.final": "last"}, resume=True)
    assert run.predict(water).energy == predict("runs/mine", water).energy != before
    (here / "other").mkdir()
    monkeypatch.chdir(here / "other")
    assert run.state == "finished" and run.messages and run == Run("../runs/mine")
    (run.path / "metrics.csv").write_text("step,train_loss\n")
    assert run.curves == {}
    (run.path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    assert overview_of(run).validation == {}
    shutil.rmtree(run.path)
    with pytest.raises(FileNotFoundError, match="the folder of this run is gone"):
        run.state  # noqa: B018


def test_a_training_leaves_the_process_as_it_was(here: Path) -> None:
    """Random state and default dtype, neither of which decides its weights; nor does a model that is read."""
    first = trained_run()
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        again = train(TINY, labelled(24), settings=first.config.document() | {"output": "runs/again"})
        first.predict(molecule("H2O"))
        evaluate(load_model(first), labelled(2))
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(again.curves["train_loss"], first.curves["train_loss"])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_training_has_gradients_whatever_its_caller_chose(here: Path, mode: type) -> None:
    with mode():
        run = trained_run()
        assert not torch.is_grad_enabled()
    assert run.state == "finished"


def test_rows_are_given_to_a_logger(here: Path) -> None:
    rows: list[dict[str, float | int]] = []
    run = trained_run(on_row=rows.append)
    assert [row["step"] for row in rows] == run.curves["step"].tolist() != []
    assert [row["train_loss"] for row in rows] == pytest.approx(run.curves["train_loss"].tolist())


def test_an_error_of_a_logger_is_told_and_ends_no_training(here: Path) -> None:
    def broken(row: dict[str, float | int]) -> None:
        raise OSError(f"no route to the host at step {row['step']}")

    run = trained_run(on_row=broken)
    assert run.state == "finished"
    assert [line for line in run.messages if "on_row" in line] == [
        "warning: on_row gets no further rows: OSError: no route to the host at step 2"
    ]


def test_an_interrupt_in_the_last_validation_is_not_lost(here: Path) -> None:
    """The training has ended, and its files are there; what the caller would do next is not done."""
    with pytest.raises(KeyboardInterrupt, match="the training has finished"):
        trained_run(on_row=lambda row: row["step"] == 3 and signal.raise_signal(signal.SIGINT))
    run = Run("runs/mine")
    assert run.state == "finished" and run.curves["step"][-1] == 3


def test_a_batch_in_another_dtype_than_the_weights_is_named(here: Path) -> None:
    model, batch = trained_run().model, batch_of([molecule("H2O")])
    with pytest.raises(ValueError, match=r"batch is in torch\.float64, the weights are in torch\.float32: give"):
        model.predict(batch)
    assert model.predict(batch.to(dtype=torch.float32))["energy"].isfinite().all()


def test_one_training_at_a_time_in_a_process(here: Path) -> None:
    with _alone(), pytest.raises(ValueError, match="another training runs in this process"):
        trained_run()
    assert not Path("runs").exists()
    assert trained_run().state == "finished"


def test_a_force_field_keeps_its_mode(here: Path) -> None:
    """Judging a model in a loop of one's own must not end its training; in evaluation mode a loss is warned of."""
    model, water = load_model(trained_run()).train(), labelled(2)[1]
    evaluate(model, [water])
    predict(model, water)
    assert model.training
    batch = model.config.with_neighbors(collate([system_of(water)], torch.float32)[0])
    assert model(batch)["forces"].requires_grad
    with pytest.warns(UserWarning, match=r"in evaluation mode.*call train\(\) before a loss"):
        assert not model.eval()(batch)["forces"].requires_grad
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        model(batch)


def test_predictions_of_a_model_are_no_labels(here: Path) -> None:
    run, frames = trained_run(), labelled(24)
    for atoms in frames:
        atoms.calc = DenskitCalculator(run)
        atoms.get_forces()
    assert structures_of(frames)[0][0].of_model and not structures_of(labelled(1))[0][0].of_model
    compared = labelled(1)[0]  # with labels under names of their own, and a model that was asked, or not
    compared.info["REF_energy"], compared.arrays["REF_forces"] = compared.get_potential_energy(), compared.get_forces()
    for asked in (False, True):
        compared.calc = DenskitCalculator(run)
        if asked:
            compared.get_forces()
        assert not structures_of([compared])[0][0].of_model
    settings = {"training.max_steps": 1, "data.molecule": None, "data.split": {"train": 14, "valid": 4, "test": 6}}
    again = train(TINY, frames, settings=settings, device="cpu", output="runs/own")
    assert any("problem" in line and "model" in line for line in again.messages), again.messages


def test_frames_may_come_one_by_one_and_replace_those_of_a_run(here: Path) -> None:
    run = trained_run()
    new = train(run, (atoms for atoms in labelled(26)), output="runs/new", settings={"training.max_steps": 1})
    assert "runs/new/frames" in str(new.config.data.train)
    (here / "frames").mkdir()
    with pytest.raises(ValueError, match="frames are given, and data.test=frames/test.extxyz too"):
        train(TINY, labelled(26), settings={"data.molecule": None, "data.test": "frames/test.extxyz"}, output="runs/x")
    with pytest.raises(ValueError, match="found list in the place of the settings; wanted a preset"):
        train(labelled(2))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "given"), [("split", "tets"), ("checkpoint", "lst")])
def test_unknown_words_are_named(here: Path, name: str, given: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}='{given}': wanted '"):
        evaluate(trained_run(), **{name: given})


def test_predictions_are_those_of_the_calculator(here: Path) -> None:
    run = trained_run()
    frames = labelled(3)
    frames[0].calc = EMT()  # labels are not looked at, fitting or not
    found = run.predict(frames)
    assert found.energy.shape == (3,) and found.stress is None
    assert found == found and found != run.predict(frames) and found in {found}
    for atoms, energy, forces in zip(frames, found.energy, found.forces, strict=True):
        atoms.calc = DenskitCalculator(run)
        assert atoms.get_potential_energy() == pytest.approx(energy, abs=1e-3)
        np.testing.assert_allclose(atoms.get_forces(), forces, atol=1e-3)
    assert predict(run, frames[0]).energy[0] == pytest.approx(found.energy[0], abs=1e-3)
    assert Potential(run).cutoff == run.model.cutoff
    labels = evaluate(run, labelled(12))
    assert labels["forces_mae_meV_per_A"] > 0 and "energy_mae_shifted_meV" in labels


def test_stress_is_an_array_with_nan_for_molecules(tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", trained(torch.float32), {})
    crystal = ase.Atoms(
        "Cu4", scaled_positions=[[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]], cell=[3.6] * 3
    )
    crystal.pbc = True
    found = predict(tmp_path / "model.safetensors", [crystal, molecule("H2O")])
    assert found.stress is not None and np.isfinite(found.stress[0]).all() and np.isnan(found.stress[1]).all()


def test_a_moved_run_is_resumed_with_its_own_frames(here: Path) -> None:
    first = trained_run()
    shutil.move(first.path, "elsewhere")
    errors = evaluate("elsewhere")
    again = train("elsewhere", settings={"training.max_steps": 5}, resume=True)
    assert again.curves["step"][-1] == 5
    assert evaluate("elsewhere", split="valid") and errors.keys() == again.errors.keys()
    with pytest.raises(ValueError, match="trained on other frames than those given"):
        train("elsewhere", labelled(10), resume=True)


def test_errors_are_those_of_the_model_that_is_there(here: Path) -> None:
    """Where a training goes on, what was measured on the model before is forgotten, by every verb."""
    run = trained_run()
    before = run.errors
    (run.path / "denoising.json").write_text("[]")
    log, stamp = run.path / "train.log", "2026-01-01 00:00:00  "
    log.write_text(f"{stamp}training data: problem: planted\n{stamp}warning: planted\n{log.read_text()}")
    train(run, resume=True)  # ended already: the model stays, and what is known of it
    assert "warning: planted" in RunResults(run.path).messages
    assert overview_of(run).test == before and (run.path / "denoising.json").is_file()
    train(run, settings={"training.max_steps": 9, "training.final": "last"}, resume=True)
    assert not overview_of(run).test and not RunResults(run.path).errors
    assert not (run.path / "denoising.json").exists()
    assert run.errors == evaluate(run.path) != before
    assert "resumed after step 3" in RunResults(run.path).messages
    assert "training data: problem: planted" in RunResults(run.path).messages
    assert "warning: planted" not in RunResults(run.path).messages
    assert not any("step 3" in line and line.startswith("finished") for line in RunResults(run.path).messages)


def test_one_folder_or_several_are_reported(here: Path) -> None:
    run = trained_run()
    pages = [report(given) for given in (run, str(run.path), [run])]
    assert pages == [run.path / "report.html"] * 3
    assert [path.name for path in plot(run, here / "pictures", ["curves"])] == ["learning_curves.png"]


def test_atoms_are_relaxed_and_simulated_by_the_name_of_a_model(here: Path) -> None:
    other = trained(torch.float64)
    save_model(here / "model.safetensors", other, {})
    next(other.parameters()).data += 1e-9
    save_model(here / "other.safetensors", other, {})
    water = molecule("H2O")
    (relaxed,) = relax("model.safetensors", [water], RelaxationSettings(steps=2))
    (same,) = relax(Potential("model.safetensors"), [system_of(water)], RelaxationSettings(steps=2))
    (mean,) = relax(["model.safetensors", "other.safetensors"], water, RelaxationSettings(steps=2))
    assert relaxed.energy == same.energy == pytest.approx(mean.energy)
    plan = DynamicsPlan(settings=DynamicsSettings(), steps=2, folder="md")  # type: ignore[arg-type]
    dynamics("model.safetensors", [water], plan, say=lambda text: None)
    assert Path("md/summary.json").is_file()
    with pytest.raises(TypeError, match="found list; wanted a Batch"):
        Potential("model.safetensors")([water])  # type: ignore[arg-type]


def test_results_of_a_calculator_are_in_electronvolts(here: Path) -> None:
    """Whatever the unit of the training data: ASE's calculators know no other."""
    file = here / "kcal.extxyz"
    frames = labelled(28)
    for atoms in frames:
        atoms.calc.results["energy"] /= KCAL_PER_MOL
        atoms.calc.results["forces"] = atoms.calc.results["forces"] / KCAL_PER_MOL
    ase.io.write(file, frames)
    settings = {"training.max_steps": 1, "data": {"name": "file", "molecule": None, "path": file, "units": "kcal/mol"}}
    run = train(TINY, settings=settings, device="cpu", output="runs/kcal")
    atoms = labelled(1)[0]
    atoms.calc = DenskitCalculator(run)
    atoms.get_forces()
    assert evaluate(run, [atoms])["energy_mae_meV"] < 1
    # the file has fewer digits of the positions; another unit would be a factor of 23
    assert evaluate(run, frames[:1]) == pytest.approx(evaluate(run, _first(file)), rel=1e-4)


def test_a_training_reads_results_of_calculators_as_they_are(here: Path) -> None:
    frames = labelled(28)
    for atoms in frames:
        atoms.calc = EMT()
        atoms.get_forces()
    run = train(TINY, frames, settings={"training.max_steps": 1, "data.molecule": None, "data.units": "kcal/mol"},
                device="cpu", output="runs/live")  # fmt: skip
    assert read(run.path / "frames/train.extxyz", units="kcal/mol")[0].energy == frames[0].get_potential_energy()


def _first(file: Path) -> Path:
    ase.io.write("first.extxyz", ase.io.read(file, "0"))
    return Path("first.extxyz")


def test_parts_of_their_own(here: Path) -> None:
    frames = labelled(14)
    content = yaml.safe_load(TINY.read_text())
    Path("tiny.yaml").write_text(yaml.safe_dump(content | {"data": {}}))
    more = {"settings": {"training.max_steps": 1}, "device": "cpu", "output": "runs/parts"}
    run = train("tiny.yaml", frames[:8], valid=frames[8:11], test=frames[11:], **more)
    assert evaluate(run) == pytest.approx(evaluate(run, frames[11:]))
    bare = [ase.Atoms(atoms.numbers, atoms.positions) for atoms in frames]
    with pytest.raises(ValueError, match=r"the given atoms \(valid\).* no frame has"):
        train("tiny.yaml", frames[:8], valid=bare[8:], **(more | {"output": "runs/none"}))
    with pytest.raises(ValueError, match="data.split divides one file"):
        train(TINY, frames[:8], valid=frames[8:], settings={"data.molecule": None}, output="runs/none")
    with pytest.raises(ValueError, match="test structures are given, but none to train on"):
        train(TINY, test=frames, output="runs/none")


@pytest.mark.parametrize(
    ("frames", "settings", "said"),
    [
        ([], {}, "no atoms were given"),
        ("mine.extxyz", {}, "found str; wanted a list of ase.Atoms .a file: .*settings=.*data.path"),
        (molecule("H2O"), {}, "found Atoms; wanted a list of ase.Atoms"),
        ([molecule("H2O")], {}, "no frame has energy"),
        ([*labelled(3), molecule("H2O")], {}, "1 of 4 frames have no energy: frame 3"),
        (labelled(2), {"data.path": "mine.extxyz"}, "data.path=mine.extxyz too; give one of them"),
        (labelled(2), {"training.max_stepz": 3}, "did you mean training.max_steps"),
        (labelled(2), {"data.split.train": 50}, "has 2 frames to divide"),
    ],
)
def test_what_cannot_be_trained_on_is_named_and_nothing_is_left(
    here: Path, frames: list[ase.Atoms] | ase.Atoms | str, settings: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        train("equiformer", frames, settings=settings, output="runs/new")
    assert not Path("runs/new").exists() or not list(Path("runs/new").iterdir())


def test_a_killed_beginning_does_not_block_the_folder(here: Path) -> None:
    (here / "runs/mine/frames").mkdir(parents=True)
    (here / "runs/mine/frames/train.extxyz").write_text("half a file")
    assert trained_run().state == "finished"


def test_settings_from_python() -> None:
    config = load_config("equiformer", {"task": "dens", "training.max_steps": np.int64(7), "training": {"lr": 1e-3}})
    assert (config.task.name, config.training.max_steps, config.training.lr) == ("dens", 7, 1e-3)
    assert load_config("equiformer", {"data.path": Path("a.extxyz")}).data.path == "a.extxyz"
    whole = load_config("equiformer", {"data": {"train": [{"path": "a", "origin": "md"}, "b"], "valid": "c"}})
    assert [part.path for part in whole.data.parts] == ["a", "b"]
    with pytest.raises(ValueError, match="did you mean training.batch_size"):
        load_config("equiformer", {"training.batchsize": 4})
    with pytest.raises(ValueError, match="a whole configuration is given, and seed too"):
        train(config, seed=1)
