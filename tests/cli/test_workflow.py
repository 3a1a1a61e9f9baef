"""From a user's own file to errors, predictions and a page, by the program alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
import yaml
from ase.build import molecule
from ase.calculators.emt import EMT

from cli_calls import denskit
from denskit.models.model_file import read_header

FRAMES = 40


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as users have: extxyz of two molecules with energies and forces, nothing else said."""
    rng = np.random.default_rng(0)
    frames = []
    for index in range(FRAMES):
        atoms = molecule(("CH3CH2OH", "H2O")[index % 2])
        atoms.rattle(0.05, rng=rng)
        atoms.calc = EMT()
        atoms.get_forces()
        frames.append(atoms)
    path = tmp_path_factory.mktemp("data") / "mine.extxyz"
    ase.io.write(path, frames)
    return path


@pytest.fixture(scope="module")
def run(mine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs") / "mine"
    result = denskit(
        "train", "equiformer", f"data.path={mine}", "task=dens", "training.max_steps=3", f"output={output}",
        "training.evaluate_every=2 steps", "training.log_every=1",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return output


def test_training_needs_nothing_but_the_files_name(run: Path) -> None:
    log = (run / "train.log").read_text(encoding="utf-8")
    for said in ("energies in eV", "random", "references (fit)", "scale of energies", "parameters"):
        assert said in log, f"the log does not say {said!r}"
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    assert config["task"]["name"] == "dens"
    assert config["model"]["envelope"] is True
    assert json.loads((run / "splits.json").read_text(encoding="utf-8"))["test"]
    assert read_header(run / "model.safetensors")["heads"]["noise"]


def test_evaluate_writes_errors_and_parity(run: Path, mine: Path) -> None:
    result = denskit("evaluate", run)
    assert result.exit_code == 0, result.output
    assert "forces_mae_meV_per_A" in result.output
    errors = json.loads((run / "test.json").read_text(encoding="utf-8"))
    assert errors["forces_mae_meV_per_A"] > 0
    assert (run / "parity.png").stat().st_size > 1000
    last = denskit("evaluate", run, "--checkpoint", "last")
    assert last.exit_code == 0, last.output
    assert json.loads((run / "test.json").read_text(encoding="utf-8")) == errors, "of the model that the run kept"
    assert (run / "test_last.json").is_file()
    other = denskit("evaluate", run / "model.safetensors", mine)
    assert other.exit_code == 0, other.output
    assert denskit("evaluate", run, "data.path=x").exit_code == 1
    assert "--split" in denskit("evaluate", run, mine, "--split", "valid").stderr


def test_predict_keeps_labels_apart(run: Path, mine: Path, tmp_path: Path) -> None:
    output = tmp_path / "labelled.extxyz"
    result = denskit("predict", run, mine, "-o", output)
    assert f"{FRAMES} structures" in result.output
    before, after = ase.io.read(mine, ":"), ase.io.read(output, ":")
    assert len(after) == FRAMES
    assert after[1].info["REF_energy"] == pytest.approx(before[1].get_potential_energy(), abs=1e-6)
    assert after[1].get_potential_energy() != pytest.approx(before[1].get_potential_energy(), abs=1e-6)


def test_report_is_one_page(run: Path) -> None:
    result = denskit("report", run)
    assert result.exit_code == 0, result.output
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "task:" in page
    assert "data:image/png;base64," in page
    assert not re.search(r"(src|href)=.?(https?:|//)", page)


def test_info_prints_the_header(run: Path) -> None:
    printed = denskit("info", run).output
    assert "scaling.energy_scale" in printed
    assert json.loads(denskit("info", run, "--json").stdout)["model"]["name"] == "equiformer"


def test_resume_of_a_finished_run_and_a_taken_folder(run: Path, mine: Path) -> None:
    taken = denskit("train", "equiformer", f"data.path={mine}", "training.max_steps=3", f"output={run}")
    assert taken.exit_code == 1
    assert "--resume" in taken.stderr


def test_dry_run_prints_a_configuration_that_trains(mine: Path, tmp_path: Path) -> None:
    arguments = ["train", "equiformer", f"data.path={mine}", "-o", tmp_path / "new", "--dry-run", "seed=7"]
    result = denskit(*arguments, "device=cpu")
    config = yaml.safe_load(result.stdout)
    assert (config["seed"], config["device"], config["output"]) == (7, "cpu", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    assert "of training, at " in result.stderr and "ms a step" in result.stderr
    (tmp_path / "again.yaml").write_text(result.stdout, encoding="utf-8")
    assert yaml.safe_load(denskit("train", tmp_path / "again.yaml", "--dry-run").stdout) == config


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["equiformer", "data.path=absent.extxyz"], "absent.extxyz"),
        (["equiformer", "data.pth=mine.extxyz"], "data.path"),
        (["equiformr"], "equiformer"),
        (["md17/equiformer_l2"], "data.molecule"),
        (["equiformer", "training.max_steps=0", "data.path=x"], "training.max_steps"),
        (["equiformer", "data.path=x", "-o", "run"], "give -o or output=, not both"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], said: str, tmp_path: Path) -> None:
    result = denskit("train", *arguments, f"output={tmp_path / 'run'}")
    assert result.exit_code == 1
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_import_of_a_published_checkpoint(reference_dir: Path, tmp_path: Path) -> None:
    hyper_parameters = json.loads((reference_dir / "v1_dens_L2.json").read_text())["hyper_parameters"]
    with np.load(reference_dir / "v1_dens_L2.npz", allow_pickle=False) as case:
        state = {name[6:]: torch.from_numpy(case[name]) for name in case.files if name.startswith("param/")}
    torch.save({"state_dict": state}, tmp_path / "published.pth.tar")
    output = tmp_path / "model.safetensors"
    arguments = ["import", tmp_path / "published.pth.tar", "-o", output]
    assert "--mean" in denskit(*arguments).stderr
    arguments += ["--mean", "-97000", "--std", "5"]
    assert "as YAML" in denskit(*arguments, "--elements", "C,H,O").stderr  # a small one, not of the published sizes
    sizes = {"num_layers": 2, "channels": [16, 8, 4], "feature_channels": [32, 16, 8], "head_channels": [8, 4, 2]}
    sizes |= {"num_heads": 2, "ffn_channels": [24, 12, 8], "num_basis": 16, "radial_hidden": [16, 16]}
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(sizes), encoding="utf-8")
    arguments += ["--model", tmp_path / "model.yaml"]
    result = denskit(*arguments, "--elements", "C,H,O")
    assert result.exit_code == 0, result.output
    header = read_header(output)
    assert header["scaling"]["energy_scale"] == pytest.approx(5 * 0.0433641, rel=1e-6)
    assert header["heads"]["noise"]
    assert "exists already" in denskit(*arguments, "--elements", "C,H,O").stderr
    arguments.append("--force")
    assert "Hh" in denskit(*arguments, "--elements", "C,Hh").stderr
    # the published settings, of which the weights do not show one
    published = {"model": {"name": "equiformer_md17_dens"} | hyper_parameters | {"rescale_degree": True}}
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(published), encoding="utf-8")
    result = denskit(*arguments, "--elements", "C,H,O")
    assert "rescale_degree=True" in result.stdout
    expected = header["model"] | {"rescale_degree": True}
    assert read_header(output)["model"] == expected
    published["model"]["norm_layer"] = "graph"
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(published), encoding="utf-8")
    assert "norm_layer='graph'" in denskit(*arguments, "--elements", "C,H,O").stderr


def test_demo_writes_its_results_and_fails_when_nothing_was_learnt(tmp_path: Path) -> None:
    result = denskit("demo", "--output", tmp_path, "--steps", "1")
    assert result.exit_code == 1, result.output
    assert "FAILED" in result.stderr
    for task in ("without", "with"):
        run = json.loads((tmp_path / f"runs/{task}-DeNS_seed-0/result.json").read_text(encoding="utf-8"))
        assert run["errors"]["test"]["forces_mae_relative_to_zero"] > 0.8
    assert run["noise"]["noise_error_relative_to_zero_with_test_forces"] > 0.8
    assert "of unseen structures" in result.stdout
    assert (tmp_path / "overview.png").stat().st_size > 1000
    again = denskit("demo", "--output", tmp_path, "--steps", "1")
    assert again.exit_code == 1 and "replace it with --force" in again.stderr


def test_bench_times_forces_and_the_training_step_and_changes_nothing(run: Path, mine: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    times = r"(\d\S*) ms per structure \(best (\d\S*)\)"
    result = denskit("bench", run, mine, "--batch-size", 4, "--repeats", 2, "--kernels", "plain")
    assert result.exit_code == 0, result.output
    assert "kernels plain" in result.output
    assert "4 structures, " in result.output
    found = re.findall(rf"^(energies and forces|training step \(dens\), batches of \d+): {times}", result.output, re.M)
    assert len(found) == 2, result.output
    assert all(float(median) >= float(best) > 0 for _, median, best in found)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    alone = denskit("bench", run / "model.safetensors", mine, "--repeats", 1)
    assert "training step" not in alone.output
    assert "energies and forces" in alone.output
