"""The weight of the noise in the trainings of a study that does not give it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator
from typer.testing import CliRunner

from denskit.cli import app
from denskit.evaluation.study.collect import collect
from denskit.evaluation.study.config import FRAMES, LR, StudyConfig, load_study, write_study
from denskit.evaluation.study.noise_weights import left_open, unequal_weights, weights_taken, weights_to_take
from denskit.evaluation.study.question import asked_again, asked_anew, at_one_weight, same_question
from denskit.evaluation.study.running import StudyFolder, train_and_judge
from denskit.evaluation.study.runs import runs_of
from denskit.evaluation.study.tables import as_markdown
from denskit.presets import study_names
from denskit.tasks import DeNSConfig
from denskit.training.cost import Cost
from denskit.training.run_folder import RunFolder

ONLY_NOISE = {"task.energy_on_corrupted": False, "task.forces_on_corrupted": False}
TINY = {
    "model.num_layers": 1, "model.channels": [8, 4], "model.feature_channels": [8, 4], "model.head_channels": [4, 2],
    "model.ffn_channels": [8, 4], "training.max_steps": 4, "training.batch_size": 4, "training.warmup": 0,
    "training.warmup_lr": None, "data.split": {"train": 12, "valid": 4, "test": 6},
    "model.parity": False,  # with which the weight does not depend on the length
}  # fmt: skip
APART = "model.parity=false"  # of the models whose weight depends on length
ABLATION = {"DeNS": {"task": "dens"}, "not encoded": {"task": "dens", "task.force_encoding": False}}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 to 20 molecules for an epoch are some, trained to the end."""
    monkeypatch.setattr("denskit.training.fitted_denoising.SOME_MOLECULES", (10, 20))
    monkeypatch.setattr("denskit.training.fitted_denoising.TO_THE_END", 1)


@pytest.fixture
def water(tmp_path: Path) -> Path:
    """60 labelled structures."""
    generator, frames = np.random.default_rng(0), []
    for _ in range(60):
        frame, moved = molecule("H2O"), generator.normal(scale=0.05, size=(3, 3))
        frame.positions += moved
        frame.calc = SinglePointCalculator(frame, energy=2.5 * float((moved**2).sum()), forces=-5.0 * moved)
        frames.append(frame)
    ase.io.write(tmp_path / "water.extxyz", frames)
    return tmp_path / "water.extxyz"


def ablation(variants: Mapping[str, Any] = ABLATION, **changes: Any) -> StudyConfig:
    content = {"title": "ablation", "base": "demo", "settings": TINY, "variants": variants, "seeds": 1}
    return StudyConfig.model_validate(content | changes)


def weights(study: StudyConfig) -> dict[str, float | None]:
    """The weights that the settings give, by variant; None where they are left open."""
    found: dict[str, float | None] = {}
    for run in runs_of(study):
        if isinstance(task := run.config().task, DeNSConfig):
            found[run.variant] = task.coefficient if "coefficient" in task.model_fields_set else None
    return found


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(("given", "expected"), [
    ([], 20), (["task.coefficient=auto"], 20), (["task.sigma=0.1"], 5), (["task.coefficient=7"], 7),
])  # fmt: skip
def test_variants_of_a_question_have_one_weight(water: Path, tmp_path: Path, given: list[str], expected: float) -> None:
    """That of "with DeNS", though settings of "only the noise" alone would give it another."""
    asked, _ = asked_anew(water, 12, [APART, f"tests.hot={water}", "training.max_steps=300", *given], None)
    open_ = weights_to_take(asked, StudyFolder(tmp_path / "out"))
    assert [one.weight for one in open_ if one.run.variant == "only the noise"] == ([] if expected == 7 else [5, 5])
    study, said = at_one_weight(asked, StudyFolder(tmp_path / "out"))
    assert weights(study) == {"with DeNS": expected, "only the noise": expected}
    assert [line.partition(";")[0].partition("with ")[2] for line in said] == (
        ["DeNS: task.coefficient=20"] if expected == 20 else []
    )
    assert study.variants["without DeNS"] == asked.variants["without DeNS"]
    assert same_question(asked, study, water), "its trials are good for both"


@pytest.mark.usefixtures("few")
def test_a_question_at_several_sizes_is_told(water: Path, tmp_path: Path) -> None:
    asked, _ = asked_anew(
        water, None, [APART, f"tests.hot={water}", f"axes.{FRAMES}=[12, 24]", "training.epochs=2"], None
    )
    study, said = at_one_weight(asked, StudyFolder(tmp_path / "out"))
    assert study == asked and not said
    told = unequal_weights(weights_to_take(study, StudyFolder(tmp_path / "out")))
    assert told is not None and told[0] == "warning"
    assert "20 for 'with DeNS, train 12'; 5 for 'with DeNS, train 24', 'only the noise'" in told[1], "no learning rates"


@pytest.mark.usefixtures("few")
def test_a_question_that_has_begun_keeps_its_weights(
    water: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, folder = [APART, "training.max_steps=300", "training.lr=1e-3"], StudyFolder(tmp_path / "out")
    before, _ = asked_anew(water, 12, words, None)
    folder.keep(before)
    run = next(run for run in runs_of(before) if run.variant == "with DeNS")
    config = run.config(folder.run(run))
    folder.run(run).mkdir(parents=True)
    weighed = config.model_copy(update={"task": config.task.model_copy(update={"coefficient": 9.0})})
    RunFolder(folder.run(run)).write_start(weighed)
    again, _ = asked_anew(water, 12, words, before)
    assert at_one_weight(again, folder) == (before, []), "begun without a weight in its settings"
    grown, _ = asked_again(before, water, None, [f"tests.hot={water}"]) or (before, [])
    grown, _ = at_one_weight(grown, folder)
    assert weights(grown) == {"with DeNS": None, "only the noise": 9}, "what the begun training has"
    folder.keep(grown)

    new, (said,) = at_one_weight(asked_anew(water, 12, [*words, f"tests.hot={water}"], None)[0], StudyFolder(tmp_path))
    assert weights(new) == {"with DeNS": 20, "only the noise": 20} and "task.coefficient=20" in said
    folder = StudyFolder(tmp_path / "new")
    folder.keep(new)
    (folder.path / "runs" / "with-DeNS_seed-0").mkdir(parents=True)
    monkeypatch.setattr("denskit.training.fitted_denoising.TO_THE_END", 10_000)
    again, _ = asked_anew(water, 12, [*words, f"tests.hot={water}"], new)
    assert at_one_weight(again, folder) == (new, []), "also where the rule has changed"


@pytest.mark.usefixtures("few")
def test_a_question_is_written_with_its_weight(water: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the time at hand decides its length."""
    costs = {name: Cost(1.0, 0.0, 12, 4, 6) for name in ("without DeNS", "with DeNS", "only the noise")}
    monkeypatch.setattr(importlib.import_module("denskit.cli.study_work"), "_costs", lambda *_: costs)
    asking = ["study", str(water), "--question", "dens", "--frames", "12", "--dry-run", APART, f"tests.hot={water}"]
    for length in (["--hours", "5"], ["training.max_steps=300"]):
        done = CliRunner().invoke(app, [*asking, *length, "-o", str(tmp_path / length[0])])
        assert done.exit_code == 0 and "task.coefficient=20" in done.output, done.output
        assert "the weight of the noise is not given" not in done.output
        study = load_study(tmp_path / length[0] / "study.yaml")
        assert weights(study) == {"with DeNS": 20, "only the noise": 20}


@pytest.mark.usefixtures("few")
def test_settings_that_change_the_weight_are_told(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)

    def told(*arguments: Any, **changes: Any) -> str:
        return ": ".join(unequal_weights(weights_to_take(ablation(*arguments, **changes), folder)) or ())

    said = told({"plain": {"task": "energy_forces"}, **ABLATION})
    assert said.startswith("warning: the weight of the noise is not given, and follows the other settings")
    assert "20 for 'DeNS'; 5 for 'not encoded'. " in said and said.endswith("such as task.coefficient: 5")
    one = {"DeNS": {"task": "dens"}}
    axes = {"task.corruption_ratio": [0.25, 0.5], LR: [1e-3, 2e-3]}
    assert told(one, axes=axes).startswith("warning") and "'DeNS, corruption_ratio 0.5'." in told(one, axes=axes)
    split = {**TINY, "data.split": {"valid": 4, "test": 6}}
    said = told(one, axes={FRAMES: [8, 12, 24]}, settings=split)
    assert said.startswith("note: the weight of the noise is not given, and follows structures and length: 20 for ")
    assert "20 for 'DeNS, train 12'; 5 for 'DeNS, train 8', 'DeNS, train 24'. " in said
    assert told(one, axes={FRAMES: [12, 16]}, settings=split) == ""
    given = {name: {**own, "task.coefficient": 5 if name == "DeNS" else 6} for name, own in ABLATION.items()}
    assert told(given) == "", "as written"
    assert told({**one, "no noise": {"task": "dens", "task.probability": 0}}) == "", "it has no weight"


@pytest.mark.one_thread
@pytest.mark.usefixtures("few")
def test_trainings_take_the_weights_that_were_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before them and below the table; those that have begun keep them."""
    study, folder = ablation(), StudyFolder(tmp_path / "out")
    monkeypatch.setattr(
        importlib.import_module("denskit.cli.study_work"), "_costs", lambda *_: {"DeNS": Cost(1.0, 0.0, 12, 4, 6)}
    )
    write_study(study, tmp_path / "ablation.yaml")
    asking = ["study", str(tmp_path / "ablation.yaml"), "--dry-run", "-o", str(folder.path)]
    said = " ".join(CliRunner().invoke(app, asking).output.split())
    assert "warning: the weight of the noise is not given" in said and "20 for 'DeNS'; 5 for 'not encoded'." in said
    before = {one.run.name: one.weight for one in weights_to_take(study, folder)}
    assert weights_taken(study, folder) == []
    for run in runs_of(study):
        train_and_judge(study, run, folder)
    assert {one.run.name: one.weight for one in weights_taken(study, folder)} == before
    assert "20 for 'DeNS'; 5 for 'not encoded'. For one weight" in as_markdown(collect(study, folder))
    monkeypatch.setattr("denskit.training.fitted_denoising.TO_THE_END", 10_000)
    assert {one.run.name: one.weight for one in weights_to_take(study, folder)} == before


@pytest.mark.parametrize("name", study_names())
def test_shipped_studies_give_a_weight_to_all_or_to_none(name: str) -> None:
    study = load_study(name)
    with_noise = {run.name for run in runs_of(study) if isinstance(run.config().task, DeNSConfig)}
    assert {run.name for run, _ in left_open(study, study.seeds)} in (set(), with_noise)
