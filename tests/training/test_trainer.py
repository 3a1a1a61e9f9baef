"""Whole trainings: what they write, what they refuse, and that they continue bit for bit."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import ase.io
import numba
import numpy as np
import pytest
import torch
import yaml
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from torch import Tensor

from data.readers.test_unpickle import Call
from denskit.analysis.report.summary import training_in_words
from denskit.analysis.run_results import RunResults
from denskit.batch import Batch, Prepared
from denskit.data import DataConfig, load_data
from denskit.data.convert import convert
from denskit.evaluation.evaluate import evaluate
from denskit.models.base import ForceField
from denskit.models.model_file import load_model, read_header
from denskit.runtime.processes import join_processes
from denskit.tasks import TASKS, EnergyForces, EnergyForcesConfig, TaskEntry, Term
from denskit.training.checkpoint import load_checkpoint, save_checkpoint
from denskit.training.load_config import RunConfig, load_config
from denskit.training.loader import StepWork
from denskit.training.run import train
from denskit.training.run_folder import RunFolder
from denskit.training.running_totals import RunningTotals
from denskit.training.trainer import Asked, Trainer
from full_disk import files_limited_to
from training.same_runs import assert_same_runs
from training.slabs import Slabs

Tiny = Callable[..., RunConfig]


def _rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_a_lost_model_is_written_again(tiny: Tiny) -> None:
    """From the copy of the best one, or by the next validation."""
    settings = ("training.evaluate_every=1", "training.schedule=constant")
    folder = RunFolder(train(tiny("training.max_steps=2", *settings)))
    before = folder.model.read_bytes()
    folder.model.unlink()
    train(tiny("training.max_steps=2", *settings), resume=True)
    assert folder.model.read_bytes() == before
    for path in (folder.model, folder.best_model):
        path.unlink()
    train(tiny("training.max_steps=3", *settings), resume=True)
    assert read_header(folder.model)["metadata"]["step"] == 3
    assert "is gone; kept is the best model of the steps from here on" in (folder.path / "train.log").read_text()


def test_the_first_step_of_a_process_tells_nothing_of_the_others(tiny: Tiny) -> None:
    """It may compile kernels: neither the time of a step nor the time that is left counts it."""
    run = train(tiny("training.max_steps=2", "training.log_every=1"))
    first, second = _rows(run)
    spent = float(second["seconds"]) - float(first["seconds"])
    assert not first["step_ms"] and float(second["step_ms"]) == pytest.approx(1000 * spent, rel=1e-3)
    said = [line for line in (run / "train.log").read_text().splitlines() if "ms/step" in line or " left" in line]
    assert len(said) == 1 and "step 2/2" in said[0]
    train(tiny("training.max_steps=3", "training.log_every=3"), resume=True)
    assert not _rows(run)[-1]["step_ms"], "the first of another process"


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
def test_waiting_for_batches_is_counted_and_said(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    count, found = RunningTotals.time, []

    def shared(self: RunningTotals, seconds: float, waiting: float, *, first: bool) -> None:
        found.append(waiting / seconds)
        count(self, seconds, share * seconds, first=first)

    monkeypatch.setattr(RunningTotals, "time", shared)
    run = train(tiny("training.max_steps=6", "training.log_every=2"))
    assert len(found) == 6 and all(0 <= one <= 1 for one in found)
    assert [float(row["waiting_share"]) for row in _rows(run)] == pytest.approx([share] * len(_rows(run)))
    said = (run / "train.log").read_text()
    assert said.count("note: 50% of the time is spent waiting for batches; training.loader_threads=2") == (share == 0.5)
    assert (f"{share:.0%} waiting for batches" in said) == (share > 0.05)


def test_compilation_of_kernels_is_said_once(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Trainer.train_step

    def compiling(trainer: Trainer, work: StepWork) -> Asked:
        numba.njit(lambda x: x + 1)(1.0)
        return step(trainer, work)

    quiet = train(tiny("training.max_steps=2", "training.kernels=plain"))
    assert "compiling" not in (quiet / "train.log").read_text()
    monkeypatch.setattr(Trainer, "train_step", compiling)
    told = train(tiny("training.max_steps=2", "training.kernels=plain", f"output={quiet}_other"))
    assert (told / "train.log").read_text().count("compiling the kernels in the first step") == 1


def test_a_run_folder_holds_what_it_promises(tiny: Tiny) -> None:
    run = train(tiny("training.max_steps=4", "training.evaluate_every=2 steps"))
    rows = _rows(run)
    assert [int(row["step"]) for row in rows] == [2, 4]
    assert {"lr", "train_loss_noise", "train_energy_mae_meV", "valid_forces_mae_meV_per_A", "step_ms"} <= rows[0].keys()
    assert float(rows[0]["lr"]) == pytest.approx(load_config(run).training.lr, rel=0.2)
    assert load_config(run) == tiny("training.max_steps=4", "training.evaluate_every=2 steps")
    environment = json.loads((run / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert len(json.loads((run / "splits.json").read_text())["train"]) == 20
    log = (run / "train.log").read_text()
    assert "20 training structures, 4 for validation" in log
    assert "meV/Å" in log
    assert list((run / "tensorboard").iterdir())
    header = read_header(run / "model.safetensors")
    assert header["metadata"]["validation"]["forces_mae_meV_per_A"] == pytest.approx(
        min(float(row["valid_forces_mae_meV_per_A"]) for row in rows), rel=1e-6
    )


def test_the_loss_in_the_log_is_the_weighted_sum_of_its_terms(tiny: Tiny) -> None:
    run = train(tiny("training.max_steps=2", "training.log_every=1"))
    for progress, row in zip((0.0, 0.5), _rows(run), strict=True):
        weights = {"energy": 1.0, "forces": 80.0, "noise": 4.0 * (1 - progress)}
        expected = sum(weight * float(row[f"train_loss_{name}"]) for name, weight in weights.items())
        assert float(row["train_loss"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("scored", [True, False])
def test_training_errors_are_those_of_what_is_scored(tiny: Tiny, scored: bool) -> None:
    """Every structure is corrupted: its energy counts where it is scored, no force ever does."""
    switches = [f"task.energy_on_corrupted={scored}", f"task.forces_on_corrupted={scored}"]
    run = train(tiny("training.max_steps=1", "task=dens", "task.probability=1", "task.partial=false", *switches))
    (row,) = _rows(run)
    assert bool(row.get("train_energy_mae_meV")) == scored and not row.get("train_forces_mae_meV_per_A")


def test_training_learns(tiny: Tiny) -> None:
    overrides = ["training.max_steps=150", "training.lr=2e-2", "training.log_every=30", "task=energy_forces"]
    rows = _rows(train(tiny(*overrides, "data.split.train=4", "training.evaluate_every=150 steps")))
    assert float(rows[-1]["train_loss"]) < 0.7 * float(rows[0]["train_loss"])  # found: 0.43


def test_a_folder_in_use_is_refused_and_left_alone(tiny: Tiny) -> None:
    config = tiny("training.max_steps=1")
    run = train(config)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="holds a run; continue it with --resume"):
        train(config)
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_folder_without_a_checkpoint_is_refused(tiny: Tiny) -> None:
    config = tiny("training.max_steps=1")
    Path(config.output).mkdir()
    (Path(config.output) / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no run to continue; give another folder"):
        train(config)
    assert [path.name for path in Path(config.output).iterdir()] == ["notes.txt"]


def test_resume_begins_where_there_is_nothing_to_resume(tiny: Tiny) -> None:
    run = train(tiny("training.max_steps=1"), resume=True)
    assert "holds no checkpoint yet: starting from the beginning" in (run / "train.log").read_text()
    assert load_checkpoint(run / "checkpoints/last.pt").step == 1


def test_models_without_their_checkpoint_are_not_overwritten(tiny: Tiny) -> None:
    run = train(tiny("training.max_steps=1"))
    (run / "checkpoints/last.pt").unlink()
    with pytest.raises(ValueError, match="holds models, but no checkpoint to continue from"):
        train(tiny("training.max_steps=1"), resume=True)


RESUMED = {
    "dropout": ["model.attention_dropout=0.2", "model.stochastic_depth=0.2", "model.output_dropout=0.1"],
    "average, accumulation, clipping": [
        "training.ema_decay=0.9", "training.accumulate=2", "training.clip_norm=1.0", "model.attention_dropout=0.2",
    ],
    "a task with a network": ["task=anids", "training.ema_decay=0.9"],
    "published schedule": ["training.schedule_unit=epoch", "training.warmup=0.3", "model.attention_dropout=0.2"],
}  # fmt: skip


@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_run_is_the_same_bit_for_bit(tiny: Tiny, case: str) -> None:
    """7 steps, then to 10, against 10 at once: the stop lies inside the second epoch of 5 steps."""
    whole = train(tiny(*RESUMED[case], name="whole"))
    config = tiny(*RESUMED[case], name="parts")
    _stop_after(config, 7)
    assert load_checkpoint(RunFolder(Path(config.output)).last).step == 7
    parts = train(config, resume=True)
    assert_same_runs(whole, parts)
    assert [int(row["step"]) for row in _rows(whole)] == [2, 4, 5, 6, 8, 10]  # step 7 counts in the row of step 8


def _stop_after(config: RunConfig, steps: int) -> None:
    """Train as ``train`` does, with an interrupt that comes in a certain step."""
    original = Trainer.train_step

    def step_and_interrupt(self: Trainer, work: Any) -> bool:
        if self.step == steps - 1:
            self.interrupt.signal = 2
        return original(self, work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "train_step", step_and_interrupt)
        with pytest.raises(SystemExit) as stopped:
            train(config)
    assert stopped.value.code == 130


def test_rows_after_the_checkpoint_are_forgotten_on_resume(tiny: Tiny) -> None:
    config = tiny("training.max_steps=6", "training.checkpoint_every=4 steps")
    run = train(config)
    # as if the machine had died after step 6's row but before its checkpoint
    early = load_checkpoint(run / "checkpoints/last.pt")
    assert early.step == 6
    longer = tiny("training.max_steps=8", "training.checkpoint_every=4 steps")
    with (run / "metrics.csv").open("a") as stream:
        stream.write("7" + "," * (len(_rows(run)[0]) - 1) + "\n")
    train(longer, resume=True)
    assert [int(row["step"]) for row in _rows(run)] == [2, 4, 5, 6, 8]
    assert "changed on resume: training.max_steps: 6 -> 8" in (run / "train.log").read_text()
    assert yaml.safe_load((run / "config.yaml").read_text())["training"]["max_steps"] == 8


def test_a_learning_rate_that_rises_on_resume_is_a_warning(tiny: Tiny) -> None:
    """As by the first command, given again after a lower rate was given on resume."""
    train(tiny("training.max_steps=2"))
    run = train(tiny("training.max_steps=4", "training.lr=1e-6"), resume=True)
    train(tiny("training.max_steps=6"), resume=True)
    first, second = re.findall(r"(\S*:? ?changed on resume: training.lr: .*)", (run / "train.log").read_text())
    assert "warning" not in first
    assert second.startswith("warning: ") and second.endswith("; to keep it, give training.lr=1e-06")


@pytest.mark.parametrize("override", ["model.num_layers=2", "task.sigma=0.1", "seed=1", "data.split.train=16"])
def test_a_checkpoint_of_another_run_is_refused_with_the_difference(tiny: Tiny, override: str) -> None:
    train(tiny("training.max_steps=1"))
    with pytest.raises(ValueError, match=rf"another run:\n +{override.partition('=')[0]}: .* then, .* now"):
        train(tiny("training.max_steps=1", override), resume=True)


def test_a_run_without_steps_left_takes_no_settings_that_it_would_only_record(tiny: Tiny) -> None:
    run = train(tiny("training.max_steps=2", "training.lr=0.001"))
    before = (run / "config.yaml").read_bytes()
    with pytest.raises(ValueError, match=r"no step left after 2.*training\.lr=0\.002 \(it trained with 0\.001\)"):
        train(tiny("training.max_steps=2", "training.lr=0.002"), resume=True)
    assert (run / "config.yaml").read_bytes() == before
    train(tiny("training.max_steps=2", "training.lr=0.001", "training.final=last"), resume=True)  # has an effect
    train(tiny("training.max_steps=3", "training.lr=0.002"), resume=True)
    assert load_config(run).training.lr == 0.002


@pytest.mark.parametrize("damage", ["truncated", "foreign", "pickle"])
def test_damaged_checkpoints_are_refused(tiny: Tiny, damage: str, tmp_path: Path) -> None:
    config = tiny("training.max_steps=1")
    last = train(config) / "checkpoints/last.pt"
    if damage == "truncated":
        last.write_bytes(last.read_bytes()[:1000])
    elif damage == "foreign":
        torch.save({"state_dict": {}}, last)
    else:
        torch.save({"format_version": Call(os.mkdir, str(tmp_path / "ran"))}, last)
    with pytest.raises(ValueError, match=r"last\.pt(: the pickle asks for posix.mkdir| is damaged| is no checkpoint)"):
        train(config, resume=True)
    assert not (tmp_path / "ran").exists()


def test_a_full_disk_leaves_what_was_saved(tiny: Tiny) -> None:
    run = train(tiny("training.max_steps=2"))
    folder = run / "checkpoints"
    size = (folder / "last.pt").stat().st_size // 2
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    overrides = ["training.max_steps=4", "training.checkpoint_every=3 steps"]
    with files_limited_to(size), pytest.raises(ValueError, match=r"step 3: .*last.pt could not be written.*is intact"):
        train(tiny(*overrides), resume=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    train(tiny(*overrides), resume=True)
    assert load_checkpoint(folder / "last.pt").step == 4


def test_a_training_whose_output_is_closed_says_so_in_its_log(tiny: Tiny) -> None:
    """As ``denskit train ... | head``."""
    run = Path(tiny().output)
    config = run.with_name("tiny_run.yaml")
    config.write_text(yaml.safe_dump(tiny("training.max_steps=500").document()), encoding="utf-8")
    command = [sys.executable, "-m", "denskit", "train", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    while not process.stdout.readline().startswith("step "):  # before, there is no run and no log yet
        pass
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1
    last = (run / "train.log").read_text(encoding="utf-8").splitlines()[-1]
    assert last.endswith(
        "stopped: standard output was closed, as by | head; --resume continues from the last checkpoint"
    )


def test_a_loss_that_is_not_finite_names_step_and_frames(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny("training.max_steps=8", "training.checkpoint_every=2 steps", "training.evaluate_every=8 steps")
    original = ForceField.forward

    def broken(self: ForceField, batch: Batch, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        out = original(self, batch, *args, **kwargs)
        calls.append(1)
        return {**out, "energy": out["energy"] * float("nan")} if len(calls) == 4 else out

    calls: list[int] = []
    monkeypatch.setattr(ForceField, "forward", broken)
    with pytest.raises(
        ValueError, match=r"step 3: .* not finite .*energy nan.*\n.*\(train\), frames \d+, \d+, \d+, \d+"
    ):
        train(config)
    checkpoint = load_checkpoint(Path(config.output) / "checkpoints/last.pt")
    assert checkpoint.step == 2
    assert all(torch.isfinite(value).all() for value in checkpoint.weights.values())


def test_a_model_file_that_cannot_be_written_is_an_error_for_people(tiny: Tiny) -> None:
    config = tiny("training.max_steps=2", "training.evaluate_every=2 steps")
    _stop_after(config, 1)
    with files_limited_to(20_000), pytest.raises(ValueError, match=r"step 2: .*best.safetensors could not be written"):
        train(config, resume=True)
    assert not (Path(config.output) / "checkpoints/best.safetensors").exists()


def _labelled(formula: str, count: int) -> list[ase.Atoms]:
    frames = [molecule(formula) for _ in range(count)]
    for number, atoms in enumerate(frames):
        atoms.rattle(0.05, seed=number)
        atoms.calc = EMT()
        atoms.get_forces()
    return frames


def test_validation_with_unknown_elements_is_refused_before_training(tiny: Tiny, tmp_path: Path) -> None:
    for name, formula in (("train", "CH4"), ("valid", "NH3")):
        ase.io.write(tmp_path / f"{name}.extxyz", _labelled(formula, 4))
    config = tiny("training.max_steps=1")
    files = DataConfig(train=str(tmp_path / "train.extxyz"), valid=str(tmp_path / "valid.extxyz"))
    found = r"valid\.extxyz: N in 4 of 4 structures, frames 0, 1, 2, 3 .* leave these out of .*valid\.extxyz"
    with pytest.raises(ValueError, match=found):
        train(config.model_copy(update={"data": files}))
    assert not Path(config.output).exists()


@pytest.mark.parametrize(
    ("split", "advice", "other"),
    [
        ({"mode": "blocks"}, "by data.split.mode=random", {"mode": "random"}),
        ({"train": 1, "valid": 5}, "with a larger data.split.train", {"train": 5}),
        ({"valid": 5}, "data.split.valid=1 data.split.test=0, or 0 for both", {"valid": 1, "test": 0}),
        ({"valid": 5}, "data.split.valid=1 data.split.test=0, or 0 for both", {"valid": 0, "test": 0}),
    ],
)
def test_the_remedy_for_elements_that_only_validation_has_works(
    tiny: Tiny, tmp_path: Path, split: dict[str, Any], advice: str, other: dict[str, Any]
) -> None:
    file = tmp_path / "elements.extxyz"
    ase.io.write(file, [*_labelled("CH4", 5), *_labelled("NH3", 1), *_labelled("H2O", 1)])
    config = tiny("training.max_steps=1", "training.batch_size=1")

    def run(split: dict[str, Any]) -> Path:
        return train(config.model_copy(update={"data": DataConfig(path=str(file), split=split)}))

    with pytest.raises(ValueError, match=f"but in no structure to train on.*{advice}"):
        run(split)
    run(other)


def test_a_test_split_with_unknown_elements_is_told_also_of_shards(tiny: Tiny, tmp_path: Path) -> None:
    file, shards = tmp_path / "all.extxyz", tmp_path / "shards"
    ase.io.write(file, [*_labelled("CH4", 8), *_labelled("NH3", 2)])
    convert([str(file)], shards)
    for path in (file, shards):
        config = tiny("training.max_steps=1", name=f"run_{path.stem}")
        data = DataConfig(path=str(path), split={"mode": "blocks", "train": 6, "valid": 2, "test": 2})
        run = train(config.model_copy(update={"data": data}))
        assert "N in 2 of 2 structures, frames 8, 9" in (log := (run / "train.log").read_text(encoding="utf-8"))
        assert "so denskit evaluate cannot judge the test split" in log


def test_without_validation_the_last_weights_are_kept(tiny: Tiny) -> None:
    run = train(tiny("training.max_steps=2", "data.split.valid=0"))
    assert not (run / "checkpoints/best.safetensors").exists()
    assert read_header(run / "model.safetensors")["metadata"]["step"] == 2
    assert "valid_forces_mae_meV_per_A" not in _rows(run)[0]


def test_final_last_keeps_the_last_weights(tiny: Tiny) -> None:
    run = train(tiny("training.max_steps=3", "training.final=last", "training.evaluate_every=1 step"))
    assert read_header(run / "model.safetensors")["metadata"]["step"] == 3
    assert (run / "checkpoints/best.safetensors").exists()


def _steps_of(run: Path) -> list[int]:
    return [
        read_header(run / name)["metadata"]["step"] for name in ("model.safetensors", "checkpoints/best.safetensors")
    ]


def test_a_run_that_kept_its_last_model_and_goes_on_may_keep_its_best(tiny: Tiny) -> None:
    run = train(tiny("training.max_steps=1", "training.final=last"))
    checkpoint = load_checkpoint(run / "checkpoints/last.pt")
    save_checkpoint(run / "checkpoints/last.pt", replace(checkpoint, best=0.0))  # not to be beaten
    train(tiny("training.max_steps=3", "training.final=last"), resume=True)
    assert _steps_of(run) == [3, 1]
    (run / "test.json").write_text("{}")
    train(tiny("training.max_steps=4", "training.final=best"), resume=True)
    assert _steps_of(run) == [1, 1]
    assert not (run / "test.json").exists(), "errors of another model"


def test_an_error_of_other_validation_structures_is_no_longer_the_smallest(tiny: Tiny) -> None:
    run = train(tiny("training.max_steps=1", "training.evaluate_structures=1"))
    checkpoint = load_checkpoint(run / "checkpoints/last.pt")
    save_checkpoint(run / "checkpoints/last.pt", replace(checkpoint, best=0.0))  # not to be beaten
    train(tiny("training.max_steps=2", "training.evaluate_structures=null"), resume=True)
    assert _steps_of(run) == [2, 2]


def test_last_weights_hold_the_errors_of_the_last_evaluation(tiny: Tiny) -> None:
    run = train(tiny("training.max_steps=2", "training.final=last"))
    kept = read_header(run / "model.safetensors")["metadata"]["validation"]
    assert kept["forces_mae_meV_per_A"] == pytest.approx(float(_rows(run)[-1]["valid_forces_mae_meV_per_A"]))
    train(load_config(run), resume=True)  # has nothing left to do
    assert read_header(run / "model.safetensors")["metadata"]["validation"] == kept


def test_model_files_hold_the_average(tiny: Tiny) -> None:
    run = train(tiny("training.max_steps=3", "training.ema_decay=0.5", "training.final=last"))
    checkpoint = load_checkpoint(run / "checkpoints/last.pt")
    assert checkpoint.average is not None
    names = [name for name, _ in load_model(run / "model.safetensors").named_parameters()]
    weights = load_model(run / "model.safetensors").state_dict()
    for name, average in zip(names, checkpoint.average, strict=True):
        assert torch.equal(weights[name], average)
    assert not torch.equal(weights[names[0]], checkpoint.weights[names[0]])


def test_init_from_takes_weights_and_units(tiny: Tiny) -> None:
    first = train(tiny("training.max_steps=2", name="first"))
    config = tiny("training.max_steps=1", f"training.init_from={first}", "task=energy_forces", "data.molecule=ethanol")
    trainer = Trainer(config, load_data(config.data, config.seed), join_processes("cpu"))
    trained = load_model(first / "model.safetensors").state_dict()
    own = trainer.force_field.state_dict()
    assert all(torch.equal(own[name], trained[name]) for name in own if name in trained)
    assert any(re.match(r"initial weights: \d+ of \d+ tensors from", message) for message in trainer.messages)
    for override in ("model.num_layers=2", "model.cutoff=3.5"):
        with pytest.raises(ValueError, match=rf"init_from=.*another model: {override.partition('=')[0]} is .* there"):
            train(tiny("training.max_steps=1", f"training.init_from={first}", override))


def test_fine_tuning_keeps_what_the_trained_model_had_measured(tiny: Tiny) -> None:
    measured = ["training.max_steps=1", "model.average_degree=null"]
    first = train(tiny(*measured, name="first"))
    second = train(tiny(*measured, "data.split.train=7", f"training.init_from={first}", name="second"))
    degrees = [read_header(run / "model.safetensors")["model"]["average_degree"] for run in (first, second)]
    assert degrees[0] == degrees[1] is not None


class _Coordinated(EnergyForces):
    """Energies and forces, and one number of each atom from a head of the task's own."""

    heads: ClassVar = {"coordination": "0"}  # type: ignore[assignment]

    def losses(self, prediction: Mapping[str, Tensor], prepared: Prepared, progress: float) -> dict[str, Term]:
        error = (prediction["coordination"][:, 0] - 3).abs()
        more = Term(sum=error.sum(), count=error.new_tensor(float(len(error))), weight=1.0)
        return {**super().losses(prediction, prepared, progress), "coordination": more}


def test_a_task_may_have_a_head_of_its_own(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is trained, and nothing that predicts energies and forces asks for it."""
    monkeypatch.setitem(TASKS, "energy_forces", TaskEntry(EnergyForcesConfig, _Coordinated))
    run = train(tiny("task=energy_forces", "training.max_steps=40", "training.lr=1e-2"))
    rows = list(csv.DictReader(RunFolder(run).metrics.open(newline="")))
    assert float(rows[-1]["train_loss_coordination"]) < 0.8 * float(rows[0]["train_loss_coordination"])
    assert load_model(run / "model.safetensors").outputs() == ("energy", "forces", "coordination")
    assert evaluate(run)["forces_mae_meV_per_A"] > 0


def test_force_labels_never_reach_the_model_in_validation(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ForceField.forward
    evaluated: list[bool] = []

    def watch(self: ForceField, batch: Batch, force_input: torch.Tensor | None = None, **kwargs: Any) -> Any:
        if not self.training:
            evaluated.append(force_input is None)
        return original(self, batch, force_input, **kwargs)

    monkeypatch.setattr(ForceField, "forward", watch)
    train(tiny("training.max_steps=2", "task.probability=1.0"))
    assert evaluated
    assert all(evaluated)


def test_training_never_opens_a_large_test_file(
    tiny: Tiny, tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is not there ends it before the first step, and a small one that cannot be read is warned of."""
    import ase.io
    from ase.build import molecule
    from ase.calculators.emt import EMT

    frames = []
    for number in range(6):
        frames.append(molecule("CH4"))
        frames[-1].rattle(0.05, seed=number)
        frames[-1].calc = EMT()
        frames[-1].get_forces()
    for name, part in (("a", frames[:4]), ("b", frames[4:])):
        ase.io.write(tmp_path / f"{name}.extxyz", part)
    config = yaml.safe_load(tiny_file.read_text())
    files = {
        name: str(tmp_path / f"{file}.extxyz") for name, file in (("train", "a"), ("valid", "b"), ("test", "absent"))
    }
    tiny_file.write_text(yaml.safe_dump(config | {"data": files}))
    with pytest.raises(FileNotFoundError, match="absent.extxyz: there is no such file, and the run is judged on it"):
        train(tiny("training.max_steps=1", name="without"))
    (tmp_path / "absent.extxyz").write_text("no structures")
    run = train(tiny("training.max_steps=1", name="small"))
    assert "warning: data.test: " in (run / "train.log").read_text(encoding="utf-8")
    monkeypatch.setattr("denskit.data.loading.QUICK", 5)
    run = train(tiny("training.max_steps=1", name="large"))
    assert "data.test" not in (run / "train.log").read_text(encoding="utf-8")


def test_float64(tiny: Tiny) -> None:
    """The whole loop runs in float64, and so do the weights in the model file."""
    run = train(tiny("training.max_steps=1", "training.dtype=float64"))
    assert next(load_model(run / "model.safetensors").parameters()).dtype == torch.float64


def test_threads_change_nothing_but_rounding(tiny: Tiny) -> None:
    """Batches of 2,304 edges are divided among threads, in training and in evaluation."""
    weights, errors = [], []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        overrides = ["data.split={mode: random, train: 32, valid: 4, test: 32}", "training.batch_size=32"]
        overrides += ["training.max_steps=2", "training.dtype=float64", "model.cutoff=6"]
        run = train(tiny(*overrides, name=f"threads{threads}"))
        weights.append(load_checkpoint(run / "checkpoints/last.pt").weights)
        errors.append(evaluate(run))
    for other, error in zip(weights[1:], errors[1:], strict=True):
        assert error == pytest.approx(errors[0], rel=1e-9)
        for name, value in weights[0].items():
            torch.testing.assert_close(other[name], value, rtol=1e-9, atol=1e-11)


def test_accumulation_changes_nothing_but_rounding(tiny: Tiny) -> None:
    weights = []
    for accumulate in (1, 2, 4):
        overrides = ["training.max_steps=3", "training.dtype=float64", f"training.accumulate={accumulate}"]
        run = train(tiny(*overrides, name=f"accumulate{accumulate}"))
        weights.append(load_checkpoint(run / "checkpoints/last.pt").weights)
    for other in weights[1:]:
        for name, value in weights[0].items():
            torch.testing.assert_close(other[name], value, rtol=1e-9, atol=1e-11)


def test_the_best_model_where_forces_are_zero_by_symmetry_has_the_best_energy(
    tiny: Callable[..., RunConfig], tmp_path: Path
) -> None:
    frames = []
    for strain in np.linspace(-0.1, 0.1, 16):
        atoms = bulk("Cu", cubic=True, a=3.6 * (1 + strain))
        atoms.calc = SinglePointCalculator(atoms, energy=40.0 * strain**2, forces=np.zeros((4, 3)))
        frames.append(atoms)
    ase.io.write(tmp_path / "strained.xyz", frames)
    run = train(
        tiny(
            "data={name: file, split: {train: 8, valid: 8, test: 0}}", f"data.path={tmp_path / 'strained.xyz'}",
            "data.references=fit", "data.molecule=null", "task=energy_forces", "training.evaluate_every=2 steps",
            "model.norm=merged",
        )
    )  # fmt: skip
    rows = list(csv.DictReader((run / "metrics.csv").open()))
    errors = {int(row["step"]): float(row["valid_energy_mae_meV"]) for row in rows if row["valid_energy_mae_meV"]}
    best = read_header(run / "checkpoints" / "best.safetensors")["metadata"]["step"]
    assert best == min(errors, key=errors.__getitem__)
    assert len(errors) == 5
    said = (run / "train.log").read_text(encoding="utf-8")
    assert said.count("all forces of the validation split are zero; best: the smallest energy_mae_meV") == 1
    assert f"Validation energies were best at step {best} of 10" in training_in_words(RunResults(run))


def test_a_label_that_decides_and_is_nowhere_is_missed_before_the_first_step(
    tiny: Callable[..., RunConfig],
) -> None:
    config = tiny("data.missing=mask")
    data = load_data(config.data, config.seed)
    unlabelled = Slabs([replace(system, forces=None) for system in data.valid])
    with pytest.raises(ValueError, match=r"training\.best_by=forces, but slabs has no forces on free atoms"):
        Trainer(config, replace(data, valid=unlabelled), join_processes("cpu"))
    held = Slabs([replace(system, fixed=np.ones(len(system), dtype=bool)) for system in data.valid])
    with pytest.raises(ValueError, match=r"training\.best_by=forces, but slabs has no forces on free atoms"):
        Trainer(config, replace(data, valid=held), join_processes("cpu"))
