"""Studies: which runs follow from a file, frames that stay the same, statistics, tables, and whole studies."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import ase
import ase.io
import numpy as np
import pytest
import torch
import yaml
from ase.build import bulk, graphene, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from click.testing import Result
from rich.console import Console
from rich.progress import Progress as Bars
from rich.table import Table
from scipy.stats import ttest_rel
from typer.testing import CliRunner

from denskit.analysis.report import plot as write_plots
from denskit.analysis.study_plots import plot_study_results, study_figures
from denskit.cli import app
from denskit.cli.errors import HINT
from denskit.cli.study_progress import StudyProgress
from denskit.data import load_data
from denskit.data.writing import plain, relabelled
from denskit.evaluation.evaluate import evaluate
from denskit.evaluation.study.collect import collect, ended_early, other_energies
from denskit.evaluation.study.committees import committees_of, require_one_split
from denskit.evaluation.study.comparison import compare_runs
from denskit.evaluation.study.config import (
    ENERGY,
    FORCES,
    FRAMES,
    LR,
    Relaxations,
    StudyConfig,
    changed,
    load_study,
    overrides,
    write_study,
)
from denskit.evaluation.study.data import problems_of, split_settings
from denskit.evaluation.study.judges import judge, require_judgeable
from denskit.evaluation.study.question import (
    adapted,
    advice,
    asked_again,
    asked_anew,
    at_one_rate,
    data_warnings,
    dens_question,
    noise_recovered,
    same_question,
    sized,
    within_budget,
)
from denskit.evaluation.study.results import Column, Found, Results, as_csv, means_as_csv, tabulate
from denskit.evaluation.study.running import Job, StudyFolder, run_all, train_and_judge
from denskit.evaluation.study.runs import find_run, runs_of
from denskit.evaluation.study.statistics import difference, mean_of
from denskit.evaluation.study.tables import as_latex, as_markdown, as_rich
from denskit.evaluation.study.timing import abreast, runs_to_try, seconds_of, trial
from denskit.evaluation.study.tuned import at_their_best
from denskit.files import locked, write_json
from denskit.presets import study_names
from denskit.runtime.device import gpus_to_share
from denskit.tasks import DeNSConfig, EnergyForcesConfig
from denskit.training.cost import Cost
from denskit.training.load_config import load_config
from denskit.training.overview import overview_of
from denskit.training.run import train
from denskit.training.run_folder import RunFolder

from tolerances import PATIENCE_S

TINY = {
    "model.num_layers": 1, "model.channels": [8, 4], "model.feature_channels": [8, 4], "model.head_channels": [4, 2],
    "model.ffn_channels": [8, 4], "training.max_steps": 12, "training.evaluate_every": "6 steps",
    "training.log_every": 3, "data.split": {"valid": 6, "test": 20}, "training.warmup": 0.1,
}  # fmt: skip
VARIANTS = {"plain": {"task": "energy_forces"}, "DeNS": {"task": "dens"}}


def tiny_study(**changes: object) -> StudyConfig:
    content = {"title": "tiny", "base": "demo", "settings": TINY, "variants": VARIANTS, "seeds": 2}
    return StudyConfig.model_validate(content | changes)


class TestFiles:
    def test_runs_are_all_combinations_with_complete_pairs_first(self) -> None:
        runs = runs_of(tiny_study(axes={FRAMES: [5, 10]}))
        assert len(runs) == 8 and len({run.name for run in runs}) == 8
        assert [(run.seed, run.point[FRAMES], run.variant) for run in runs[:3]] == [
            (0, 5, "plain"), (0, 5, "DeNS"), (0, 10, "plain"),
        ]  # fmt: skip

    def test_words_of_a_command_change_the_study_and_its_settings(self) -> None:
        study = changed(
            tiny_study(tests={"hot": "hot.xyz"}, relaxation={"steps": 7}),
            ["training.max_steps=9", "seeds=[3, 4]", "tests.cold=cold.xyz", "relaxation.path=slabs.lmdb",
             f"axes.{FRAMES}=[5, 10]", "base=equiformer"],
        )  # fmt: skip
        assert study.settings == TINY | {"training.max_steps": 9}
        assert study.seeds == (3, 4) and study.axes == {FRAMES: (5, 10)} and study.base == "equiformer"
        assert study.tests == {"hot": "hot.xyz", "cold": "cold.xyz"}
        assert study.relaxation == Relaxations(path="slabs.lmdb", steps=7)
        assert changed(study, ["relaxation=null", "simulation={}"]).relaxation is None
        assert changed(study, ["committees=true"]).committees
        assert changed(study, []) == study

    def test_a_setting_of_a_command_holds_for_all_runs(self) -> None:
        """It leaves one value of an axis, and replaces what goes with the values of an axis."""
        steps = {number: {"training": {"max_steps": number}, "training.lr": 1e-3} for number in (4, 6)}
        study = tiny_study(axes={FRAMES: steps, "data.molecule": ["aspirin", "ethanol"]})
        found = changed(study, [f"{FRAMES}=6", "data.molecule=ethanol"])
        assert found.axes == {FRAMES: {6: steps[6]}, "data.molecule": ("ethanol",)}
        found = changed(study, [f"{FRAMES}=9", "training.max_steps=3", "training.lr=1e-2"])
        assert found.axes == {FRAMES: (9,), "data.molecule": ("aspirin", "ethanol")}
        assert {run.settings["training.max_steps"] for run in runs_of(found)} == {3}
        found = changed(study, ["training.max_steps=3"])
        assert found.axes[FRAMES] == {number: {"training.lr": 1e-3} for number in (4, 6)}
        assert changed(study, [f"axes.{FRAMES}=[5]", f"{FRAMES}=7"]).axes[FRAMES] == (7,)

    def test_parts_of_a_setting_stand_beside_an_axis_of_another(self) -> None:
        study = tiny_study(settings=TINY | {"data.split": {}}, axes={FRAMES: [5, 10]})
        found = changed(study, ["data.split={valid: 4, test: 8}"])
        assert found.axes == {FRAMES: (5, 10)} and runs_of(found)[0].settings["data.split.valid"] == 4
        split = runs_of(found)[0].config().data.split
        assert (split.train, split.valid, split.test) == (5, 4, 8)
        with pytest.raises(ValueError, match=f"{FRAMES} is an axis of the study; write {FRAMES}="):
            changed(study, ["data.split={train: 5, valid: 4}"])

    @pytest.mark.parametrize(("word", "message"), [
        (f"{FRAMES}=9", "the study has 4, each with its own training.lr; give them, too"),
        ("data.split={train: 4}", f"{FRAMES} is an axis of the study; write {FRAMES}=..."),
        ("task=dens", "every variant of the study has its own task, so this has no effect"),
        ("output=here", "the study's folder is denskit study ... -o FOLDER"),
    ])  # fmt: skip
    def test_a_setting_without_effect_is_refused(self, word: str, message: str) -> None:
        variants = {"plain": {"task": "energy_forces"}, "DeNS": {"task": "dens"}}
        with pytest.raises(ValueError, match=re.escape(message)):
            changed(tiny_study(axes={FRAMES: {4: {"training.lr": 1e-3}}}, variants=variants), [word])

    @pytest.mark.parametrize("word", [
        "training.lr=1e-3", "training.lr='1e-3'", "axes.training.lr=[5e-4, 1e-3]", "data.path=calc/*/OUTCAR",
        "data.path=*/frames.extxyz", "data.path=[cd]alc/*.cif", "data.molecule='1.5'",
    ])  # fmt: skip
    def test_what_a_command_says_is_read_back_from_the_file(self, tmp_path: Path, word: str) -> None:
        study = changed(tiny_study(), [word])
        write_study(study, tmp_path / "study.yaml")
        assert load_study(tmp_path / "study.yaml") == study
        assert changed(tiny_study(), ["training.lr=1e-3"]).settings["training.lr"] == 0.001

    @pytest.mark.parametrize(
        ("word", "complaint"),
        [
            ("seeds=0", "wanted their number, 1 to 1000"),
            ("relaxation.stepps=3", "stepps"),
            ("seeds", "write key.sub=value"),
            ("axes.seed=[1, 2]", "list seeds under seeds"),
        ],
    )
    def test_words_that_make_no_sense_are_refused(self, word: str, complaint: str) -> None:
        with pytest.raises(ValueError, match=complaint):
            changed(tiny_study(), [word])

    def test_committees_want_one_split(self) -> None:
        """Else the mean of models would have seen more structures than each of them."""
        split = {"mode": "random", "valid": 6, "test": 20}
        with pytest.raises(ValueError, match=r"committees: plain: each seed divides .* data.split.seed: 0"):
            require_one_split(tiny_study(settings=TINY | {"data.split": split}, committees=True))
        fixed = TINY | {"data.split": split | {"seed": 0}}
        with pytest.raises(ValueError, match=f"no axis {FRAMES}"):
            require_one_split(tiny_study(settings=fixed, axes={FRAMES: [5, 10]}, committees=True))
        with pytest.raises(ValueError, match="at least two seeds"):
            require_one_split(tiny_study(settings=fixed, seeds=1, committees=True))
        require_one_split(tiny_study(settings=fixed, committees=True))
        require_one_split(load_study("small/committees"))
        require_one_split(tiny_study())

    def test_the_values_of_an_axis_may_bring_settings(self, tmp_path: Path) -> None:
        longer = {5: {"training.max_steps": 20}, 10: {"training.max_steps": 40, "training.lr": 1e-4}}
        study = tiny_study(axes={FRAMES: longer, "task.forces_weight": [1, 2]})
        write_study(study, tmp_path / "study.yaml")
        runs = runs_of(load_study(tmp_path / "study.yaml"))
        assert len(runs) == 16 and [tuple(run.point) for run in runs[:1]] == [(FRAMES, "task.forces_weight")]
        assert runs[0].name == "plain_train-5_forces_weight-1_seed-0"
        trained = {
            (run.point[FRAMES], run.settings["training.max_steps"], run.settings.get("training.lr")) for run in runs
        }
        assert trained == {(5, 20, None), (10, 40, 1e-4)}

    def test_a_variant_may_have_another_base(self, tmp_path: Path) -> None:
        study = tiny_study(variants={"a": {}, "b": {"base": "equiformer_v2"}}, settings={})
        assert [run.config(tmp_path).model.name for run in runs_of(study)[:2]] == ["equiformer", "equiformer_v2"]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"settings": {"seed": 3}}, "seed is set for each run"),
            ({"seeds": [1, 1]}, "has one twice"),
            ({"seeds": 0}, "seeds: wanted their number, 1 to 1000, or a list"),
            ({"seeds": []}, r"seeds: \[\]: wanted their number, 1 to 1000, or a list"),
            ({"seeds": -2}, "seeds: -2: wanted their number"),
            ({"seeds": 2**70}, f"seeds: {2**70}: wanted their number"),
            ({"seeds": [0, -1]}, r"seeds \(entry 2\): -1: wanted a whole number from 0 to 2\*\*63 - 1"),
            ({"seeds": [2**63]}, rf"seeds .entry 1.: {2**63}: wanted a whole number from 0 to 2\*\*63 - 1$"),
            ({"axes": {FRAMES: []}}, "has no values"),
            ({"axes": {FRAMES: [5, 5]}}, "5 and 5 are one value"),
            ({"axes": {LR: ["1e-3", 2e-3, 0.001]}}, "training.lr: .* are one value"),
            ({"axes": {FRAMES: [5]}, "variants": {"a": {FRAMES: 9}}}, "a: data.split.train is an axis, too"),
            ({"tests": {"test": "a.extxyz"}}, "test is the name of the study's own test"),
            ({"tests": {"simulation": "a.extxyz"}}, "simulation is the name of the study's own simulation"),
            ({"published": {"plain": {"": {"force": 1.0}}}}, "no error 'force'"),
            ({"simulation": {"lenght": 3}}, "lenght"),
            ({"axes": {FRAMES: {5: {"seed": 3}}}}, "seed is set for each run"),
            ({"axes": {FRAMES: {5: 7}}}, "5: found 7; wanted settings that go with this value"),
            ({"axes": {FRAMES: 5}}, "found 5; wanted a list of values"),
            ({"published": {"plian": {}}}, "did you mean plain"),
            ({"published": {"plain": {"": {"ood": {"force": 1.0}}}}}, "no error 'force'"),
            ({"variants": {}}, "variants: {}: wanted a table with 1 or more"),
            ({"axis": {}}, "axis: no such setting; did you mean axes"),
        ],
    )
    def test_a_file_that_makes_no_sense_is_refused(self, change: dict, message: str, tmp_path: Path) -> None:
        content = {"title": "x", "variants": VARIANTS, **change}
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(content))
        with pytest.raises(ValueError, match=message):
            load_study(tmp_path / "study.yaml")

    def test_unknown_settings_name_the_nearest(self, tmp_path: Path) -> None:
        run = runs_of(tiny_study(settings={"training.max_step": 5}))[0]
        with pytest.raises(ValueError, match=r"did you mean training\.max_steps"):
            run.config(tmp_path)

    def test_errors_name_the_variant(self, tmp_path: Path) -> None:
        wrongs = (
            ({"base": "equifomer"}, "no preset 'equifomer'"),
            ({"task": "denss"}, "no task 'denss'"),
            ({"task.sigmma": 1, "training.lr": -1}, "unknown key task.sigmma; .*\ntraining.lr: -1: wanted"),
        )
        for change, wrong in wrongs:
            variants = {"plain": {"task": "energy_forces"}, "DeNS": {"task": "dens", **change}}
            plain_run, dens_run = runs_of(tiny_study(variants=variants, seeds=[0]))
            plain_run.config(tmp_path)
            with pytest.raises(ValueError, match=f"variant 'DeNS': .*{wrong}") as said:
                dens_run.config(tmp_path)
            assert "override" not in str(said.value)  # nothing was given beside the study

    def test_slips_of_a_study_file(self, tmp_path: Path) -> None:
        file = tmp_path / "study.yaml"
        file.write_text("title: t\nvariants: {plain: , DeNS: {task: dens}}\n")
        assert load_study(file).variants == {"plain": {}, "DeNS": {"task": "dens"}}
        (untitled := tmp_path / "ethanol.yaml").write_text("variants: {plain: {}}\n")
        assert load_study(untitled).title == "ethanol"
        write_study(load_study(untitled), file)
        assert load_study(file).title == "ethanol", "of its folder, too"
        file.write_text("title: t\nvariant: {plain: {}}\n")
        with pytest.raises(ValueError, match="variant: no such setting; did you mean variants"):
            load_study(file)

    def test_written_studies_load_as_they_were(self, tmp_path: Path) -> None:
        study = tiny_study(axes={FRAMES: [5, 10]}, seeds=[3, 4])
        write_study(study, tmp_path / "study.yaml")
        assert load_study(tmp_path / "study.yaml") == study

    def test_overrides_are_yaml(self) -> None:
        assert overrides({"a.b": [1, 2], "c": "on", "d": None, "e": True}) == [
            "a.b=[1, 2]", "c='on'", "d=null", "e=true",
        ]  # fmt: skip

    @pytest.mark.parametrize("name", study_names())
    def test_shipped_studies_are_studies(self, name: str, tmp_path: Path) -> None:
        study = load_study(name)
        for run in {run.cell: run for run in runs_of(study)}.values():
            run.config(tmp_path, {"data.path": "mine.extxyz"} if run.base == "equiformer" else {})


class TestSplits:
    def test_sizes_share_validation_and_test_frames_and_are_nested(self, tmp_path: Path) -> None:
        study = tiny_study(axes={FRAMES: [5, 10, 40]}, seeds=2)
        found = {}
        for run in runs_of(study):
            path = split_settings(study, run, tmp_path)["data.split.file"]
            found[run.seed, run.point[FRAMES], run.variant] = json.loads(Path(path).read_text())
        for seed in (0, 1):
            few, middle, many = (found[seed, count, "plain"] for count in (5, 10, 40))
            assert few["test"] == middle["test"] == many["test"] and few["valid"] == many["valid"]
            assert set(few["train"]) < set(middle["train"]) < set(many["train"])
            assert (len(few["train"]), len(many["train"])) == (5, 40)
            assert found[seed, 10, "DeNS"] == middle
            assert not set(many["train"]) & set(many["test"])
        assert found[0, 5, "plain"] != found[1, 5, "plain"]

    def test_small_training_sets_have_all_elements(self, tmp_path: Path) -> None:
        frames = [molecule("CH4") for _ in range(40)] + [molecule(name) for name in ("H2O", "NH3", "C2H6")]
        for seed, atoms in enumerate(frames):
            atoms.rattle(0.05, seed=seed)
            atoms.calc = SinglePointCalculator(atoms, energy=-float(seed), forces=0.1 * atoms.positions)
        ase.io.write(tmp_path / "rare.extxyz", frames)
        data = {"data.name": "file", "data.molecule": None, "data.path": str(tmp_path / "rare.extxyz")}
        study = tiny_study(axes={FRAMES: [4, 20]}, seeds=3)
        for run in runs_of(study):
            others = {
                key: value for key, value in run.settings.items() if key not in ("data.split.test", "data.split.valid")
            }
            run = replace(run, settings={**others, **data, "data.split.valid": 5})
            path = split_settings(study, run, tmp_path)["data.split.file"]
            train = json.loads(Path(path).read_text())["train"]
            assert {7, 8} <= {z for place in train for z in frames[place].numbers.tolist()}

    def test_a_variant_with_other_data_has_a_split_of_its_own(self, tmp_path: Path) -> None:
        study = tiny_study(
            axes={FRAMES: [5, 10]}, seeds=1, variants={"plain": {}, "a b": {"data.split.mode": "blocks"}}
        )
        found = {}
        for run in runs_of(study):
            path = split_settings(study, run, tmp_path)["data.split.file"]
            found[run.variant, run.point[FRAMES]] = json.loads(Path(path).read_text())["how"]
        assert all(("20 frames left" in how) == (variant == "plain") for (variant, _), how in found.items()), found

    def test_fewer_structures_than_the_axis_says_are_refused(self, tmp_path: Path) -> None:
        study = tiny_study(axes={FRAMES: [5, 10]}, seeds=1)
        run = next(run for run in runs_of(study) if run.point[FRAMES] == 10)
        file = {"train": np.arange(8), "valid": np.arange(8, 12), "test": np.arange(12, 20), "how": "by hand"}
        data = load_data(run.config(tmp_path).data, 0, ())
        assert data.splits is not None
        replace(data.splits, **file).save(tmp_path / "split.json")
        with pytest.raises(ValueError, match=r"plain, train 10 gets 8 training structures, since by hand; give"):
            split_settings(
                study,
                replace(run, settings={**run.settings, "data.split.file": str(tmp_path / "split.json")}),
                tmp_path,
            )

    def test_numbers_of_frames_are_wanted(self, tmp_path: Path) -> None:
        study = tiny_study(axes={FRAMES: [0.5]})
        with pytest.raises(ValueError, match="numbers of frames are wanted"):
            split_settings(study, runs_of(study)[0], tmp_path)


class TestStatistics:
    def test_standard_error(self) -> None:
        mean = mean_of([1.0, 2.0, 6.0])
        assert mean.value == 3.0
        assert mean.error == pytest.approx(np.std([1, 2, 6], ddof=1) / 3**0.5)
        assert np.isnan(mean_of([1.0]).error)

    def test_paired_difference_is_that_of_a_paired_t_test(self) -> None:
        reference = {0: 30.0, 1: 34.0, 2: 31.0, 3: 29.0}
        values = {0: 25.0, 1: 30.5, 2: 26.0, 3: 27.0, 9: 1000.0}
        gap = difference(values, reference)
        assert gap is not None and gap.pairs == 4
        pairs = [(values[seed], reference[seed]) for seed in reference]
        interval = ttest_rel(*np.array(pairs).T).confidence_interval(0.95)
        scale = 100 / np.mean(list(reference.values()))
        assert (gap.low, gap.high) == pytest.approx((scale * interval.low, scale * interval.high))
        assert gap.high < 0 and gap.percent == pytest.approx(-12.5)

    def test_one_pair_has_no_interval_and_none_no_difference(self) -> None:
        single = difference({0: 2.0}, {0: 4.0})
        assert single is not None and single.percent == -50 and np.isnan([single.low, single.high]).all()
        assert difference({0: 2.0}, {1: 4.0}) is None


def labelled(atoms: ase.Atoms, count: int, *, stress: bool = False) -> list[ase.Atoms]:
    """Displaced copies with the labels of springs to the first positions, and perhaps a small stress."""
    generator, frames = np.random.default_rng(0), []
    for _ in range(count):
        frame, moved = atoms.copy(), generator.normal(scale=0.05, size=(len(atoms), 3))
        frame.positions += moved
        labels = {"energy": 2.5 * float((moved**2).sum()), "forces": -5.0 * moved}
        more = {"stress": generator.normal(scale=0.01, size=6)} if stress else {}
        frame.calc = SinglePointCalculator(frame, **labels, **more)
        frames.append(frame)
    return frames


class TestQuestion:
    COSTS = {"without DeNS": Cost(0.1, 0.01, 501, 20, 30), "with DeNS": Cost(0.12, 0.01, 501, 20, 30)}  # noqa: RUF012

    def test_steps_fill_the_budget(self) -> None:
        study = within_budget(dens_question(Path("x.extxyz"), 50), self.COSTS, hours=1, processes=2)
        steps = study.settings["training.max_steps"]
        seconds = sum(seconds_of(run, run.config(Path("x")), self.COSTS[run.cell]) for run in runs_of(study))
        assert steps % 100 == 0 and 0.8 * 7200 < seconds <= 7200

    def test_sizes_of_batches_follow_the_number_of_structures(self) -> None:
        """In the time that is left, and in the epochs that advice counts."""
        study = tiny_study(base="equiformer", axes={FRAMES: [500, 1000]}, settings={"training.epochs": 10})
        left = {run.point[FRAMES]: seconds_of(run, run.config(Path("x")), Cost(1.0, 0.0, 1000, 0, 0))
                for run in runs_of(study)}  # fmt: skip
        assert left == {500: 10 * 500 // 4, 1000: 10 * 1000 // 8}
        lengths = {size: tiny_study(base="equiformer", axes={FRAMES: [size]}, settings={"training.max_steps": 1000})
                   for size in (500, 1000)}  # fmt: skip
        said = {size: advice(study, {"DeNS": Cost(1.0, 0.0, size, 0, 0)})[0] for size, study in lengths.items()}
        assert "8 epochs" in said[500] and "fewer than about 700" in said[500]
        assert "8 epochs" in said[1000] and "fewer than about 400" in said[1000]

    def test_two_learning_rates_where_the_time_is_enough_for_dens_to_pay(self) -> None:
        """Else one, and it says so; rates of one's own are kept."""
        question = dens_question(Path("x.extxyz"), 50)
        study, said = sized(question, self.COSTS, hours=4, processes=2)
        assert not said and study.axes[LR] == (5e-4, 1e-3) and study.best_of == (LR,)
        assert study == within_budget(question, self.COSTS, hours=4, processes=2)
        short, (line,) = sized(question, self.COSTS, hours=0.5, processes=2)
        assert "at training.lr=0.001" in line and "at both all the same" in line
        assert LR not in short.axes and short.settings[LR] == 1e-3 and not short.best_of
        assert short.settings["training.max_steps"] < 5000
        own = changed(question, ["axes.training.lr=[0.0002, 0.001]"])
        assert sized(own, self.COSTS, hours=0.5, processes=2)[0].axes[LR] == (2e-4, 1e-3)
        kept, said = sized(question, self.COSTS, hours=0.5, processes=2, both=True)
        assert kept.axes[LR] == (5e-4, 1e-3) and not said
        many, said = sized(question, self.COSTS, hours=0.5, processes=16)
        assert many.best_of and not said, "two rates take no longer where there are cores for all"

    def test_a_rate_of_ones_own_is_that_of_all(self, tmp_path: Path) -> None:
        file = tmp_path / "water.extxyz"
        ase.io.write(file, labelled(molecule("H2O"), 20))
        study, _ = adapted(changed(dens_question(file), ["training.lr=2e-3"]))
        assert {run.config(tmp_path).training.lr for run in runs_of(study)} == {2e-3} and not study.best_of

    def test_rates_need_validation_structures(self, tmp_path: Path) -> None:
        file = tmp_path / "water.extxyz"
        ase.io.write(file, labelled(molecule("H2O"), 20))
        study, (said,) = adapted(changed(dens_question(file), ["data.split.valid=0"]))
        assert "no validation structures" in said and not study.best_of
        assert {run.config(tmp_path).training.lr for run in runs_of(study)} == {1e-3}
        with pytest.raises(ValueError, match="best_of chooses by validation errors"):
            require_judgeable(tiny_study(axes={LR: [1, 2]}, best_of=[LR]), load_config("demo", ["data.split.valid=0"]))

    def test_questions_from_before_there_were_two_rates_go_on(self) -> None:
        file = Path("x.extxyz")
        question = dens_question(file, 50)
        assert same_question(question, at_one_rate(question), file)
        own = changed(question, ["axes.training.lr=[0.0002, 0.001]"])
        before = own.model_copy(update={"settings": {**own.settings, LR: 1e-3}})
        assert same_question(own, before, file) and not same_question(own, question, file)

    def test_too_little_time_is_refused(self) -> None:
        with pytest.raises(ValueError, match="give more time"):
            within_budget(dens_question(Path("x.extxyz"), 50), self.COSTS, hours=0.005, processes=1)

    def test_a_study_is_written_when_its_length_is_known(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Too little time leaves nothing behind; another file or other frames do not continue it."""
        monkeypatch.setattr(importlib.import_module("denskit.cli.study_work"), "_costs", lambda *_: self.COSTS)
        (tmp_path / "other").mkdir()
        mine, other = tmp_path / "x.extxyz", tmp_path / "other" / "x.extxyz"
        for file in (mine, other):
            ase.io.write(file, labelled(molecule("H2O"), 200))

        def asked(file: Path, *more: str) -> Result:
            asking = ["study", str(file), "--question", "dens", "--dry-run", "-o", str(tmp_path / "out"), *more]
            return CliRunner().invoke(app, asking)

        assert "give more time" in asked(mine, "--hours", "0.001").output
        assert not (tmp_path / "out" / "study.yaml").exists()
        assert "too little for 1000 epochs" in asked(mine, "--hours", "0.5", "--frames", "50").output
        steps = load_study(tmp_path / "out" / "study.yaml").settings["training.max_steps"]
        assert steps < 10_000
        crowded = ["study", str(mine), "--question", "dens", "--dry-run", "-o", str(tmp_path / "crowded")]
        CliRunner().invoke(app, [*crowded, "--hours", "0.5", "--frames", "50", "--processes", "1000"])
        settings = load_study(tmp_path / "crowded" / "study.yaml").settings
        assert settings["training.max_steps"] == steps, "processes that share cores are no gain"
        trials = tmp_path / "out" / "trials"
        trials.mkdir()
        assert asked(mine, "--hours", "2", "--frames", "50").exit_code == 0 and trials.is_dir(), "timed once"
        longer = load_study(tmp_path / "out" / "study.yaml")
        assert longer.settings["training.max_steps"] > 1.5 * steps, "nothing was trained, so the length may change"
        assert asked(mine).exit_code == 0
        (tmp_path / "out" / "runs" / "with-DeNS_seed-0").mkdir(parents=True)
        again = asked(mine, "--hours", "4", "--frames", "50")
        assert again.exit_code == 0 and "keep their length" in again.output
        assert load_study(tmp_path / "out" / "study.yaml") == longer
        wrong = {
            "settings.data.path: ": (other,),
            "axes.data.split.train: [50] then, [60] now": (mine, "--frames", "60"),
            "settings.training.lr: ": (mine, "--frames", "50", "training.lr=2e-3"),
            "settings.training.max_steps: ": (mine, "--frames", "50", "training.max_steps=77"),
        }
        for what, which in wrong.items():
            refused = asked(*which)
            assert refused.exit_code == 1 and f"study.yaml): {what}" in refused.output
        assert load_study(tmp_path / "out" / "study.yaml") == longer
        grown = asked(mine, "seeds=4", f"tests.other={other}")
        assert grown.exit_code == 0 and "draft.yaml" not in grown.output
        assert load_study(tmp_path / "out" / "study.yaml") == longer, "a dry run"
        shutil.rmtree(tmp_path / "out" / "runs")
        assert asked(mine, "task.sigma=0.1").exit_code == 0, "nothing was trained, so the question may change"
        assert not trials.exists()
        assert asked(mine, "seeds=2", "training.max_steps=300").exit_code == 0
        changed_ = load_study(tmp_path / "out" / "study.yaml")
        assert len(changed_.seeds) == 2 and changed_.settings["training.max_steps"] == 300
        assert changed_.settings["training.evaluate_every"] == "15 steps"

    def test_given_lengths_are_trained_or_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.import_module("denskit.cli.study_work"), "_costs", lambda *_: self.COSTS)
        ase.io.write(mine := tmp_path / "x.extxyz", labelled(molecule("H2O"), 60))

        def asked(*more: str) -> Result:
            asking = ["study", str(mine), "--question", "dens", "--dry-run", "-o", str(tmp_path / "out"), *more]
            return CliRunner().invoke(app, asking)

        for length in ("training.max_steps=150", "training.epochs=20", "training.evaluate_every=5 epochs"):
            refused = asked("--hours", "2", length)
            assert refused.exit_code == 1 and f"leave out {length.partition('=')[0]}" in refused.output
        assert asked("training.epochs=20").exit_code == 0
        study = load_study(tmp_path / "out" / "study.yaml")
        assert study.settings["training.epochs"] == 20 and "training.max_steps" not in study.settings
        assert runs_of(study)[0].config().training.epochs == 20
        assert asked().exit_code == 0 and load_study(tmp_path / "out" / "study.yaml") == study

    def test_a_trained_question_grows(self, tmp_path: Path) -> None:
        """Seeds and tests come to the study that is there, and with tests the variant that is for them."""
        ase.io.write(mine := tmp_path / "x.extxyz", labelled(molecule("H2O"), 60))
        ase.io.write(hot := tmp_path / "hot.extxyz", labelled(molecule("H2O"), 10))
        before = dens_question(mine, 20, steps=300)
        folder = StudyFolder(tmp_path / "out")
        folder.keep(before)
        (folder.path / "runs" / "with-DeNS_seed-0").mkdir(parents=True)
        grown, said = asked_again(before, mine, None, ["seeds=4", f"tests.hot={hot}"])
        assert "only the noise" in grown.variants and said
        assert folder.keep(grown)[1] == grown and grown.seeds == (0, 1, 2, 3)
        assert asked_again(before, mine, None, ["training.lr=2e-3"]) is None
        assert asked_again(before, hot, None, []) is None
        assert asked_again(before, mine, None, []) == (before, [])
        anew, _ = asked_anew(mine, 20, ["task.sigma=0.07"], before)
        grown, _ = asked_again(anew, mine, None, [f"tests.hot={hot}"]) or (anew, [])
        assert grown.variants["only the noise"]["task.sigma"] == grown.variants["with DeNS"]["task.sigma"] == 0.07
        again, said = asked_again(grown, mine, None, ["seeds=4"]) or (grown, [])
        assert again.variants == grown.variants and len(again.seeds) == 4 and said == []
        own, _ = asked_anew(mine, 20, ["task.energy_on_corrupted=false"], before)
        own, _ = asked_again(own, mine, None, [f"tests.hot={hot}"]) or (own, [])
        assert own.tests and set(own.variants) == {"without DeNS", "with DeNS"}

    @pytest.mark.parametrize("stress", [True, False])
    def test_crystals_are_trained_on_their_stress(self, tmp_path: Path, stress: bool) -> None:
        file = tmp_path / "copper.extxyz"
        ase.io.write(file, labelled(bulk("Cu", cubic=True), 20, stress=stress))
        study, said = adapted(changed(dens_question(file), ["task.sigma=0.03"]))
        runs = {run.variant: run.config(tmp_path).task for run in runs_of(study) if run.seed == 0}
        assert runs["without DeNS"].stress_weight == (10 if stress else 0)
        dens = runs["with DeNS"]
        assert isinstance(dens, DeNSConfig) and dens.sigma == 0.03 and "coefficient" not in dens.model_fields_set
        assert study.settings.get("model.stress") == ("strain" if stress else None)
        assert len(said) == 1 + stress and "DeNS takes task.corruption_ratio=0.5" in said[-1]

    @pytest.mark.parametrize(("given", "stress", "words"), [
        ([], ("strain", 10), "crystals with a stress: trained on it"),
        (["base=equiformer_v3"], ("strain", 5), "model.stress=strain task.stress_weight=5"),
        (["base=equiformer_v3", "model.forces=direct"], ("direct", 5), "model.stress=direct task.stress_weight=5"),
        (["base=equiformer_v2_direct_small"], None, "equiformer_v2 with direct forces has no head of it"),
        (["task.stress_weight=0"], None, ""),
    ])  # fmt: skip
    def test_a_layered_crystal_among_them_keeps_none_from_the_stress(
        self, tmp_path: Path, given: list[str], stress: tuple[str, int] | None, words: str
    ) -> None:
        frames = labelled(bulk("Cu", cubic=True), 19, stress=True)
        frames += labelled(graphene(vacuum=4.0), 1, stress=True)
        frames[-1].pbc = True
        ase.io.write(tmp_path / "crystals.extxyz", frames)
        study, said = adapted(changed(dens_question(tmp_path / "crystals.extxyz"), given))
        found = study.settings.get("model.stress"), study.settings.get("task.stress_weight")
        assert found == (stress or (None, 0 if given == ["task.stress_weight=0"] else None))
        assert words in " ".join(said) and ("stress" in " ".join(said)) == bool(words)

    def test_frames_without_stress_are_counted(self, tmp_path: Path) -> None:
        frames = [labelled(bulk("Cu", cubic=True), 1, stress=place < 15)[0] for place in range(20)]
        ase.io.write(tmp_path / "crystals.extxyz", frames)
        study, said = adapted(dens_question(tmp_path / "crystals.extxyz"))
        assert "model.stress" not in study.settings
        assert re.search(r"not trained on the stress, which \d+ of \d+ frames looked at do not have", " ".join(said))

    def test_molecules_keep_the_defaults(self, tmp_path: Path) -> None:
        file = tmp_path / "water.extxyz"
        ase.io.write(file, labelled(molecule("H2O"), 20))
        assert adapted(dens_question(file)) == (dens_question(file), [])
        study, _ = adapted(changed(dens_question(file), ["task.sigma=0.1", "task.forces_weight=9"]))
        plain, dens = (run.config(tmp_path).task for run in runs_of(study)[:2])
        assert isinstance(dens, DeNSConfig) and dens.sigma == 0.1
        assert plain.forces_weight == dens.forces_weight == 9

    def test_other_test_files_add_a_variant_of_the_noise_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "water.extxyz"
        ase.io.write(file, labelled(molecule("H2O"), 20))
        asked = [f"tests.hot={file}", "task.sigma=0.1"]
        study, (said,) = adapted(changed(dens_question(file), asked))
        assert "a third variant learns only the noise" in said
        plain, dens, noise = (run.config(tmp_path).task for run in runs_of(study)[:3])
        assert isinstance(plain, EnergyForcesConfig) and isinstance(dens, DeNSConfig) and isinstance(noise, DeNSConfig)
        assert dens.forces_on_corrupted and dens.energy_on_corrupted
        assert not noise.forces_on_corrupted and not noise.energy_on_corrupted
        assert dens.sigma == noise.sigma == 0.1
        given = ["task.forces_on_corrupted=false", "model.forces=direct"]
        for chosen in given:  # decided, or not measured
            study, said_ = adapted(changed(dens_question(file), [*asked, chosen]))
            assert len(study.variants) == 2 and not said_

    def test_short_trainings_are_told_that_dens_pays_late(self) -> None:
        (line,) = advice(dens_question(Path("x.extxyz"), None, steps=1000), self.COSTS)
        assert "16 epochs" in line and line.endswith("24.8 times as long (--hours)"), (
            "8 would be enough, in batches of 4"
        )
        (line,) = advice(dens_question(Path("x.extxyz"), None, steps=4000), self.COSTS)
        assert "65 epochs" in line and "6.2 times as long (--hours), or on 23 instead of 501 structures" in line
        assert advice(dens_question(Path("x.extxyz"), 50, steps=10_000), self.COSTS) == []
        (line,) = advice(dens_question(Path("x.extxyz"), 50, steps=200), self.COSTS)
        assert line.endswith("times as long (--hours)"), "not on three structures"

    def test_a_study_file_is_told_by_its_own_settings(self) -> None:
        """All variants and sizes in one line; those with another reason, or without a cost, are left out."""
        variants = {**VARIANTS, "more": {"task": "dens"}, "failed": {"task": "dens"}}
        study = tiny_study(axes={FRAMES: [8, 16]}, variants=variants)
        costs = {cell: Cost(0.1, 0.01, 16, 6, 20) for cell in runs_to_try(study) if cell != "failed"}
        (line,) = advice(study, costs, asked=False)
        assert line.startswith("warning: DeNS, train 8, more, train 8: 12 epochs; DeNS, train 16, more, train 16: 6 ")
        assert line.endswith("Train up to 66.7 times as long (training.max_steps)") and "--" not in line
        longer = tiny_study(axes={FRAMES: [80, 800]}, settings={**TINY, "training.max_steps": 4000})
        (line,) = advice(longer, {"DeNS": Cost(0.1, 0.01, 800, 6, 20)}, asked=False)
        assert line.endswith("(training.max_steps), or on 80 instead of 800 structures (data.split.train)")
        assert advice(study, costs, warned=["DeNS", "more"]) == []

    def test_data_on_which_dens_cannot_pay_are_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Once, also by a dry run; not that longer trainings would help."""
        frames = labelled(molecule("H2O"), 60)
        for frame in frames:
            frame.calc = SinglePointCalculator(frame, energy=frame.get_potential_energy(), forces=np.zeros((3, 3)))
        ase.io.write(tmp_path / "relaxed.extxyz", frames)
        study = adapted(dens_question(tmp_path / "relaxed.extxyz", 20, steps=200))[0]
        assert [*data_warnings(study)] == ["with DeNS"] and len(data_warnings(study)["with DeNS"]) == 1
        monkeypatch.setattr(importlib.import_module("denskit.cli.study_work"), "_costs", lambda *_: self.COSTS)
        asking = [
            "study",
            str(tmp_path / "relaxed.extxyz"),
            "--question",
            "dens",
            "--dry-run",
            "-o",
            str(tmp_path / "study"),
        ]
        said = CliRunner().invoke(app, [*asking, "training.max_steps=200"]).output
        assert said.count("warning: with DeNS: task=dens, but 100% of the training structures are relaxed") == 1, said
        assert "pays late" not in said and "times as long" not in said
        ase.io.write(tmp_path / "moving.extxyz", labelled(molecule("H2O"), 60))
        assert data_warnings(dens_question(tmp_path / "moving.extxyz", 20)) == {}

    def test_few_crystals_are_told_without_the_command_that_is_run(self, tmp_path: Path) -> None:
        frames = [bulk("Cu", cubic=True, a=3.5 + 0.01 * number) for number in range(20)]
        for frame in frames:
            frame.calc = SinglePointCalculator(frame, energy=1.0, forces=np.full((4, 3), 0.2))
        ase.io.write(tmp_path / "copper.extxyz", frames)
        (line,) = data_warnings(dens_question(tmp_path / "copper.extxyz", 10))["with DeNS"]
        assert "10 crystals, most with atoms on the sites of a lattice" in line and "--question" not in line

    def test_trials_are_one_for_each_kind_of_run_with_the_most_frames(self) -> None:
        study = tiny_study(axes={FRAMES: [5, 40], "training.batch_size": [2, 4]})
        tried = runs_to_try(study)
        assert len(tried) == 4 and [run.cell for run in tried.values()] == list(tried)
        sizes = tiny_study(base="equiformer", axes={FRAMES: [50, 400, 3000]}, settings={})
        models = [run.point[FRAMES] for run in runs_to_try(sizes).values()]
        assert models == [3000, 3000, 400, 400], "50 and 400 have one model, 3000 a larger one"
        question = dens_question(Path("x.extxyz"), 50)
        assert list(runs_to_try(question)) == list(runs_to_try(at_one_rate(question))) != [], "timed once for both"
        assert {run.point[FRAMES] for run in tried.values()} == {40}


def denskit(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "denskit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]


@pytest.mark.one_thread
class TestWholeStudies:
    def test_runs_are_judged_and_collected(self, tmp_path: Path) -> None:
        study, folder = tiny_study(axes={FRAMES: [8, 16]}, seeds=1), StudyFolder(tmp_path)
        for run in runs_of(study)[:3]:
            train_and_judge(study, run, folder)
        results = collect(study, folder)  # one run is missing
        assert [(row.variant, row.point) for row in results.rows] == [
            ("plain", "train 8"), ("DeNS", "train 8"), ("plain", "train 16"),
        ]  # fmt: skip
        column = Column("test", FORCES)
        assert results.rows[1].differences[column].pairs == 1
        assert "**" in as_markdown(results) and r"\textbf" in as_latex(results)
        plots = plot_study_results(results, tmp_path)
        assert {path.name for path in plots} == {"learning_curves.png", "data_split_train.png"}
        compared = compare_runs([str(folder.run(run)) for run in runs_of(study)[:2]])
        assert [row.variant for row in compared.rows] == ["task=energy_forces", "task=dens"]
        assert compared.rows[0].means[column].value == results.rows[0].means[column].value
        assert overview_of(folder.run(runs_of(study)[0])).test[FORCES] == compared.rows[0].means[column].value
        sizes = compare_runs([str(folder.run(run)) for run in (runs_of(study)[0], runs_of(study)[2])])
        assert [row.variant for row in sizes.rows] == ["data.split.train=8", "data.split.train=16"], "not pooled"
        assert not sizes.warning
        assert sizes.title == "2 runs", "the curves below it are of the validation"
        assert "| variant |" in as_markdown(sizes) and "Errors are MAE (test);" in as_markdown(sizes), "no empty column"
        assert r"\begin{tabular}{lr" in as_latex(sizes) and r"\begin{tabular}{llr" in as_latex(results)
        splits = folder.run(runs_of(study)[2]) / "splits.json"
        splits.write_text(json.dumps(json.loads(splits.read_text()) | {"test": [0, 1]}))
        found = compare_runs([run.folder.as_posix() for run in sizes.found])
        groups = "'data.split.train=8' on some; 'data.split.train=16' on others"
        said = f"tested on different structures (test), {groups}: differences between these say little"
        assert found.title == "2 runs" and found.warning == said
        assert f"The variants were {said}" in as_markdown(found)
        first, second = runs_of(study)[:2]
        three = compare_runs([f"a={folder.run(first)}", f"b={found.found[1].folder}", f"c={folder.run(second)}"])
        assert "'a', 'c' on some; 'b' on others:" in three.warning, "a and c can be compared"
        results = collect(study, folder)
        assert not results.warning, "there is one variant with 16"
        splits = folder.run(second) / "splits.json"
        splits.write_text(json.dumps(json.loads(splits.read_text()) | {"test": [0, 1]}))
        assert collect(study, folder).warning.endswith("'plain' on some; 'DeNS' on others: differences between these "
                                                       "say little (train 8)")  # fmt: skip

    def test_each_variant_at_its_best_learning_rate(self, tmp_path: Path) -> None:
        """Chosen by the validation errors that the kept models have; a rate may be added to what is trained."""
        study = tiny_study(axes={LR: ["2e-6", 1e-2]}, best_of=[LR], seeds=1)  # YAML takes 2e-6 for text
        folder = StudyFolder(tmp_path / "out")
        for run in runs_of(study):
            train_and_judge(study, run, folder)
        results = collect(study, folder)
        assert [row.label for row in results.tuned] == ["plain, best lr 0.01", "DeNS, best lr 0.01"]
        column, best, same = Column("test", FORCES), results.tuned[1], results.rows[-1]
        assert best.means[column].value == same.means[column].value
        assert best.differences[column].percent == same.differences[column].percent
        text = as_markdown(results)
        assert "DeNS, best lr 0.01" in text and "at its own" in text and "DeNS, best lr 0.01" in means_as_csv(results)
        assert "training_lr.png" in {path.name for path in plot_study_results(results, tmp_path)}
        RunFolder(folder.run(runs_of(study)[0])).model.unlink()
        (remark,) = collect(study, folder).remarks
        assert remark == "'plain' lacks finished runs of lr 2e-6, which is not chosen."
        noise = [line.partition(":")[0] for line in noise_recovered(study, folder) if not line.startswith("hint")]
        assert noise == ["DeNS, lr 2e-6", "DeNS, lr 0.01"], "each rate has its own"

    def test_runs_that_differ_in_much_are_called_by_their_folders(self, tmp_path: Path) -> None:
        """And those that were validated on other files are said to be."""
        frames = ase.io.read(Path(__file__).parents[2] / "examples" / "data" / "ethanol_dft.extxyz", ":32")
        model = {key: value for key, value in TINY.items() if key.startswith(("model.", "training."))}
        runs = []
        for number, name in enumerate(("first_seed-0", "second")):
            part, files = frames[number::2], [tmp_path / f"{name}_{split}.xyz" for split in ("train", "valid")]
            ase.io.write(files[0], part[:8])
            ase.io.write(files[1], part[8:])
            own = {"data.train": str(files[0]), "data.valid": str(files[1]), "output": str(tmp_path / name)}
            own |= {"training.batch_size": 2 + number, "training.lr": 1e-3 * (1 + number)}
            runs.append(train(load_config("equiformer", model | own)))
        found = compare_runs([str(run) for run in runs])
        assert [row.variant for row in found.rows] == ["first", "second"]  # of the other seeds, too
        assert found.warning.startswith("validated on different structures")
        with pytest.raises(ValueError, match=r"a\.png: a folder is wanted.* give .*a$"):
            write_plots(runs, tmp_path / "a.png")

    def test_one_run_is_not_compared(self) -> None:
        with pytest.raises(ValueError, match=r"^one run was given \(runs/a\); give two or more folders"):
            compare_runs(["runs/a"])

    def test_runs_that_differ_in_the_seed_alone_are_averaged(self, tmp_path: Path) -> None:
        study, folder = tiny_study(), StudyFolder(tmp_path)
        plain = [run for run in runs_of(study) if run.variant == "plain"]
        for run, more in zip(plain, ({}, {"training.checkpoint_every": "5 minutes"}), strict=True):
            train(run.config(folder.run(run), more))
        (row,) = compare_runs([str(folder.run(run)) for run in plain]).rows
        apart = [f"{name}={folder.run(run)}" for name, run in zip("ab", plain, strict=True)]
        assert not compare_runs(apart).warning
        splits = folder.run(plain[1]) / "splits.json"
        splits.write_text(json.dumps(json.loads(splits.read_text()) | {"valid": [0, 1]}))
        assert "on different structures" in compare_runs(apart).warning, "no seed in common, and another split"
        assert row.variant == "task=energy_forces" and row.means[Column("validation", FORCES)].count == 2

    def test_frames_in_memory_are_compared_by_content(self, tmp_path: Path) -> None:
        frames = labelled(molecule("H2O"), 48)
        settings = {**TINY, "data.molecule": None, "data.split": {"train": 16, "valid": 4, "test": 4}}
        runs = []
        for seed, part in ((0, frames[:24]), (1, frames[:24]), (2, frames[24:])):
            config = load_config("demo", {**settings, "seed": seed, "output": tmp_path / f"seed{seed}"})
            runs.append(str(train(config, frames={"train": part})))
        assert len(compare_runs(runs[:2]).rows) == 1
        assert len(compare_runs(runs[1:]).rows) == 2

    def test_the_mean_of_all_seeds_is_judged(self, tmp_path: Path) -> None:
        """Once: what was judged is kept, and judged again with another seed."""
        split = {"train": 8, "valid": 6, "test": 20, "mode": "random", "seed": 0}
        study = tiny_study(settings=TINY | {"data.split": split}, variants={"plain": {}}, committees=True)
        require_one_split(study)
        folder, said = StudyFolder(tmp_path), []
        runs = runs_of(study)
        train_and_judge(study, runs[0], folder)
        assert committees_of(study, folder, said.append) == [], "one model is no committee"
        train_and_judge(study, runs[1], folder)
        (committee,) = committees_of(study, folder, said.append)
        assert said == ["judging the mean of 2 models: plain: test"]
        assert committee.errors == {"test": evaluate([folder.run(run) for run in runs])}
        assert committees_of(study, folder, pytest.fail) == [committee]
        results = collect(study, folder, [committee])
        (row,), column = results.committees, Column("test", FORCES)
        single = results.rows[0].means[column].value
        assert row.means[column].value == committee.errors["test"][FORCES] < single
        assert row.differences[column].percent == pytest.approx(100 * (row.means[column].value / single - 1))
        assert row.parameters == 2 * results.rows[0].parameters
        for text in (as_markdown(results), as_latex(results), as_csv(results)):
            assert "plain, mean of 2 models" in text
        more = study.model_copy(update={"seeds": (0, 1, 2)})
        train_and_judge(more, runs_of(more)[2], folder)
        (larger,) = committees_of(more, folder, said.append)
        assert len(larger.runs) == 3 and larger.errors != committee.errors and len(said) == 2

    def test_new_tests_judge_what_is_trained(self, tmp_path: Path) -> None:
        study, folder = tiny_study(seeds=1), StudyFolder(tmp_path)
        run = runs_of(study)[1]
        before = train_and_judge(study, run, folder)
        others = {"a": str(tmp_path / "a.extxyz"), "b": str(tmp_path / "b.extxyz")}
        frames = load_data(run.config(folder.run(run)).data, 0).train
        for number, file in enumerate(others.values()):
            systems = [frames[index] for index in range(number, 4)]
            ase.io.write(file, [relabelled(plain(s), {"energy": s.energy, "forces": s.forces}) for s in systems])
        asked = study.model_copy(update={"tests": others})
        assert folder.finished(study, run) and not folder.finished(asked, run)
        after = train_and_judge(asked, run, folder)
        assert after["errors"]["test"] == before["errors"]["test"] and set(after["errors"]) == {"test", "a", "b"}
        assert after["noise"] == before["noise"]
        assert "DeNS: error of the recovered noise" in "\n".join(noise_recovered(study, folder))
        both = asked.model_copy(update={"mean_of_tests": True})
        mean = collect(both, folder).found[0].errors["mean of the tests"]
        assert mean[FORCES] == pytest.approx((after["errors"]["a"][FORCES] + after["errors"]["b"][FORCES]) / 2)
        assert "mean of the tests: forces (meV/Å)" in as_markdown(collect(both, folder))
        noise = {name: 0.3 for name in after["noise"]}
        write_json(folder.result(run), after | {"noise": noise})
        assert (
            "hint: DeNS: without forces the noise is recovered with an error of 0.30"
            in noise_recovered(study, folder)[1]
        )
        write_json(folder.result(run), after)
        swapped = asked.model_copy(update={"tests": {"a": others["b"]}})
        assert not folder.finished(swapped, run), "another file under the same name"
        again = train_and_judge(swapped, run, folder)
        assert again["errors"]["a"] == after["errors"]["b"]
        assert set(collect(study, folder).found[0].errors) == {"test"}, "only tests of the study"

    def test_a_run_whose_noise_cannot_be_judged_is_finished(self, tmp_path: Path) -> None:
        study, folder = (
            tiny_study(settings=TINY | {"task.max_force": 1e-6}, variants={"DeNS": VARIANTS["DeNS"]}),
            StudyFolder(tmp_path),
        )
        judged = train_and_judge(study, runs_of(study)[0], folder)
        assert "noise" not in judged and judged["errors"]["test"]
        assert folder.finished(study, runs_of(study)[0])

    def test_a_file_of_test_structures_is_judged(self, tmp_path: Path) -> None:
        """``data.test`` beside a file that is divided, whose own part for tests is then empty."""
        first = tiny_study()
        frames = load_data(runs_of(first)[0].config(tmp_path).data, 0).train
        systems = [relabelled(plain(s), {"energy": s.energy, "forces": s.forces}) for s in frames]
        ase.io.write(tmp_path / "all.extxyz", systems[:12])
        ase.io.write(tmp_path / "held.extxyz", systems[12:14])
        own = {"name": "file", "path": str(tmp_path / "all.extxyz"), "test": str(tmp_path / "held.extxyz")}
        settings = {key: value for key, value in first.settings.items() if not key.startswith("data.")}
        settings |= {f"data.{key}": value for key, value in own.items()} | {"data.split": {"train": 8, "valid": 4}}
        study, folder = first.model_copy(update={"settings": settings}), StudyFolder(tmp_path / "study")
        run = runs_of(study)[0]
        judged = train_and_judge(study, run, folder)
        assert judged["errors"]["test"] == evaluate(folder.run(run), tmp_path / "held.extxyz")

    def test_simulations_and_relaxations_are_judged(self, tmp_path: Path) -> None:
        study = tiny_study(seeds=1, simulation={"length": 0.02, "seeds": 2, "timestep": 0.5, "every": 5, "nve": 0},
                           published={"plain": {"": {"stability_ps": 300, FORCES: 3.1}}})  # fmt: skip
        run, folder = runs_of(study)[0], StudyFolder(tmp_path)
        plain_study = study.model_copy(update={"simulation": None})
        train_and_judge(plain_study, run, folder)
        assert folder.finished(plain_study, run) and not folder.finished(study, run)
        found = train_and_judge(study, run, folder)["errors"]["simulation"]
        assert 0 < found["stability_ps"] <= 0.02 and found["h_of_r_error"] > 0
        assert found["simulations"] == 2 and 0 <= found["unstable"] <= 2
        cooler = study.model_copy(update={"simulation": study.simulation.model_copy(update={"temperature": 1.0})})
        assert not folder.finished(cooler, run)
        assert train_and_judge(cooler, run, folder)["tests"]["simulation"]["temperature"] == 1.0
        assert collect(study, folder).found[0].errors.keys() == {"test"}, "not those at another temperature"
        table = as_markdown(collect(cooler, folder))
        assert (
            "simulation: stability (ps)" in table
            and "published simulation: stability (ps)" in table
            and "| 300 |" in table
        )

        frames = [load_data(run.config(folder.run(run)).data, 0).train[index] for index in range(4)]
        columns = {"pos": [s.positions for s in frames], "z": [s.atomic_numbers for s in frames]}
        np.savez(
            tmp_path / "whole.npz", natoms=[9] * 4, energy=[s.energy for s in frames],
            sid=list("aabb"), fid=[1, 0, 0, 1],
            **{name: np.concatenate(values) for name, values in columns.items()},
        )  # fmt: skip
        relaxations = Relaxations(path=str(tmp_path / "whole.npz"), first_frames=True, steps=1)
        asked = study.model_copy(update={"simulation": None, "relaxation": relaxations})
        found = train_and_judge(asked, run, folder)["errors"]["relaxation"]
        assert found["references"] == 2 and found["energy_mae_meV"] > 0 and found["distance_mean_A"] > 0
        interrupted = asked.model_copy(update={"relaxation": relaxations.model_copy(update={"steps": 2})})
        results = folder.run(run) / "relaxation"
        (results / "left").touch()
        judge(asked, folder.run(run), "relaxation")
        assert (results / "left").exists(), "continued"
        judge(interrupted, folder.run(run), "relaxation")
        assert not (results / "left").exists(), "begun again with other settings"
        nothing = asked.model_copy(update={"relaxation": Relaxations(steps=1)})
        assert "relaxation" not in collect(nothing, folder).found[0].errors, "not those of another file"
        with pytest.raises(ValueError, match="the test split: no structure has a relaxed_energy"):
            train_and_judge(nothing, runs_of(study)[1], folder)
        assert not folder.run(runs_of(study)[1]).exists(), "told before the training"

    def test_elements_of_the_tests_are_compared_before_the_training(self, tmp_path: Path) -> None:
        ase.io.write(tmp_path / "sulphur.extxyz", labelled(molecule("SH2"), 2))
        study, folder = tiny_study(tests={"sulphur": str(tmp_path / "sulphur.extxyz")}), StudyFolder(tmp_path)
        run = runs_of(study)[0]
        for act in (lambda: trial(study, run), lambda: train_and_judge(study, run, folder)):
            with pytest.raises(
                ValueError,
                match=r"sulphur.extxyz: S in 2 of 2 structures, frames 0, 1 .* out of tests",
            ):
                act()
        assert not folder.run(run).exists()
        (tmp_path / "sulphur.extxyz").write_text("no structures\n")
        with pytest.raises(ValueError, match=r"^tests.sulphur: .*sulphur.extxyz cannot be read"):
            trial(study, run)

    def test_files_that_have_changed_are_not_mixed(self, tmp_path: Path) -> None:
        """Runs on two contents of one file are no pairs, whether it is trained or judged on."""
        frames = load_data(runs_of(tiny_study())[0].config(tmp_path).data, 0).test
        assert frames is not None
        mine, more = tmp_path / "mine.extxyz", tmp_path / "more.extxyz"
        for file, chosen in ((mine, range(16)), (more, range(16, 20))):
            systems = [frames[k] for k in chosen]
            ase.io.write(file, [relabelled(plain(s), {"energy": s.energy, "forces": s.forces}) for s in systems])
        settings = TINY | {"data.name": "file", "data.path": str(mine), "data.split": {"train": 8, "valid": 4}}
        study = tiny_study(settings=settings, tests={"more": str(more)}, seeds=1)
        folder, command = StudyFolder(tmp_path / "study"), ["study", str(tmp_path / "study.yaml"), "-o"]
        write_study(study, tmp_path / "study.yaml")
        folder.keep(study)
        first, second = runs_of(study)
        errors = train_and_judge(study, first, folder)["errors"]
        content = mine.read_text()
        mine.write_text(content.replace("C ", "N ", 1))
        with pytest.raises(ValueError, match=r"mine.extxyz, which 1 runs have trained on"):
            train_and_judge(study, second, folder)
        refused = CliRunner().invoke(app, [*command, str(folder.path)])
        assert refused.exit_code != 0 and "have changed" in refused.output
        mine.write_text(content)

        other = more.read_text()
        ase.io.write(more, ase.io.read(more, ":2"))
        assert not folder.finished(study, first), "a changed test is judged again"
        again = train_and_judge(study, first, folder)["errors"]
        assert again["test"] == errors["test"] and again["more"] != errors["more"]
        more.write_text(other)
        assert not folder.result(second).exists()
        train_and_judge(study, second, folder)

    def test_runs_of_another_command_are_waited_for(self, tmp_path: Path) -> None:
        study, folder = tiny_study(seeds=1), StudyFolder(tmp_path)
        held, done = runs_of(study)
        result = {"errors": {"test": {FORCES: 1.0}}, "tests": {}, "parameters": 1, "seconds": 1.0, "steps": 1}
        write_json(folder.result(done), result)
        seen = []
        with ExitStack() as stack:
            stack.enter_context(locked(folder.lock(held)))

            def watch(jobs: list[Job]) -> None:
                seen.append([job.state for job in jobs])
                if len(seen) == 1:
                    write_json(folder.result(held), result)
                    stack.close()

            run_all(study, lambda run: pytest.fail("started"), folder, processes=2, watch=watch)
        assert seen[0] == ["elsewhere", "done"] and seen[-1] == ["done", "done"]
        folder.result(held).unlink()
        with locked(folder.lock(held)), pytest.raises(ValueError, match="in use by process"):
            train_and_judge(study, held, folder)  # also while that process judges

    def test_the_command_runs_all_side_by_side_and_again_only_what_is_missing(self, tmp_path: Path) -> None:
        write_study(tiny_study(seeds=1), tmp_path / "tiny.yaml")
        first = denskit("study", str(tmp_path / "tiny.yaml"), "-o", str(tmp_path / "out"))
        assert first.returncode == 0, first.stderr
        assert "2 runs; about" in first.stdout and first.stdout.count("finished") == 2
        with (tmp_path / "out" / "table.csv").open(newline="") as stream:
            rows = [row for row in csv.DictReader(stream) if row["metric"] == FORCES]
        assert len(rows) == 2 and all(float(row["value"]) > 0 for row in rows)
        (tmp_path / "out" / "runs" / "plain_seed-0" / "result.json").unlink()
        again = denskit("study", str(tmp_path / "tiny.yaml"), "-o", str(tmp_path / "out"))
        assert again.returncode == 0, again.stderr
        assert again.stdout.count("finished") == 1
        alone = denskit("study", str(tmp_path / "tiny.yaml"), "-o", str(tmp_path / "out"), "--task", "1")
        assert alone.returncode == 0 and "DeNS, seed 0: finished, nothing to do" in alone.stdout

    def test_a_run_has_a_number_and_a_name(self) -> None:
        study = tiny_study()
        assert find_run(study, "3") == find_run(study, "DeNS_seed-1") == runs_of(study)[3]
        with pytest.raises(ValueError, match="tiny: no run 4; it has runs 0 to 3"):
            find_run(study, "4")
        with pytest.raises(ValueError, match="no run 'DeNS_seed-9'; did you mean DeNS_seed-"):
            find_run(study, "DeNS_seed-9")

    def test_more_processes_than_cores_take_no_less_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Sixteen runs of one kind on 2 cores take as long for 8 processes as for 2, and half as long as for 1."""
        command = importlib.import_module("denskit.cli.study_work")
        for module in ("denskit.runtime.threads", "denskit.evaluation.study.timing"):
            monkeypatch.setattr(f"{module}.cores", lambda: 2)
        study, cost = (
            tiny_study(settings={**TINY, "device": "cpu"}, seeds=8),
            Cost(step=100.0, structure=0.0, train=40, valid=6, test=20),
        )
        costs = {cell: cost for cell in runs_to_try(study)}
        said = {n: command._announce(study, StudyFolder(tmp_path), costs, n) for n in (1, 2, 8)}
        assert "about 5h20m on 1 core " in said[1][0] and "about 2h40m on 2 cores " in said[2][0]
        assert said[8] == [said[2][0], "note: --processes 8 shares 2 cores, and is no faster than 2"]
        assert len(said[1]) == len(said[2]) == 1

    def test_what_a_forecast_leaves_out_is_said(self, tmp_path: Path) -> None:
        command = importlib.import_module("denskit.cli.study_work")
        study = tiny_study(tests={"hot": "hot.xyz", "cold": "cold.xyz"}, simulation={}, committees=True)
        costs = {"plain": Cost(step=100.0, structure=0.0, train=40, valid=6, test=20)}
        (line, *_) = command._announce(study, StudyFolder(tmp_path), costs, 1)
        left = ", plus the simulation and the 2 files of tests of each run, and the committees, and 2 runs whose trial"
        assert "4 runs; about 40m00s on 1 core" in line and line.endswith(f"{left} failed")
        assert "no time is known, plus " in command._announce(study, StudyFolder(tmp_path), {}, 1)[0]

    def test_a_trial_that_fails_does_not_stop_the_others(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Unless all do; a question is sized by the others, too."""
        command = importlib.import_module("denskit.cli.study_work")
        study, folder, fails = tiny_study(seeds=1), StudyFolder(tmp_path), ["DeNS_seed-0"]
        cost = Cost(step=1.0, structure=0.0, train=40, valid=6, test=20)

        def tried(words: list[str], **how: object) -> subprocess.CompletedProcess[str]:
            name = words[words.index("--task") + 1]
            if name in fails:
                said = f"timing\nError: step 3: the loss is not finite.\nThe batch: 1.\n{HINT}\n"
                return subprocess.CompletedProcess(words, 1, stdout="", stderr=said)
            (tmp_path / "trials").mkdir(exist_ok=True)
            write_json(tmp_path / "trials" / f"{name.removesuffix('_seed-0')}.json", vars(cost))
            return subprocess.CompletedProcess(words, 0, stdout="", stderr="")

        monkeypatch.setattr(subprocess, "run", tried)
        with redirect_stderr(io.StringIO()) as said:
            assert command._costs(study, tmp_path / "study.yaml", folder) == {"plain": cost}
        told = "warning: DeNS: the trial failed, so its time is not known: step 3: the loss is not finite\n"
        assert said.getvalue() == told
        question = tiny_study(seeds=1, axes={LR: [5e-4, 1e-3]}, best_of=[LR])
        assert within_budget(question, {"plain": cost}, hours=1, processes=1).settings["training.max_steps"] == 900
        assert sized(question, {"plain": cost}, hours=1, processes=1)[0].axes == {}
        (tmp_path / "trials" / "plain.json").unlink()
        fails.append("plain_seed-0")
        with pytest.raises(ValueError, match=r"^plain: the trial failed:\ntiming\nError: step 3"):
            command._costs(study, tmp_path / "study.yaml", folder)

    def test_a_failed_run_is_said_with_its_error(self, tmp_path: Path) -> None:
        command, log = importlib.import_module("denskit.cli.study_work"), tmp_path / "a.log"
        assert command._reason(log) == f"see {log}"
        log.write_text(f"Error: earlier\nstep 1\nError: no file x.extxyz\nmore\n{HINT}\n")
        assert command._reason(log) == f"no file x.extxyz (see {log})"
        log.write_text("Traceback\n  File ...\nKeyError: 'x'\n\n")
        assert command._reason(log) == f"KeyError: 'x' (see {log})"

    def test_a_stop_says_what_was_saved(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        command, study, folder = importlib.import_module("denskit.cli.study_work"), tiny_study(), StudyFolder(tmp_path)
        assert command._saved(study, folder) == "no training had a state to save"
        for count, run in enumerate(runs_of(study)[:2]):
            RunFolder(folder.run(run)).last.parent.mkdir(parents=True)
            RunFolder(folder.run(run)).last.touch()
            whose = ("its", "their")[count]
            assert command._saved(study, folder) == f"{count + 1} of 4 unfinished runs saved {whose} state"

    def test_each_run_starts_a_process(self, tmp_path: Path) -> None:
        """So many short trainings take longer than their steps, and fewer steps fit into a number of hours."""
        study, cost = tiny_study(), Cost(step=1.0, structure=0.0, train=40, valid=6, test=20)
        run, config, slow = runs_of(study)[0], runs_of(study)[0].config(tmp_path / "run"), replace(cost, start=1800.0)
        assert seconds_of(run, config, slow) == seconds_of(run, config, cost) + 1800
        steps = [
            within_budget(study, {run.cell: each for run in runs_of(study)}, 4, 1).settings["training.max_steps"]
            for each in (cost, slow)
        ]
        assert steps == [3600, 1800]

    def test_what_is_trained_takes_no_more_time(self, tmp_path: Path) -> None:
        study, cost = tiny_study(seeds=1), Cost(step=1.0, structure=0.0, train=40, valid=6, test=20)
        run, config = runs_of(study)[0], runs_of(study)[0].config(tmp_path / "run")
        steps = cost.schedule(config.training).total_steps
        assert seconds_of(run, config, cost) == steps
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "metrics.csv").write_text(f"step,epoch\n{steps // 2},0\n")
        assert seconds_of(run, config, cost) == steps - steps // 2

    def test_a_gpu_is_shared(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its time is that of all runs, one after another, and the note says how many share it."""
        command = importlib.import_module("denskit.cli.study_work")
        for module in ("denskit.runtime.device", "denskit.evaluation.study.timing"):
            monkeypatch.setattr(f"{module}.choose_device", lambda device: torch.device("cuda", 0))
        study, cost = tiny_study(seeds=2), Cost(step=100.0, structure=0.0, train=40, valid=6, test=20)
        said = command._announce(study, StudyFolder(tmp_path), {cell: cost for cell in runs_to_try(study)}, 8)
        assert "about 1h20m on one GPU, one after another" in said[0] and "4 runs share 1 GPU" in said[1]
        assert abreast(study, 8) == 1

    def test_gpus_are_divided(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two GPUs halve the time, and each training sees the one with the fewest."""
        command = importlib.import_module("denskit.cli.study_work")
        for module in ("denskit.runtime.device", "denskit.evaluation.study.timing"):
            monkeypatch.setattr(f"{module}.choose_device", lambda device: torch.device("cuda", 0))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5a")
        study, cost = tiny_study(seeds=2), Cost(step=100.0, structure=0.0, train=40, valid=6, test=20)
        said = command._announce(study, StudyFolder(tmp_path), {cell: cost for cell in runs_to_try(study)}, 8)
        assert "about 40m00s on 2 GPUs " in said[0] and "4 runs share 2 GPUs" in said[1]
        assert gpus_to_share("auto") == ["3", "GPU-5a"] and gpus_to_share("cuda:1") == []
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        assert gpus_to_share("cuda") == ["0", "1"]

        folder, seen = StudyFolder(tmp_path), []
        result = {"errors": {"test": {FORCES: 1.0}}, "tests": {}, "parameters": 1, "seconds": 1.0, "steps": 1}

        class Started:
            def __init__(self, words: list[str], *, env: dict[str, str], **others: object) -> None:
                seen.append(env["CUDA_VISIBLE_DEVICES"])
                self.number = int(words[-1])
                write_json(folder.result(runs_of(study)[self.number]), result)

            def poll(self) -> int | None:
                return 0 if self.number == 1 or len(seen) == 4 else None  # the second ends first

        monkeypatch.setattr("denskit.evaluation.study.running.subprocess.Popen", Started)
        jobs = run_all(
            study,
            lambda run: [str(runs_of(study).index(run))],
            folder,
            processes=3,
            gpus=["3", "GPU-5a"],
            watch=lambda jobs: None,
        )
        assert seen[:3] == ["3", "GPU-5a", "3"], "the third shares the first"
        assert seen[3] == "GPU-5a" and [job.state for job in jobs] == ["done"] * 4

    def test_stopped_by_a_signal_it_saves_and_continues(self, tmp_path: Path) -> None:
        study = tiny_study(settings={**TINY, "training.max_steps": 100_000}, seeds=1)
        write_study(study, tmp_path / "long.yaml")
        command = [sys.executable, "-m", "denskit", "study", str(tmp_path / "long.yaml"), "-o", str(tmp_path / "out")]
        process = subprocess.Popen(
            [*command, "--processes", "2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        runs = [tmp_path / "out" / "runs" / run.name for run in runs_of(study)]
        deadline = time.monotonic() + PATIENCE_S
        while not all((run / "metrics.csv").is_file() for run in runs):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130 and "2 of 2 unfinished runs saved their state. Continue with" in out
        for run in runs:
            assert (run / "checkpoints" / "last.pt").is_file()

    def test_results_of_another_study_are_not_mixed(self, tmp_path: Path) -> None:
        write_study(tiny_study(), tmp_path / "out" / "study.yaml")
        write_study(tiny_study(base="equiformer"), tmp_path / "other.yaml")
        (tmp_path / "out" / "runs" / "plain_seed-0").mkdir(parents=True)
        done = denskit("study", str(tmp_path / "other.yaml"), "-o", str(tmp_path / "out"))
        assert done.returncode == 1 and "results of another study" in " ".join(done.stderr.split())

    def test_a_study_may_grow(self, tmp_path: Path) -> None:
        """By variants and values of an axis; trained runs stay what they are."""
        folder, study = StudyFolder(tmp_path), tiny_study(axes={LR: [1e-3], FRAMES: [5, 10]})
        folder.keep(study)
        (tmp_path / "runs" / runs_of(study)[0].name).mkdir(parents=True)
        axes, variants = {LR: [1e-3, 2e-3], FRAMES: [5, 10]}, {**VARIANTS, "more": {"task": "dens", "task.sigma": 0.1}}
        larger = tiny_study(axes=axes, variants=variants, best_of=[LR], seeds=3, mean_of_tests=True)
        folder.keep(larger)
        assert load_study(folder.study) == larger
        for changes, told in (
            ({"axes": {LR: [2e-3], FRAMES: [5, 10]}, "variants": variants}, f"axes.{LR}: [0.001, 0.002] then, [0.002]"),
            ({"axes": {LR: [1e-3, 2e-3, 3.0], FRAMES: [5, 10, 20]}}, f"axes.{FRAMES}: [5, 10] then, [5, 10, 20] now"),
            (
                {"axes": axes, "variants": {**variants, "DeNS": {"task": "dens", "task.sigma": 0.1}}},
                "variants.DeNS: {'task': 'dens'} then, {'task': 'dens', 'task.sigma': 0.1} now",
            ),
            (
                {"axes": axes, "variants": VARIANTS},
                "variants.more: {'task': 'dens', 'task.sigma': 0.1} then, absent now",
            ),
            (  # other names of folders
                {"axes": {FRAMES: [5, 10], LR: [1e-3, 2e-3]}, "variants": variants},
                f"axes: {LR}, {FRAMES} then, {FRAMES}, {LR} now",
            ),
            ({"settings": {**TINY, "training.max_steps": 24}}, "settings.training.max_steps: 12 then, 24 now"),
            ({"settings": {**TINY, "device": "cpu"}}, "settings.device: not given then, cpu now"),
            ({"base": "equiformer"}, "base: demo then, equiformer now"),
        ):
            with pytest.raises(ValueError, match="results of another study") as refused:
                folder.keep(tiny_study(**changes))
            assert f": {told}" in str(refused.value)
        first = tiny_study(axes={**axes, LR: [3e-3, 1e-3, 2e-3]}, variants=variants, best_of=[LR], seeds=3)
        name = runs_of(study)[0].name
        with locked(folder.lock(runs_of(study)[0])):
            folder.keep(first)  # also at work: its processes know their runs by name
        assert find_run(first, name) == runs_of(study)[0] != runs_of(first)[0]

    def test_a_study_that_has_trained_keeps_its_seeds(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else runs that a printed script trains would be gone from the table; a dry run adds none."""
        command = importlib.import_module("denskit.cli.study_work")
        monkeypatch.setattr(command, "train_and_report", lambda study, *_, **how: seen.append(study.seeds))
        folder, file, seen = StudyFolder(tmp_path / "out"), tmp_path / "tiny.yaml", []
        (hot := tmp_path / "hot.xyz").touch()
        write_study(tiny_study(tests={"hot": str(hot)}), file)

        def asked(*more: str) -> str:
            done = CliRunner().invoke(app, ["study", str(file), "-o", str(folder.path), *more])
            assert done.exit_code == 0, done.output
            return " ".join(done.output.split())

        asked("--slurm", "seeds=4")
        asked()
        assert load_study(folder.study).seeds == (0, 1), "nothing has trained"
        (folder.path / "runs" / "plain_seed-0").mkdir(parents=True)
        assert asked("--dry-run", "seeds=30") == "" and seen[-1] == tuple(range(30))
        assert load_study(folder.study).seeds == (0, 1) and not folder.draft.exists()
        assert "plain_seed-2" in asked("--slurm", "seeds=3")
        write_study(tiny_study(), file)
        said = asked()
        assert f"note: the study keeps seed 2, which it was given before; for fewer edit {folder.study}" in said
        assert "note: hot is no longer among the tests" in said
        assert seen[-1] == load_study(folder.study).seeds == (0, 1, 2)

    def test_a_trial_of_a_draft_leaves_no_study(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A question that is stopped while it is timed has no length yet."""
        command, tried = importlib.import_module("denskit.cli.study_work"), []
        monkeypatch.setattr(command, "write_trial", lambda study, run, folder: tried.append(run.name))
        write_study(tiny_study(seeds=1), tmp_path / "draft.yaml")
        asked = ["study", str(tmp_path / "draft.yaml"), "-o", str(tmp_path), "--task", "DeNS_seed-0", "--trial"]
        assert CliRunner().invoke(app, asked).exit_code == 0 and tried == ["DeNS_seed-0"]
        assert not StudyFolder(tmp_path).study.exists()

    def test_a_process_leaves_the_study_as_it_has_grown(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Between reading study.yaml and beginning its run."""
        folder, study = StudyFolder(tmp_path), tiny_study(seeds=1)
        folder.keep(study)
        (tmp_path / "runs" / runs_of(study)[0].name).mkdir(parents=True)
        larger = tiny_study(seeds=2)
        work = importlib.import_module("denskit.cli.study_work")
        monkeypatch.setattr(work, "require_one_split", lambda study: write_study(larger, folder.study))
        monkeypatch.setattr("denskit.evaluation.study.running.train_and_judge", lambda *what, **how: {})
        done = CliRunner().invoke(app, ["study", str(folder.study), "-o", str(tmp_path), "--task", "DeNS_seed-0"])
        assert done.exit_code == 0 and load_study(folder.study) == larger, done.output

    def test_a_study_that_has_trained_nothing_may_change(self, tmp_path: Path) -> None:
        """After a dry run, or a mistake that its trial shows, the mended file is taken, with trials of its own."""
        command = ["study", str(tmp_path / "study.yaml"), "-o", str(tmp_path / "out"), "--dry-run"]
        write_study(tiny_study(variants={"plain": {"task.sgma": 0.1}}, seeds=1), tmp_path / "study.yaml")
        failed = CliRunner().invoke(app, command)
        assert failed.exit_code == 1 and failed.output.count("(--verbose shows where)") == 1, failed.output
        write_study(tiny_study(seeds=1), tmp_path / "study.yaml")
        assert CliRunner().invoke(app, command).exit_code == 0
        longer = {**TINY, "training.max_steps": 24}
        write_study(tiny_study(settings=longer, seeds=1), tmp_path / "study.yaml")
        assert CliRunner().invoke(app, command).exit_code == 0
        assert load_study(tmp_path / "out" / "study.yaml").settings == longer

    def test_files_to_judge_on_are_missed_before_the_training(self, tmp_path: Path) -> None:
        study = tiny_study(tests={"hot": str(tmp_path / "hot.xyz")}, seeds=1)
        write_study(study, tmp_path / "study.yaml")
        done = CliRunner().invoke(
            app, ["study", str(tmp_path / "study.yaml"), "-o", str(tmp_path / "out"), "--dry-run"]
        )
        assert done.exit_code == 1 and "tiny: hot: no file" in done.output
        with pytest.raises(FileNotFoundError, match="relaxation.path: no file"):
            train_and_judge(
                tiny_study(relaxation={"path": "none.lmdb"}), runs_of(study)[0], StudyFolder(tmp_path / "out")
            )

    def test_too_few_structures_are_missed_before_the_first_trial(self, tmp_path: Path) -> None:
        """Also those of a later kind of run; and a data set that leaves none to judge on."""

        def asked(**changes: object) -> str:
            write_study(tiny_study(seeds=1, **changes), tmp_path / "study.yaml")
            done = CliRunner().invoke(app, ["study", str(tmp_path / "study.yaml"), "-o", str(tmp_path / "out")])
            assert done.exit_code == 1 and "timing" not in done.output, done.output
            return " ".join(done.output.split())

        later = asked(axes={"data.split.valid": [6, 5000]})
        assert "Error: plain, data.split.valid 5000: " in later and " frames to divide" in later
        alone = {**TINY, "data.split": {"valid": 6, "test": 0}}
        assert "plain: training and validation leave no structure for the test split" in asked(settings=alone)

    def test_a_queue_script_has_one_job_a_run(self, tmp_path: Path) -> None:
        """Its paths may have spaces; work that would be ignored beside it is refused."""
        write_study(tiny_study(), tmp_path / "tiny.yaml")
        command = ["study", str(tmp_path / "tiny.yaml"), "-o", str(tmp_path / "my out"), "--slurm"]
        script = CliRunner().invoke(app, command).stdout
        assert "--array=0-3" in script and f"#SBATCH --output='{tmp_path}/my out/logs/%A_%a.log'" in script
        (tmp_path / "denskit").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
        (tmp_path / "denskit").chmod(0o755)
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"

        def job(**variables: str) -> subprocess.CompletedProcess[str]:
            environment = os.environ | {"PATH": path} | variables
            return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)

        arguments = job(SLURM_ARRAY_TASK_ID="3").stdout.split("|")
        assert arguments[2:6] == ["--output", f"{tmp_path}/my out", "--task", "DeNS_seed-1"]
        assert "submit this script with sbatch" in job().stderr and "no run" in job(SLURM_ARRAY_TASK_ID="4").stderr
        for more in (["--dry-run"], ["--task", "0"]):
            assert "are different work" in CliRunner().invoke(app, [*command, *more]).output

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"settings": {**TINY, "training.max_step": 5}}, "'plain': unknown key training.max_step; did you mean"),
            ({"variants": {"plain": {}, "DeNS": {"task": "denss"}}}, "variant 'DeNS': no task 'denss'"),
            ({"variants": {"plain": {}, "DeNS": {"base": "nope"}}}, "variant 'DeNS': no preset 'nope'"),
            ({"axes": {"training.lrr": [1e-3]}}, "unknown key training.lrr; did you mean training.lr?"),
            ({"axes": {"task.sigma": [0.1, 0.2]}}, "variant 'plain': task.sigma belongs to task=dens"),
            ({"settings": {**TINY, "data.path": "absent.xyz"}}, "tiny: plain: data.path: no file absent.xyz"),
            ({"tests": {"hot": "absent.xyz"}}, "tiny: hot: no file absent.xyz to judge the trained models on"),
        ],
    )
    def test_a_queue_script_is_of_runs_that_can_start(
        self, change: dict[str, object], said: str, tmp_path: Path
    ) -> None:
        write_study(tiny_study(**change), tmp_path / "tiny.yaml")
        done = CliRunner().invoke(app, ["study", str(tmp_path / "tiny.yaml"), "-o", str(tmp_path / "out"), "--slurm"])
        assert done.exit_code == 1 and said in " ".join(done.output.split()), done.output
        assert "#SBATCH" not in done.output

    def test_a_job_that_is_told_to_end_saves(self, tmp_path: Path) -> None:
        """The signal goes to the script's shell, which has become the training."""
        write_study(tiny_study(settings={**TINY, "training.max_steps": 100_000}, seeds=1), tmp_path / "long.yaml")
        script = CliRunner().invoke(app, ["study", str(tmp_path / "long.yaml"), "-o", str(tmp_path), "--slurm"]).stdout
        assert "#SBATCH --signal=B:TERM@" in script
        (tmp_path / "job.sh").write_text(script)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        job = subprocess.Popen(
            ["bash", str(tmp_path / "job.sh")], env=os.environ | {"SLURM_ARRAY_TASK_ID": "0", "PATH": path},
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        run, deadline = tmp_path / "runs" / "plain_seed-0", time.monotonic() + PATIENCE_S
        while not (run / "metrics.csv").is_file():
            assert job.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        job.terminate()
        assert job.wait(PATIENCE_S) == 128 + signal.SIGTERM
        assert (run / "checkpoints" / "last.pt").is_file()


def test_bars_know_how_long_a_training_is(tmp_path: Path) -> None:
    """From its log: the length may be one in epochs."""
    study, folder = tiny_study(settings={"training.epochs": 3}, seeds=1), StudyFolder(tmp_path)
    run = runs_of(study)[0]
    path = folder.run(run)
    path.mkdir(parents=True)
    with Bars(console=Console(file=io.StringIO())) as bars:
        progress = StudyProgress(folder, bars.console, bars)
        progress.show([Job(run, "running")])
        assert [task.total for task in bars.tasks] == [None], "it is not known before the first step"
        (path / "metrics.csv").write_text("step,epoch,train_forces_mae_meV_per_A\n13,0,20\n")
        (path / "train.log").write_text("2026-01-01 00:00:00  step 13/52  epoch 0  train MAE forces 20.00 meV/Å\n")
        progress.show([Job(run, "running")])
        assert [task.percentage for task in bars.tasks] == [25]


def test_a_length_replaces_those_of_the_layers_below() -> None:
    """Else the shorter would hold: a variant of more epochs would end with the steps of the study."""
    study = tiny_study(
        settings={"training": {"max_steps": 600}, "training.lr": 1e-3},
        variants={"plain": {}, "long": {"training.epochs": 70}},
        axes={FRAMES: {5: {}, 10: {"training": {"max_steps": 900}}}},
        seeds=1,
    )
    found = {(run.variant, run.point[FRAMES]): run.config().training for run in runs_of(study)}
    lengths = {key: (training.epochs, training.max_steps) for key, training in found.items()}
    assert lengths == {
        ("plain", 5): (None, 600), ("long", 5): (70, None), ("plain", 10): (None, 900), ("long", 10): (None, 900),
    }  # fmt: skip
    assert {training.lr for training in found.values()} == {1e-3}
    longer = runs_of(changed(tiny_study(settings={"training.max_steps": 600}, seeds=1), ["training.epochs=2000"]))
    assert [(run.config().training.epochs, run.config().training.max_steps) for run in longer] == [(2000, None)] * 2
    nested = tiny_study(
        settings={"training": {"max_steps": 600}}, variants={"plain": {}, "fast": {"training": {"lr": 1e-2}}}, seeds=1
    )
    assert [run.config().training.max_steps for run in runs_of(nested)] == [600, 600]
    own = {"plain": {"training.epochs": 50}, "DeNS": {"task": "dens", "training.max_steps": 60}}
    with pytest.raises(ValueError, match=r"training.epochs=7: every variant of the study has its own length"):
        changed(tiny_study(variants=own), ["training.epochs=7"])
    for axis, other in (("training.epochs", "training.max_steps"), ("training.max_steps", "training.epochs")):
        with pytest.raises(ValueError, match=f"{other}=9: {axis} is an axis of the study, so this has no effect"):
            changed(tiny_study(axes={axis: [5, 6]}), [f"{other}=9"])
    both = tiny_study(settings={"training.max_steps": 600, "training.epochs": 5}, seeds=1)
    assert {run.config().training.epochs for run in runs_of(both)} == {5}, "of one layer both count"


def test_runs_do_not_share_a_folder() -> None:
    study = StudyConfig(title="t", variants={"a b": {"task": "dens"}, "a-b": {"task": "energy_forces"}}, seeds=(0,))
    with pytest.raises(ValueError, match="2 runs would share the folder a-b_seed-0"):
        runs_of(study)


def test_runs_have_a_length_that_all_share() -> None:
    with pytest.raises(ValueError, match="gives every run a length of its own"):
        runs_of(tiny_study(settings={"training.budget": "10 minutes"}))


def test_an_error_of_zero_has_no_relative_difference() -> None:
    assert difference({0: 1.0, 1: 2.0}, {0: 0.0, 1: 0.0}) is None


def _found(variant: str, seed: int, error: float) -> Found:
    errors = {"test": {FORCES: error}}
    return Found(variant=variant, values={}, seed=seed, errors=errors, seconds=1.0, parameters=2, folder=Path("x"))


def test_of_stabilities_the_largest_is_the_best() -> None:
    found = [
        Found(variant=name, values={}, seed=0, errors={"simulation": {"stability_ps": time, "h_of_r_error": 1 / time}},
              seconds=1.0, parameters=1, folder=Path())
        for name, time in (("short", 10.0), ("long", 20.0))
    ]  # fmt: skip
    results = tabulate("t", found, ["short", "long"])
    assert [results.best(column) for column in results.columns] == [{("", "long")}] * 2


def test_errors_of_rounding_are_not_compared() -> None:
    """Forces that symmetry makes zero."""
    errors = {"plain": {FORCES: 1e-5, ENERGY: 4.0}, "DeNS": {FORCES: 2e-5, ENERGY: 3.0}}
    found = [replace(_found(name, seed, 0.0), errors={"test": own}) for name, own in errors.items() for seed in (0, 1)]
    results = tabulate("t", found, ["plain", "DeNS"])
    forces, energy = Column("test", FORCES), Column("test", ENERGY)
    assert results.rows[1].differences.keys() == {energy}
    assert results.best(forces) == set() and results.best(energy) == {("", "DeNS")}
    assert "Errors below 0.001 (forces (meV/Å)) are rounding, and are not compared." in as_markdown(results)


def test_published_numbers_are_those_of_one_test() -> None:
    tests = ("test", "id", "ood")
    whole = {test: {ENERGY: 9.0, FORCES: 1.0 + place} for place, test in enumerate(tests)}
    run = replace(_found("plain", 0, 1.0), errors=whole)

    def numbers(published: object, *more: str) -> dict[tuple[str, str], float]:
        found = replace(run, errors={**whole, **{test: {FORCES: 5.0} for test in more}})
        (row,) = tabulate("t", [found], ["plain"], published={"plain": {"": published}}).rows
        return {(column.test, column.metric): value for column, value in row.published.items()}

    assert numbers([433, 22.9]) == {("test", ENERGY): 433, ("test", FORCES): 22.9}
    assert numbers([433, 22.9], "mean of the tests") == {("mean of the tests", FORCES): 22.9}
    assert numbers({"test": 22.9, "ood": 30.7}) == {("test", FORCES): 22.9, ("ood", FORCES): 30.7}
    many = {"plain": {5: {"test": 22.9, "ood": 30.7}}, "DeNS": {5: [433, 22.9]}}
    assert tiny_study(axes={FRAMES: [5]}, tests={"ood": "ood.extxyz"}, published=many).published["plain"].keys() == {
        "5"
    }
    assert numbers({"ood": [629, 30.7], "id": {FORCES: 7.0}, "elsewhere": [1, 2]}) == {
        ("id", FORCES): 7.0, ("ood", ENERGY): 629, ("ood", FORCES): 30.7,
    }  # fmt: skip
    results = tabulate("t", [run], ["plain"], published={"plain": {"": {"ood": [629, 30.7]}}})
    assert "published ood: forces (meV/Å)" in as_markdown(results)
    lines = {line["test"]: line["published"] for line in csv.DictReader(io.StringIO(means_as_csv(results)))}
    assert lines == {"test": "", "id": "", "ood": "30.7"}


def test_simulations_and_relaxations_without_an_end_are_told() -> None:
    errors = {
        "simulation": {"stability_ps": 3.0, "simulations": 3, "unstable": 2},
        "relaxation": {"energy_mae_meV": 9.0, "references": 25, "without_energy": 1},
    }
    ended = replace(_found("DeNS", 1, 11.0), errors=errors)
    whole = replace(
        ended, errors={"simulation": {"simulations": 3, "unstable": 0}, "relaxation": {"without_energy": 0}}
    )
    assert list(ended_early([_found("plain", 0, 10.0), ended, whole])) == [
        "'DeNS', seed 1: 2 of 3 simulations became unstable, and count in h(r) until then.",
        "'DeNS', seed 1: 1 of 25 relaxations gave no energy, and are in no mean.",
    ]


def test_tests_with_other_energies_are_told_once() -> None:
    errors = {"ood": {"energy_mean_error_meV": 9e4, "energy_mae_meV": 9e4, "energy_mae_meV_per_atom": 2e3}}
    found = [replace(_found("plain", seed, 10.0), errors=errors) for seed in (0, 1)]
    (said,) = other_energies([_found("plain", 2, 10.0), *found])
    assert said.startswith("ood: predicted energies are far above those of the file, by 90 eV on average: are these")


@pytest.mark.filterwarnings("ignore:.* has trained on copies of")
def test_structures_that_are_trained_on_are_told(tmp_path: Path) -> None:
    """Twins on both sides of a split, and a test file with training structures: on the screen and below the table."""
    frames = labelled(molecule("H2O"), 30)
    ase.io.write(path := tmp_path / "twice.extxyz", [*frames, *frames])
    ase.io.write(same := tmp_path / "same.extxyz", frames)
    ase.io.write(new := tmp_path / "new.extxyz", labelled(molecule("H2O"), 35)[30:])
    study = tiny_study(
        settings=TINY | {"data": {"name": "file", "path": str(path)}, "training.max_steps": 2},
        tests={"same": str(same), "new": str(new)}, variants={"plain": {"task": "energy_forces"}},
    )  # fmt: skip
    folder = StudyFolder(tmp_path / "out")
    folder.keep(study)
    (first, second) = runs_of(study)
    for run in (first, second):
        train_and_judge(study, run, folder)
    data = load_data(load_config(folder.run(first)).data, 0)
    known = [system.positions for system in data.train]
    twins = [sum(any(np.array_equal(one.positions, other) for other in known) for one in part or ())
             for part in (data.valid, data.test)]  # fmt: skip
    said = [line for line in problems_of(study) if "which is trained on" in line]
    for line, part, count, size in zip(said, ("valid", "test"), twins, (6, 20), strict=True):
        assert f"{path} ({part}): {count} of {size} structures" in line
    errors = folder.judged(first)["errors"]
    assert errors["test"]["structures_trained_on"] == twins[1] > 0 and errors["same"]["structures_trained_on"] > 20
    assert "structures_trained_on" not in errors["new"]
    remarks = collect(study, folder).remarks
    assert [remark.partition(":")[0] for remark in remarks if "have trained on" in remark] == ["test", "same"]


def test_the_best_is_that_of_equal_seeds() -> None:
    found = [_found("plain", 0, 10.0), _found("DeNS", 0, 11.0), _found("plain", 1, 30.0)]
    column = Column("test", FORCES)
    assert tabulate("t", found, ["plain", "DeNS"]).best(column) == set()
    as_many = [found[0], _found("DeNS", 1, 11.0)]
    assert tabulate("t", as_many, ["plain", "DeNS"]).best(column) == set(), "of other seeds"
    assert tabulate("t", found[:2], ["plain", "DeNS"]).best(column) == {("", "plain")}
    assert tabulate("t", found[:1], ["plain", "DeNS"]).best(column) == set(), "the other has not finished"
    assert tabulate("t", found[:2], ["plain", "DeNS", "failed"]).best(column) == {("", "plain")}


class TestTuned:
    """Each variant at its best learning rate, by validation errors."""

    STUDY = tiny_study(axes={LR: [0.1, 0.2]}, best_of=[LR], variants={"plain": {}, "dens": {}})
    FOUND = tuple(
        replace(_found(variant, seed, error + seed), values={LR: rate}, folder=Path(f"{variant}-{rate}-{seed}"))
        for variant, errors in {"plain": {0.1: 30.0, 0.2: 20.0}, "dens": {0.1: 18.0, 0.2: 19.0}}.items()
        for rate, error in errors.items()
        for seed in (0, 1)
    )
    VALIDATED: ClassVar = {run.folder.name: run.errors["test"][FORCES] for run in FOUND}
    COLUMN = Column("test", FORCES)

    def best(self, found: Sequence[Found] = FOUND, validated: Mapping[str, float] = VALIDATED) -> Results:
        results = tabulate("x", found, list(self.STUDY.variants), [{LR: 0.1}, {LR: 0.2}])
        return at_their_best(self.STUDY, results, validated)

    def test_each_has_its_own_rate(self) -> None:
        plain, dens = self.best().tuned
        assert (plain.label, dens.label) == ("plain, best lr 0.2", "dens, best lr 0.1") and plain.values == {}
        assert plain.means[self.COLUMN].value == 20.5 and dens.means[self.COLUMN].value == 18.5
        assert not plain.differences and dens.differences[self.COLUMN].percent == pytest.approx(-100 * 2 / 20.5)

    def test_the_best_of_them_is_bold(self) -> None:
        """As the best of each value, where all variants have a row."""
        assert self.best().best(self.COLUMN) == {("", "dens"), ("lr 0.1", "dens"), ("lr 0.2", "dens")}
        assert "| dens, best lr 0.1 | 2 | **18.5 ± 0.5** |" in as_markdown(self.best())
        assert r"dens, best lr 0.1 & 2 & \textbf{18.5" in as_latex(self.best())
        plain = {name: error for name, error in self.VALIDATED.items() if name.startswith("plain")}
        assert ("", "plain") not in self.best(validated=plain).best(self.COLUMN), "the other has none"

    def test_validation_decides_and_not_the_test(self) -> None:
        flipped = {name: -error for name, error in self.VALIDATED.items()}
        assert [row.label for row in self.best(validated=flipped).tuned] == ["plain, best lr 0.1", "dens, best lr 0.2"]

    def test_a_value_without_all_seeds_is_not_chosen(self) -> None:
        """As where a training failed at it; and that is said."""
        some = [run for run in self.FOUND if run.folder.name != "dens-0.1-1"]
        results = self.best(some)
        assert [row.label for row in results.tuned] == ["plain, best lr 0.2", "dens, best lr 0.2"]
        assert results.remarks == ("'dens' lacks finished runs of lr 0.1, which is not chosen.",)
        assert results.remarks[0] in as_markdown(results)
        unknown = self.best(validated={})
        assert not unknown.tuned and len(unknown.remarks) == 4

    def test_one_value_leaves_nothing_to_choose(self) -> None:
        study = tiny_study(axes={LR: [0.1]}, best_of=[LR], variants={"plain": {}, "dens": {}})
        results = tabulate("x", self.FOUND, ["plain", "dens"], [{LR: 0.1}])
        assert at_their_best(study, results, self.VALIDATED) == results

    def test_they_stand_in_all_tables(self) -> None:
        """Each cell below its title."""
        results = self.best()
        table = as_rich(results, 100)[0]
        assert isinstance(table, Table)
        cells = {str(column.header): list(column.cells) for column in table.columns}
        assert cells["variant"][-1] == "dens, best lr 0.1" and "18.5" in str(cells["forces (meV/Å)"][-1])
        assert [row.split("|")[2].strip() for row in as_markdown(results).splitlines()[-4:-2]] == [
            "plain, best lr 0.2", "dens, best lr 0.1"
        ]  # fmt: skip
        last = list(csv.DictReader(io.StringIO(means_as_csv(results))))[-1]
        assert (last["variant"], last[LR]) == ("dens, best lr 0.1", "0.1")

    def test_what_is_tuned_is_an_axis_that_leaves_the_validation_alone(self) -> None:
        with pytest.raises(ValueError, match=r"best_of: training.lr is no axis"):
            tiny_study(best_of=[LR])
        for axis in (FRAMES, "data.split.valid", "training.best_by"):
            with pytest.raises(ValueError, match="choose no value of it"):
                tiny_study(axes={axis: [5, 10]}, best_of=[axis])
        with pytest.raises(ValueError, match="best_of has no parts"):
            changed(tiny_study(), ["best_of.x=1"])

    def test_rates_that_bring_other_settings_cost_their_own(self) -> None:
        assert {run.cell for run in runs_of(self.STUDY)} == {"plain", "dens"}
        batches = tiny_study(axes={LR: {0.1: {"training.batch_size": 2}, 0.2: {}}})
        assert len(runs_to_try(batches)) == 4


def test_means_and_paired_differences_as_numbers() -> None:
    found = [_found(name, seed, error) for name, *errors in (("plain", 10.0, 30.0), ("DeNS", 9.0, 26.0))
             for seed, error in enumerate(errors)]  # fmt: skip
    results = tabulate("t", found, ["plain", "DeNS"], published={"plain": {"": [5, 7.5]}, "DeNS": {"": 6}})
    plain, dens = csv.DictReader(io.StringIO(means_as_csv(results)))
    assert (plain["variant"], plain["test"], plain["metric"], plain["seeds"]) == ("plain", "test", FORCES, "2")
    assert float(plain["mean"]) == 20 and float(plain["standard_error"]) == 10
    assert plain["difference_percent"] == "" and (plain["published"], dens["published"]) == ("7.5", "6")
    assert float(dens["difference_percent"]) == pytest.approx(100 * (17.5 - 20) / 20)
    low, high = float(dens["difference_low"]), float(dens["difference_high"])
    assert low < float(dens["difference_percent"]) < high


def test_figures_say_how_many_seeds_and_have_points_near_their_values(tmp_path: Path) -> None:
    """Six variants of two sizes, of which one has a second seed at one of them; a warning has its own line."""
    found = [
        replace(_found(name, seed, 10.0), values={FRAMES: frames}, folder=tmp_path / f"{name}-{frames}-{seed}")
        for name in "abcdef" for frames in (16, 1024) for seed in ((0, 1) if (name, frames) == ("a", 16) else (0,))
    ]  # fmt: skip
    for run in found:
        run.folder.mkdir()
        RunFolder(run.folder).metrics.write_text(f"step,valid_{FORCES}\n1,20\n2,10\n")
    results = tabulate("six", found, list("abcdef"), [{FRAMES: 16}, {FRAMES: 1024}])
    figures = study_figures(replace(results, warning="tested on different structures: so what"))
    titles = [figure.get_suptitle() for figure in figures.values()]
    assert titles[0] == "six: mean and range over seeds (1 to 2)\ntested on different structures: so what"
    assert titles[1] == "six: mean and standard error over seeds (1 to 2)\ntested on different structures: so what"
    (panel,) = figures["data_split_train"].axes
    shifts = [line.get_xdata() / np.array([16, 1024]) for line, *_ in panel.containers]
    assert len(shifts) == 6 and np.max(shifts) == pytest.approx(1.04) and np.min(shifts) == pytest.approx(1 / 1.04)
    for runs, told in ((found[:1], "one seed"), (found[:2], "mean and range over 2 seeds")):
        few = tabulate("few", runs, ["a"], [{FRAMES: 16}])
        assert study_figures(few)["learning_curves"].get_suptitle() == f"few: {told}"
    for run in found[:3]:
        RunFolder(run.folder).metrics.write_text(f"step,valid_{FORCES}\n20,{10 + 5 * run.seed}\n")
    (panel,) = study_figures(tabulate("few", found[:2], ["a"], [{FRAMES: 16}]))["learning_curves"].axes
    (bars,) = panel.containers
    assert bars.lines[0].get_ydata() == [12.5] and panel.get_ylim()[0] < 10 < 15 < panel.get_ylim()[1]
    close = [replace(run, values={FRAMES: run.values[FRAMES] // 1024 + 100}) for run in found]
    results = tabulate("close", close, list("abcdef"), [{FRAMES: 100}, {FRAMES: 101}])
    (panel,) = study_figures(results)["data_split_train"].axes
    assert max(line.get_xdata()[0] for line, *_ in panel.containers) < 100.5, "nearer than the middle"


@pytest.mark.parametrize(("forces", "shown"), [("", "energy (meV)"), ("1e-5", "energy (meV)"), ("9", "forces (meV/Å)")])
def test_learning_curves_are_of_energies_where_there_are_no_forces(tmp_path: Path, forces: str, shown: str) -> None:
    run = replace(_found("plain", 0, 10.0), folder=tmp_path)
    RunFolder(tmp_path).metrics.write_text(f"step,valid_{FORCES},valid_{ENERGY}\n1,{forces},20\n2,{forces},10\n")
    (panel,) = study_figures(tabulate("t", [run], ["plain"]))["learning_curves"].axes
    assert panel.get_ylabel() == f"validation MAE, {shown}"
    assert len(panel.lines) == 1 and panel.get_legend() is not None


def test_there_are_no_learning_curves_without_validation_structures(tmp_path: Path) -> None:
    run = replace(_found("plain", 0, 10.0), folder=tmp_path)
    RunFolder(tmp_path).metrics.write_text(f"step,valid_{FORCES},valid_{ENERGY}\n1,,\n2,,\n")
    assert study_figures(tabulate("t", [run], ["plain"])) == {}


def test_a_mean_of_tests_wants_tests(tmp_path: Path) -> None:
    study = tiny_study(mean_of_tests=True)
    with pytest.raises(ValueError, match=r"of which the study has none; give two or more, such as tests.id=FILE"):
        require_judgeable(study, runs_of(study)[0].config(tmp_path))


def test_names_may_have_any_signs() -> None:
    name = r"DeNS [/p] $x^2$ {y} a|b <b> \z 5%"
    results = tabulate("t [/x]", [_found("plain", 0, 2.0), _found(name, 0, 1.0)], ["plain", name])
    escaped = r"DeNS [/p] \$x\^{}2\$ \{y\} a\textbar{}b \textless{}b\textgreater{} \textbackslash{}z 5\%"
    assert rf"{escaped} & 1 & \textbf{{1.0}}" in as_latex(results)
    assert r"a\|b" in as_markdown(results)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(*as_rich(results, 200))
    assert "DeNS [/p]" in console.export_text()
