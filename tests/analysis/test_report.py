"""The report of runs, studies and simulations: what it says, and that it is written whatever is missing."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule

from cli_calls import denskit
from denskit.analysis.judged import Judged
from denskit.analysis.report import plot, report, sections_of
from denskit.analysis.report.page import Section, paragraph, table, write_page
from denskit.analysis.report.settings import settings
from denskit.analysis.report.structures import worst
from denskit.analysis.report.summary import NAMES, headline, two_digits
from denskit.analysis.run_results import RunResults
from denskit.analysis.scenes import Scene
from denskit.data.loading import read
from denskit.evaluation.evaluate import evaluate
from denskit.files import write_json
from denskit.reading.documents import read_json
from denskit.simulation.dynamics.folder import DynamicsPlan, molecular_dynamics
from denskit.simulation.dynamics.settings import DynamicsSettings
from denskit.simulation.potential import Potential
from denskit.simulation.relaxation.folder import RelaxationFolder, relax_into
from denskit.simulation.relaxation.settings import RelaxationSettings
from denskit.tasks.metrics import Metrics

from trained import TRAINED

PNG = b"\x89PNG\r\n\x1a\n"


def words(path: Path) -> str:
    """The text of a page, without scripts and images."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"<(script|style).*?</\1>", " ", text, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", text).replace("&NoBreak;", "").split())


def test_summary_says_the_errors_in_words(runs: list[Path]) -> None:
    errors = evaluate(runs[0])
    said = words(report([runs[0]]))
    assert f"Forces: {errors['forces_mae_meV_per_A']:.1f} meV/Å mean absolute error on 16 unseen frames" in said
    assert f"{two_digits(100 * errors['forces_mae_relative_to_zero'])} % of the mean force component" in said
    assert "worst element" in said
    assert "on 50 frames of ethanol DeNS, without model.parity, was ahead only after" in said  # a warning of the log
    assert "ewt_percent" not in said
    for heading in ("Learning curves", "Errors by element and group", "Where the errors are", "Denoising", "Settings"):
        assert heading in said
    assert "config_type" in said


def test_given_settings_are_those_of_the_command(runs: list[Path], tmp_path: Path) -> None:
    """Where it named a preset; of a training from Python, of a study or of a YAML file the page has all settings."""
    run = shutil.copytree(runs[0], tmp_path / "run")
    environment, given = read_json(run / "environment.json"), ["task=dens", "seed=0", "training.max_steps=20"]
    program, split = "/usr/bin/denskit", ["-o", str(run), "data.split={mode: blocks}"]

    def said(*command: str) -> str:
        write_json(run / "environment.json", environment | {"command": list(command)})
        return " ".join(settings(RunResults(run)).parts)

    page = said(program, "train", "equiformer", *given, *split)
    assert "The run began with the preset equiformer and 3 settings of its command; the seed is 0." in page
    steps = RunResults(run).config.training.max_steps
    for row in (["task.name", "dens", "energy_forces"], ["data.split.mode", "blocks", "not there"]):
        assert "".join(f"<td>{cell}</td>" for cell in row) in page
    assert f">{steps}<" in page and "data.split.file" not in page and "All settings (YAML)" in page
    assert "preset equiformer" in said("x/denskit/__main__.py", "train", "--processes", "2", "equiformer", "--resume")
    for other in (
        [], ["script.py"], [program, "study", "mine.yaml"], [program, "train", "mine.yaml"], [program, "train"],
        [program, "train", str(run), "--resume"], [program, "train", "equiformer", "data.units={a:1}"],
    ):  # fmt: skip
        page = said(*other)
        assert "preset" not in page and "The seed is 0." in page and "All settings (YAML)" in page


def test_shares_are_short_numbers() -> None:
    assert [two_digits(value) for value in (1.42, 9.96, 45.3, 105.0)] == ["1.4", "10", "45", "105"]


def test_every_metric_has_a_name(runs: list[Path]) -> None:
    assert set(evaluate(runs[0])) <= set(NAMES)
    assert set(Metrics().summary()) <= set(NAMES)


def test_a_constant_shift_of_the_energies_is_told(runs: list[Path]) -> None:
    run = RunResults(runs[0])
    assert isinstance(run.judged, Judged)
    assert "without a constant" not in headline(run)
    shifted = run.judged.energies + np.array([[0.0], [9.0 * 7]])  # 7 eV for each of 9 atoms
    run.__dict__["judged"] = replace(run.judged, energies=shifted)
    assert "without a constant" not in headline(run), "the structures are of the file that it trained on"
    other = run.config.data.model_copy(update={"test": "other.extxyz"})
    run.__dict__["config"] = run.config.model_copy(update={"data": other})
    found = re.search(r"meV, \d{4} meV an atom \((\S+) meV an atom without a constant for each element", headline(run))
    assert found and float(found[1]) < 100


def test_pages_escape_what_they_print() -> None:
    page = write_page("run & co", [Section("Numbers", [table(["key"], [["<script>"]]), paragraph("a < b")])])
    assert "run &amp; co" in page
    assert "&lt;script&gt;" in page
    assert "<script>" not in page  # and no viewer where there is no scene


def test_a_run_without_model_or_data_has_a_report(runs: list[Path], tmp_path: Path) -> None:
    unfinished = shutil.copytree(runs[0], tmp_path / "unfinished")
    for name in ("model.safetensors", "predictions.npz", "metrics.csv", "train.log", "environment.json"):
        (unfinished / name).unlink(missing_ok=True)
    said = words(report([unfinished]))
    assert "no model yet" in said
    assert "No step is logged yet" in said
    moved = shutil.copytree(runs[0], tmp_path / "moved")
    (moved / "predictions.npz").unlink(missing_ok=True)
    config = (moved / "config.yaml").read_text()
    (moved / "config.yaml").write_text(config.replace("mine.extxyz", "gone.extxyz"))
    said = words(report([moved]))
    assert "gone.extxyz" in said
    assert "Learning curves" in said
    report([runs[0]])
    shutil.copy(runs[0] / "predictions.npz", moved)  # what an earlier report measured is enough for most of it
    said = words(report([moved]))
    assert "on 16 unseen frames" in said
    with pytest.raises(FileNotFoundError, match="config.yaml"):
        report([tmp_path])


def test_several_runs_are_a_committee(runs: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "both.html"
    with pytest.raises(ValueError, match=r"both: the report is an HTML page; name the file .*both\.html"):
        report(runs, output.with_suffix(""))
    said = words(report(runs, output))
    assert "2 runs on 16 frames that none was trained on" in said
    assert "seed0" in said and "seed1" in said
    other = shutil.copytree(
        runs[0], tmp_path / "other" / runs[0].name
    )  # folders of one name are told by more of their paths
    named = [f"{folder.parent.name}/{folder.name}" for folder in (runs[0], other)]
    assert f"Error {' '.join(named)} unit" in words(report([runs[0], other], tmp_path / "alike.html"))
    with pytest.raises(ValueError, match="--force"):
        report(runs, output)
    assert report(runs, output, force=True) == output


def test_pictures_of_the_report_are_files(runs: list[Path], tmp_path: Path) -> None:
    written = plot([runs[0]], tmp_path / "some", ["curves", "structures"])
    assert {path.name for path in written} == {"learning_curves.png", "worst.png"}
    judged = RunResults(runs[0]).judged
    assert isinstance(judged, Judged)
    (scene,) = [part for part in worst(judged).parts if isinstance(part, Scene)]
    figure = scene.figure()
    assert [axes.get_title().split("\n")[0] for axes in figure.axes] == [
        frame.label.split(":")[0] for frame in scene.frames[:4]
    ], "the worst, not some of them"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["reference", "predicted"]
    assert all(path.read_bytes().startswith(PNG) for path in written)
    names = {path.stem for path in plot([runs[0]], tmp_path / "all")}
    assert names >= {"parity", "errors_by_element", "errors_by_config_type", "trends", "noise_recovered", "corrupted"}
    with pytest.raises(ValueError, match="exists already"):
        plot([runs[0]], tmp_path / "some", ["curves"])
    with pytest.raises(ValueError, match="they are summary, curves"):
        sections_of([runs[0]], ["curvs"])
    with pytest.raises(ValueError, match="one run"):
        sections_of(runs, ["curves"])


def test_simulations_and_relaxations_have_reports(tmp_path: Path) -> None:
    file = tmp_path / "water.extxyz"
    ase.io.write(file, [molecule("H2O"), molecule("H2O")])
    potential = Potential(TRAINED)
    settings = DynamicsSettings(ensemble="nvt", temperature=100.0)
    plan = DynamicsPlan(settings=settings, steps=20, folder=tmp_path / "md", frame_every=5)
    molecular_dynamics(potential, [molecule("H2O")], plan, say=lambda text: None)
    folder = RelaxationFolder(tmp_path / "relaxed")
    source = read(file)
    relax_into(folder, potential, source, RelaxationSettings(steps=5), trajectories=True)
    said = words(report([tmp_path / "md"]))
    assert "0.01 ps in 20 steps; 1 of 1 runs are stable" in said
    assert f"Model: {TRAINED.resolve()}." in said
    assert "trajectory_00.extxyz: 5 of 5 frames" in said
    assert re.search(r"Mean temperature of the second half: \d+ K\. The conserved energy drifted by up to .* meV", said)
    assert "temperature 100.0 K, of the initial momenta" in said
    said = words(report([tmp_path / "relaxed"]))
    assert "2 structures:" in said
    assert "000000.extxyz" in said and f"Model: {TRAINED.resolve()}." in said
    assert "optimizer.name lbfgs" in said and "fmax 0.05" in said
    ase.io.write(file, [molecule("H2O"), molecule("SiH4")])
    relax_into(RelaxationFolder(tmp_path / "refused"), potential, read(file), RelaxationSettings(steps=5))
    assert "1 unknown element" in words(report([tmp_path / "refused"]))  # a structure without an energy
    names = {path.name for path in plot([tmp_path / "md"], tmp_path / "pictures")}
    assert names == {"simulation.png", "trajectory_00.png"}


def test_stability_has_a_report_of_its_own_and_a_section_of_its_run(runs: list[Path], tmp_path: Path) -> None:
    frames = [molecule("CH3CH2OH") for _ in range(4)]
    for seed, atoms in enumerate(frames):
        atoms.rattle(0.02, seed=seed)
    ase.io.write(tmp_path / "ethanol.extxyz", frames)
    run = shutil.copytree(runs[0], tmp_path / "run")
    options = ("--time", 0.01, "--replicas", 2, "--nve", 0, "--device", "cpu")
    assert denskit("stability", run, tmp_path / "ethanol.extxyz", *options).exit_code == 0
    alone = words(report([run / "stability"]))
    assert "of 0.01 ps, 2 simulations at 500 K with steps of 0.5 fs" in alone and "h(r) Wasserstein-1 (Å)" in alone
    assert [path.name for path in plot([run], tmp_path / "pictures", ["stability"])] == ["stability.png"]
    (section,) = sections_of([run], ["stability"])
    assert "another model" not in section.parts[0]
    shutil.copy(runs[1] / "model.safetensors", run)
    (section,) = sections_of([run], ["stability"])
    assert "another model than the one that the run has now" in section.parts[0]
    (run / "stability" / "series.csv").write_text("time_ps,temperature_K_0\n0.0,cold\n")
    with pytest.raises(ValueError, match=r"series\.csv is no table of a stability study"):
        sections_of([run], ["stability"])


def test_a_study_has_its_table_and_its_runs(runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "title: Two seeds\nbase: equiformer\nvariants: {with DeNS: {task: dens}}\nseeds: 3\n"
    )
    for seed, run in enumerate(runs):
        folder = shutil.copytree(run, tmp_path / "runs" / f"with-DeNS_seed-{seed}")
        write_json(folder / "result.json", {"errors": {"test": evaluate(run)}, "seconds": 60.0, "parameters": 6177})
    said = words(report([tmp_path]))  # the third seed is not finished
    mean = np.mean([evaluate(run)["forces_mae_meV_per_A"] for run in runs])
    assert "with DeNS 2" in said and f"{mean:.1f} ±" in said
    assert "Seeds of with DeNS as a committee" in said
    assert "with-DeNS_seed-1. Forces:" in said
    assert (tmp_path / "report.html").read_text().count('data-name="worst"') == 2
