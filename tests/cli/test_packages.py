"""A model, a task and a dataset of an installed package, in every process that a command starts.

The package holds the examples of the pages on adding a model, a task and a dataset.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import ase.io
import pytest
import yaml

from denskit.data import DataConfig, load_data
from denskit.models.model_file import load_model
from denskit.training.load_config import load_config
from packages import install

DOCS = Path(__file__).resolve().parents[2] / "docs"
FILE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENTRY_POINTS = re.compile(r'^\[project\.entry-points\."(.+)"\]\n(\w+) = "(.+)"$', re.MULTILINE)
PAGES = ("adding_a_model", "adding_a_task", "adding_a_dataset")
SETTINGS = {
    "model": {"name": "pairwise", "cutoff": 3.0, "num_channels": 4},
    "task": {"name": "rattled", "sigma": 0.01},
    "training": {"batch_size": 4, "max_steps": 6, "best_by": "energy", "evaluate_every": "6 steps"},
    "device": "cpu",
}  # fmt: skip
EMBEDDED = {
    "name": "embedded",
    "molecule": "ethanol",
    "references": "mean",
    "split": {"train": 20, "valid": 4, "test": 4},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package of the pages, and one module of it that cannot be imported."""
    folder = tmp_path_factory.mktemp("site")
    modules, groups = {"broken": "import absent_thing\n"}, {"denskit.models": {"broken": "my_forces.broken:BROKEN"}}
    for page in PAGES:
        text = (DOCS / f"{page}.md").read_text("utf-8")
        ((group, name, value),) = ENTRY_POINTS.findall(text)
        module = value.partition(":")[0].removeprefix("my_forces.")
        (entry,) = [code for code in FILE.findall(text) if f"\n{value.partition(':')[2]} = " in code] or [""]
        modules[module] = FILE.findall(text)[0] + entry
        groups.setdefault(group, {})[name] = value
    install(folder, "my_forces", modules, groups)
    return folder


def called(site: Path, *words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own, where the package is installed."""
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "denskit", *map(str, words)],
        cwd=folder, env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def written(folder: Path, name: str, content: dict) -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training with the model and the task."""
    folder = tmp_path_factory.mktemp("runs")
    own = written(folder, "own.yaml", {**SETTINGS, "data": EMBEDDED})
    said = called(site, "train", own, "output=run", folder=folder).stderr
    assert (
        said.count("the model 'broken' of the package my_forces 1.2 is left out: my_forces.broken:BROKEN cannot") == 1
    )
    assert "No module named 'absent_thing'" in said
    return folder / "run"


@pytest.mark.one_thread
def test_a_run_with_model_and_task_of_a_package_predicts(run: Path, site: Path, tmp_path: Path) -> None:
    header = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
    assert (header["model"]["name"], header["task"]["name"], header["task"]["sigma"]) == ("pairwise", "rattled", 0.01)
    structures = Path(load_data.__code__.co_filename).with_name("embedded") / "ethanol.npz"
    called(site, "predict", run, structures, "-o", "labelled.extxyz", folder=tmp_path)
    assert len(ase.io.read(tmp_path / "labelled.extxyz", ":2")) == 2


@pytest.mark.one_thread
def test_where_the_package_is_not_installed_it_is_asked_for(run: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"model.safetensors: no model 'pairwise' here: it is of a package that is not ins"
    ):
        load_model(run)
    with pytest.raises(
        ValueError, match=r"config.yaml: no model 'pairwise' here: it is of a package that is not installed"
    ):
        load_config(run)
    content = yaml.safe_load((run / "config.yaml").read_text("utf-8")) | {"model": {"name": "equiformer"}}
    written(tmp_path, "config.yaml", content)
    with pytest.raises(
        ValueError, match=r"config.yaml: no task 'rattled' here: it is of a package that is not installed"
    ):
        load_config(tmp_path)
    with pytest.raises(ValueError, match=r"data.name=jsonl: no dataset 'jsonl' here: it is of a package that is not"):
        load_data(DataConfig(name="jsonl"), seed=0)


@pytest.mark.one_thread
def test_a_study_trains_them_in_processes_of_its_own(site: Path, tmp_path: Path) -> None:
    """And reads the dataset of the package."""
    water = {"z": [8, 1, 1], "xyz": [[0, 0, 0], [1.8, 0, 0], [-0.4, 1.75, 0]]}
    frames = [
        water | {"e": -76.0 + 0.001 * number, "f": [[0.01, 0.001 * number, 0], [-0.01, -0.001 * number, 0], [0, 0, 0]]}
        for number in range(30)
    ]
    for number, frame in enumerate(frames):
        frame["xyz"] = [[0, 0, 0], [1.8 + 0.01 * number, 0, 0], [-0.4, 1.75, 0]]
    (tmp_path / "water.jsonl").write_text("\n".join(map(json.dumps, frames)), encoding="utf-8")
    data = {"name": "jsonl", "path": str(tmp_path / "water.jsonl"), "split": {"train": 20, "valid": 4, "test": 6}}
    base = written(tmp_path, "own.yaml", {**SETTINGS, "data": data})
    variants = {"less": {"task.sigma": 0.005}}
    study = written(tmp_path, "study.yaml", {"base": str(base), "variants": variants, "seeds": [0]})
    called(site, "study", study, "-o", "found", folder=tmp_path)
    (model,) = (tmp_path / "found").rglob("model.safetensors")
    config = yaml.safe_load((model.parent / "config.yaml").read_text("utf-8"))
    assert (config["task"]["name"], config["task"]["sigma"], config["data"]["name"]) == ("rattled", 0.005, "jsonl")
