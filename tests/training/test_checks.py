"""What is said about settings that cannot be meant, and about trainings that fail."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase.build import bulk
from typer.testing import CliRunner

from denskit.batch import System
from denskit.cli import app
from denskit.models import build_force_field
from denskit.models.model_file import load_model
from denskit.models.scaling import Scaling
from denskit.training.checkpoint import load_checkpoint
from denskit.training.checks import warnings_before
from denskit.training.hints import hint_after, hints_before
from denskit.training.load_config import RunConfig, load_config
from denskit.training.planned import PlannedTraining
from denskit.training.run import train
from denskit.training.schedule import Schedule
from denskit.training.verdicts import learns_nothing, verdict_on
from training.conftest import DEGREE_2

Tiny = Callable[..., RunConfig]
# forces in units of 3 keV/Å: those of any network are far off, and ten steps do not change it
DIVERGES = (
    "training.max_steps=10", "task=energy_forces", "data.references=none",
    "training.scale={energy_shift: -309.57, energy_scale: 3000, force_scale: 3000}",
)  # fmt: skip


def _log(config: RunConfig) -> str:
    return (Path(config.output) / "train.log").read_text()


def test_a_diverged_training_fails_and_keeps_its_files(tiny: Tiny) -> None:
    config = tiny(*DIVERGES)
    with pytest.raises(ValueError, match=r"the training failed: after 10 steps the error of forces on the valid"):
        train(config)
    run = Path(config.output)
    assert load_checkpoint(run / "checkpoints/last.pt").step == 10
    load_model(run / "model.safetensors")
    assert "warning: the error of forces on the validation split is" in _log(config)
    assert "finished:" not in _log(config)
    with pytest.raises(ValueError, match="the training failed: after 10 steps"):  # whose end is not forgotten
        train(config, resume=True)


def test_without_validation_the_training_errors_are_judged(tiny: Tiny) -> None:
    with pytest.raises(ValueError, match="the training failed: after 10 steps the error of forces in training"):
        train(tiny(*DIVERGES, "data.split.valid=0"))


def test_the_program_says_that_it_failed(tiny: Tiny, tiny_file: Path) -> None:
    done = CliRunner().invoke(app, ["train", str(tiny_file), f"output={tiny().output}", "device=cpu", *DIVERGES])
    assert done.exit_code == 1
    assert "Error: the training failed" in done.output
    assert "times that of predicting no forces" in done.output
    assert "Done" not in done.output


def _row(forces: float, energy: float = 1.0, split: str = "valid") -> dict[str, float]:
    return {
        f"{split}_forces_mae_meV_per_A": 700 * forces, f"{split}_forces_mae_relative_to_zero": forces,
        f"{split}_energy_mae_meV": 100 * energy, f"{split}_energy_mae_relative_to_mean": energy,
    }  # fmt: skip


def test_errors_are_judged_against_those_of_predicting_nothing(tiny: Tiny) -> None:
    config = tiny()
    assert verdict_on(_row(1.5, 45.0), config) is None
    poor, failed = verdict_on(_row(2.5), config), verdict_on(_row(12.0), config)
    assert poor is not None and not poor.failed
    assert failed is not None and failed.failed
    assert "1750 meV/Å, 2.5 times that of predicting no forces" in poor.message
    broken = verdict_on(_row(float("nan")), config)
    assert broken is not None and broken.failed
    # validation says more than training
    assert verdict_on({**_row(100.0, split="train"), **_row(0.9)}, config) is None
    # what is not trained for is not judged
    energy_alone = tiny("task.forces_weight=0", "training.best_by=energy")
    assert verdict_on(_row(100.0), energy_alone) is None
    far = verdict_on(_row(1.0, 3000.0), energy_alone)
    assert far is not None and far.failed and "the mean energy" in far.message
    # nor are errors of a few meV/Å where the labels are smaller still
    assert verdict_on({"valid_forces_mae_meV_per_A": 5.0, "valid_forces_mae_relative_to_zero": 100.0}, config) is None


def test_forces_that_stay_as_wrong_as_none(tiny: Tiny) -> None:
    config = tiny()
    stuck = {**_row(0.99, split="train"), "epoch": 5, "step": 500}
    found = learns_nothing(stuck, config)
    assert found is not None and "after 5 epochs" in found and f"training.lr, now {config.training.lr:g}" in found
    for learned in ({"epoch": 4}, {"step": 499}, _row(0.9, split="train"), {"train_forces_mae_meV_per_A": 19.0}):
        assert learns_nothing({**stuck, **learned}, config) is None, learned
    assert learns_nothing(stuck, tiny("task.forces_weight=0", "training.best_by=energy")) is None


def test_it_is_said_once(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("denskit.training.verdicts.STUCK", 0.0)
    monkeypatch.setattr("denskit.training.verdicts.STUCK_STEPS", 2)
    monkeypatch.setattr("denskit.training.verdicts.STUCK_EPOCHS", 0)
    config = tiny("training.log_every=1", "training.max_steps=4")
    text = (train(config) / "train.log").read_text()
    assert text.count("as wrong as no forces") == 1


def test_gradient_norms_and_clipping_are_in_rows_and_log(tiny: Tiny) -> None:
    for name, clip, share, said in (("free", "null", 0.0, ")"), ("clipped", "1e-3", 1.0, ", 100% clipped)")):
        config = tiny("training.max_steps=4", f"training.clip_norm={clip}", name=name)
        with (train(config) / "metrics.csv").open() as stream:
            rows = list(csv.DictReader(stream))
        assert all(float(row["gradient_clipped"]) == share for row in rows)
        assert all(0 < float(row["gradient_norm"]) <= float(row["gradient_norm_max"]) for row in rows)
        norm, largest = float(rows[0]["gradient_norm"]), float(rows[0]["gradient_norm_max"])
        assert f"gradient {norm:.3g} (max {largest:.3g}{said}" in _log(config)
        relative = float(rows[-1]["valid_forces_mae_relative_to_zero"])
        assert f"({relative:.2f} of predicting zero)" in _log(config)


def _warned(config: RunConfig, systems: list[System], steps_per_epoch: int = 5) -> str:
    source = _Frames(systems)
    return "\n".join(warnings_before(PlannedTraining(config, Schedule(config.training, steps_per_epoch), source)))


def test_settings_without_effect_are_named(tiny: Tiny, systems: dict[str, System]) -> None:
    idle = {
        "training.ema_warmup=false": ["training.ema_decay=0.9"],
        "training.gamma=0.5": ["training.schedule=multistep", "training.milestones=[5]", "training.max_steps=10"],
        "training.min_lr=1e-5": ["training.schedule=cosine"],
        "task.stress_loss=mae": ["model.stress=strain", "task.stress_weight=1"],
        "task.corruption_ratio=0.5": ["task.partial=true"],
        "model.mark_corrupted=true": ["task.force_encoding=true"],
    }
    base = ["task=dens", "training.schedule=constant", "task.partial=false", "task.force_encoding=false"]
    found = _warned(tiny(*base, *idle), [systems["ethanol"]])
    for setting, cure in idle.items():
        assert setting.replace("false", "False").replace("true", "True").replace("1e-5", "1e-05") in found
        assert setting.partition("=")[0] not in _warned(tiny(*base, setting, *cure), [systems["ethanol"]])
    assert "without effect" not in _warned(tiny(*base), [systems["ethanol"]])
    assert "mark_corrupted" in _warned(tiny("task=energy_forces", "model.mark_corrupted=true"), [systems["ethanol"]])


LONG = "training.max_steps=3500"  # 700 epochs of 5 steps


class _Frames(list[System]):
    name, sizes = "frames", None


CASES = {
    "training.lr=10": "training.lr=10 is about the change of every weight",
    "task.sigma=5": r"task.sigma=5 Å, but atoms .* only [01]\.\d\d Å apart",
    "task.sigma_end=0.8": "task.sigma=0.8 Å, but atoms",
    "task.probability=0": "task=dens with task.probability=0",
    "task.coefficient=0": "task=dens with task.coefficient=0 predicts no noise, but corrupts structures",
    "training.max_steps=4": "4 steps are 80% of an epoch",
}
STEPWISE = ("training.schedule=multistep", "training.schedule_unit=step", "training.gamma=0.1")


@pytest.mark.parametrize("override", CASES)
def test_settings_that_cannot_be_meant(tiny: Tiny, systems: dict[str, System], override: str) -> None:
    assert re.search(f"^warning: {CASES[override]}", _warned(tiny(override), [systems["ethanol"]]), re.MULTILINE)


def test_milestones_after_the_end(tiny: Tiny, systems: dict[str, System]) -> None:
    """The training has 700 epochs, and its last step is number 3,499."""
    ethanol = [systems["ethanol"]]
    late = _warned(tiny(LONG, *STEPWISE, "training.milestones=[3500 steps, 900 epochs]"), ethanol)
    assert "all training.milestones come after the end of the training (3500 steps, 700 epochs): 3500 steps" in late
    assert "never falls, and ends at 0.001" in late
    some = _warned(tiny(LONG, *STEPWISE, "training.milestones=[300 epochs, 900 epochs]"), ethanol)
    assert "some training.milestones" in some and "falls less often, and ends at 0.0001" in some
    assert _warned(tiny(LONG, *STEPWISE, "training.milestones=[300 epochs, 3499 steps]"), ethanol) == ""


def test_nothing_is_said_of_usual_settings(tiny: Tiny, systems: dict[str, System]) -> None:
    molecules = [systems[name] for name in ("ethanol", "water", "acetamide")]
    assert _warned(tiny(LONG), molecules) == ""
    assert _warned(tiny("task=energy_forces", "training.lr=1e-2"), molecules) == ""


def test_stress_that_nobody_uses(tiny: Tiny, systems: dict[str, System]) -> None:
    crystals = [systems["copper"]] * 101
    strain = ("task=energy_forces", "model.stress=strain")
    assert _warned(tiny(LONG), [systems["ethanol"]]) == ""
    assert "have stresses, which nothing uses; model.stress=strain task.stress_weight=10" in _warned(tiny(), crystals)
    direct = _warned(tiny(LONG, "model.forces=direct"), crystals)
    assert "which nothing uses; model.stress=direct task.stress_weight=10" in direct
    assert "task.stress_weight=5" in _warned(load_config("equiformer_v3"), crystals)
    second = load_config("equiformer_v2_direct_small")
    v2 = _warned(second, crystals)
    assert "equiformer_v2 has no head of them; model.forces=gradient model.stress=strain task.stress_weight=10" in v2
    measured = second.model.model_copy(update={"average_degree": 10.0, "average_atoms": 4.0})
    with pytest.raises(ValueError, match=r"equiformer_v2 has no head of a stress or strain \(model.stress=direct"):
        build_force_field(measured, heads={"stress": "0+2"}, scaling=Scaling(elements=[29]))
    assert "model.stress=strain costs time and memory in every step" in _warned(tiny(*strain), crystals)
    assert _warned(tiny(*strain, "task.stress_weight=10"), crystals) == ""


def test_lower_rates_of_random_layers(tiny: Tiny, systems: dict[str, System]) -> None:
    ethanol = [systems["ethanol"]]
    assert "training.layer_decay=0.8 slows the training" in _warned(tiny(LONG, "training.layer_decay=0.8"), ethanol)
    assert _warned(tiny(LONG, "training.layer_decay=0.8", "training.init_from=trained"), ethanol) == ""


def test_cell_dens_needs_crystals_with_stress(tiny: Tiny, systems: dict[str, System]) -> None:
    crystals = [systems["copper"]] * 101
    strained = tiny(LONG, *DEGREE_2, "task=cell_dens", "model.stress=strain", "task.stress_weight=1")
    assert "no training structure is one; task=dens does the same" in _warned(strained, [systems["ethanol"]])
    assert _warned(strained, crystals) == ""
    assert "which nothing uses" not in _warned(tiny(LONG, *DEGREE_2, "task=cell_dens"), crystals)  # it is encoded


def test_denoising_few_crystals_was_measured_to_do_harm(tiny: Tiny, systems: dict[str, System]) -> None:
    displaced = systems["copper"]
    copper = replace(displaced, positions=bulk("Cu", cubic=True).positions)
    few = [copper] * 50
    for task in ("dens", "cell_dens"):
        assert f"task={task} for 50 crystals, most with atoms on the sites" in _warned(
            tiny(LONG, *DEGREE_2, f"task={task}", "model.stress=strain", "task.stress_weight=1"), few
        )
    plain = tiny(LONG, "task=energy_forces", "model.stress=strain", "task.stress_weight=1")
    assert "crystals" not in _warned(plain, few)
    assert "51 crystals, most with" in _warned(tiny(LONG, "task=dens"), [*few, systems["ethanol"]])
    assert " crystals, most with" not in _warned(tiny(LONG, "task=dens"), [*few[:25], *[systems["ethanol"]] * 25])
    slab = replace(copper, fixed=np.ones(len(copper), bool))
    assert " crystals, most with" not in _warned(tiny(LONG, "task=dens"), [slab] * 50)
    assert " crystals" not in _warned(tiny(LONG, "task=dens"), [displaced] * 50), "positions do not tell the noise"
    in_a_box = replace(copper, cell=copper.cell + np.diag([0.0, 0.0, 10.0]))  # periodic in name
    assert " crystals, most with" not in _warned(tiny(LONG, "task=dens"), [in_a_box] * 50)


def test_denoising_needs_forces(tiny: Tiny, systems: dict[str, System]) -> None:
    water = systems["water"]
    relaxed = replace(water, forces=np.full((3, 3), 0.045 / np.sqrt(3)))
    moving = replace(water, forces=np.full((3, 3), 0.055 / np.sqrt(3)))
    held = replace(water, forces=np.array([[9.0, 0, 0], [0, 0, 0], [0, 0, 0]]), fixed=np.array([True, False, False]))
    said = "100% of the training structures are relaxed or have no forces (root mean square below 0.05 eV/Å, median"
    assert f"{said} 0.022)" in _warned(tiny(LONG), [relaxed, replace(water, forces=None)])
    assert f"{said} 0)" in _warned(tiny(LONG), [held])
    assert _warned(tiny(LONG), [relaxed, moving]) == ""
    assert _warned(tiny("task=energy_forces"), [relaxed]) == ""


@pytest.mark.parametrize(
    "rules",
    [("task.min_atoms=1000",), ("task.max_force=1e-6",), ("task.max_corrupted_share=0.4", "task.corruption_ratio=1")],
)
def test_rules_that_exclude_every_structure(tiny: Tiny, systems: dict[str, System], rules: tuple[str, ...]) -> None:
    frames = [systems["ethanol"]] * 3
    said = _warned(tiny(LONG, *rules), frames)
    assert "none of the 3 training structures looked at can be corrupted" in said and rules[0].partition("=")[0] in said
    assert _warned(tiny(LONG, "task.min_atoms=9", "task.max_corrupted_share=0.75"), frames) == ""


def test_denoising_needs_epochs(tiny: Tiny, systems: dict[str, System]) -> None:
    frames = [systems["ethanol"]] * 50
    said = _warned(tiny("training.max_steps=960", "training.batch_size=8"), frames, steps_per_epoch=6)
    assert "task=dens for 160 epochs (960 steps of 8 structures, 50 for training): on 50 frames of ethanol" in said
    for batch, steps in ((8, 2400), (4, 4200)):
        settings = f"training.batch_size={batch}"
        assert _warned(tiny(settings, f"training.max_steps={steps - 6}"), frames, steps_per_epoch=6) != ""
        assert _warned(tiny(settings, f"training.max_steps={steps}"), frames, steps_per_epoch=6) == ""
    assert _warned(tiny("task=energy_forces"), frames) == ""
    # the paper gains within 12 epochs of two million structures
    assert _warned(tiny("training.max_steps=60"), [systems["ethanol"]] * 10_001) == ""
    # fine-tuning was not measured
    assert _warned(tiny("training.init_from=trained"), frames) == ""


def test_few_structures_do_not_need_many_epochs(tiny: Tiny, systems: dict[str, System]) -> None:
    frames = [systems["ethanol"]] * 50
    plain = ("task=energy_forces", "training.batch_size=8")
    said = _warned(tiny(*plain, "training.max_steps=12000"), frames, steps_per_epoch=6)
    assert "2,000 epochs of 50 structures: on 50 frames of ethanol" in said
    assert said.endswith("training.max_steps=6000")
    assert _warned(tiny(*plain, "training.max_steps=8994"), frames, steps_per_epoch=6) == ""
    assert _warned(tiny(*plain, "training.max_steps=12000"), frames * 3, steps_per_epoch=6) == ""
    assert _warned(tiny("training.max_steps=12000"), frames, steps_per_epoch=6) == ""  # with DeNS they were better
    assert (
        _warned(tiny(*plain, "training.max_steps=12000", "training.init_from=trained"), frames, steps_per_epoch=6) == ""
    )


def test_long_validations_are_told(tiny: Tiny, systems: dict[str, System]) -> None:
    def hinted(*settings: str) -> str:
        config = tiny("training.max_steps=1000", "training.batch_size=8", *settings)
        frames = _Frames([systems["ethanol"]] * 48)
        return "\n".join(hints_before(PlannedTraining(config, Schedule(config.training, 6), frames, 6000)))

    every = "training.evaluate_every=100 steps"
    assert (
        "hint: the structures that validations judge (10 times 6,000) are more than the steps train on (8,000)"
        in hinted(every)
    )
    assert "training.evaluate_structures=100 judges fewer" in hinted(every)
    assert hinted(every, "training.evaluate_structures=100") == ""
    assert hinted("training.evaluate_every=1000 steps") == ""
    often = hinted("training.max_steps=12", "training.evaluate_every=1 steps", "training.evaluate_structures=10")
    assert "validations judge (12 times 10)" in often and "evaluate_structures=" not in often


def test_denoising_is_suggested_where_it_was_measured_to_pay(tiny: Tiny, systems: dict[str, System]) -> None:
    def hinted(*settings: str, frames: list[System], steps: int) -> str:
        config = tiny(f"training.max_steps={steps}", *settings)
        return "\n".join(hints_before(PlannedTraining(config, Schedule(config.training, 6), _Frames(frames))))

    frames, plain = [systems["ethanol"]] * 50, "task=energy_forces"
    assert "hint: 1,000 epochs of 50 structures: at such lengths task=dens training.lr=1e-3 lowered" in hinted(
        plain, frames=frames, steps=6000
    )
    for batch, steps in ((8, 3600), (4, 6000)):
        size = f"training.batch_size={batch}"
        assert "task=dens" in hinted(plain, size, frames=frames, steps=steps)
        assert hinted(plain, size, frames=frames, steps=steps - 6) == ""
    assert hinted(plain, frames=frames, steps=9000) == ""
    assert "of 200 structures: at such lengths" in hinted(plain, frames=frames * 4, steps=6000)
    assert hinted(plain, frames=frames * 5, steps=6000) == ""
    assert hinted(plain, "training.init_from=trained", frames=frames, steps=6000) == ""
    relaxed = replace(systems["ethanol"], forces=np.zeros((9, 3)))
    assert hinted(plain, frames=[*frames, relaxed], steps=6000) == ""
    crystal = replace(systems["ethanol"], pbc=np.ones(3, bool))
    assert hinted(plain, frames=[*frames, crystal], steps=6000) == ""
    assert hinted("task=dens", frames=[*frames, crystal], steps=6000) == ""
    hot = systems["copper"]  # displaced
    copper = replace(hot, positions=bulk("Cu", cubic=True).positions)
    still = replace(hot, forces=np.zeros((4, 3)))
    for others, length in (([copper] * 50, 6000), ([hot] * 200, 6000), ([hot] * 50, 1000), ([still] * 50, 6000)):
        assert hinted(plain, frames=others, steps=length) == ""
    for task in (plain, "task=dens"):  # which gains nothing there
        gentler = hinted(task, "training.lr=1e-3", frames=[hot] * 50, steps=6000)
        assert "1,000 epochs of 50 crystals with displaced atoms" in gentler and gentler.endswith("training.lr=5e-4")
        assert hinted(task, "training.lr=5e-4", frames=[hot] * 50, steps=6000) == ""
    other = load_config("esen", ["data.path=x", "training.max_steps=6000"])  # its preset has 1e-3; not measured
    assert hints_before(PlannedTraining(other, Schedule(other.training, 6), _Frames([hot] * 50))) == []
    short = tiny("training.max_steps=1800", "task=dens")  # 300 epochs
    assert "epochs" not in _warned(short, [hot] * 50, steps_per_epoch=6)
    assert "task=dens for 300 epochs" in _warned(short, frames, steps_per_epoch=6)
    assert "task=dens for 299 epochs" in _warned(tiny("training.max_steps=1794"), [hot] * 50, steps_per_epoch=6)
    assert hinted(plain, "model.forces=direct", frames=[hot] * 50, steps=6000) == ""
    longer = hinted("task=dens", frames=frames * 2, steps=6000)
    assert "1,000 epochs of 100 structures with DeNS" in longer and longer.endswith("training.max_steps=10002")
    assert (
        hinted("task=dens", frames=frames * 2, steps=10002) == hinted("task=dens", frames=frames * 5, steps=6000) == ""
    )
    assert hinted("task=dens", frames=[*frames, *frames, crystal], steps=6000) == ""
    slow = ("task=dens", "training.lr=5e-4")
    faster = hinted(*slow, frames=frames, steps=5064)
    assert faster.startswith("hint: training.lr=0.0005 for 844 epochs with DeNS") and faster.endswith(
        "training.lr=1e-3"
    )
    assert hinted(*slow, frames=frames, steps=12840) == hinted(*slow, frames=frames, steps=2000) == ""
    assert hinted(*slow, frames=frames * 10, steps=5064) == ""
    assert hinted(*slow, frames=[*frames, crystal], steps=5064) == ""


def test_overfitting_is_told_at_the_end(tiny: Tiny, systems: dict[str, System]) -> None:
    ethanol = systems["ethanol"]

    def hinted(trained: float, valid: float | None, *settings: str, frame: System = ethanol) -> str | None:
        planned = PlannedTraining(config := tiny(*settings), Schedule(config.training, 6), _Frames([frame]))
        row = {"train_forces_mae_meV_per_A": trained}
        return hint_after(row if valid is None else {**row, "valid_forces_mae_meV_per_A": valid}, planned)

    plain = "task=energy_forces"
    assert "validation structures have 7 times the error of training structures" in str(hinted(3.2, 22.3, plain))
    for quiet in ((2.8, 4.5, plain), (3.2, 22.3, "task=dens"), (3.2, None, plain), (0.0, 1.0, plain)):
        assert hinted(*quiet) is None
    perfect = replace(ethanol, forces=np.full((9, 3), 1e-9))
    assert hinted(3.2e-6, 22.3, plain, frame=perfect) is None


def test_a_training_that_ended_early_is_told(tiny: Tiny, systems: dict[str, System]) -> None:
    ethanol = systems["ethanol"]

    def hinted(relative: float, *settings: str, steps: int = 47, frame: System = ethanol) -> str | None:
        config = tiny("task=energy_forces", f"training.max_steps={steps}", *settings)
        planned = PlannedTraining(config, Schedule(config.training, 6), _Frames([frame]))
        return hint_after({"train_forces_mae_relative_to_zero": relative}, planned)

    assert str(hinted(0.784)).startswith(
        "47 steps are too few for a new model: the forces of training structures still have 0.78 of the error of "
    )
    assert (
        hinted(0.1)
        is hinted(0.784, steps=1000)
        is hinted(0.784, "task.forces_weight=0", "training.best_by=energy")
        is None
    )
    assert hinted(0.784, frame=replace(ethanol, forces=np.full((9, 3), 1e-9))) is None


def test_the_last_row_of_a_run_is_looked_at(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("denskit.training.hints.OVERFITTED", 1e-6)
    config = tiny("task=energy_forces", "training.max_steps=2", "training.evaluate_every=1 steps")
    train(config)
    assert _log(config).count("hint: the forces of validation structures have") == 1


def test_warnings_come_before_the_first_step(tiny: Tiny) -> None:
    config = tiny("training.max_steps=1", "task.sigma=0.4")
    train(config)
    lines = _log(config).splitlines()
    (warning,) = [number for number, line in enumerate(lines) if "warning: task.sigma=0.4" in line]
    assert warning < next(number for number, line in enumerate(lines) if "step 1/1" in line)
