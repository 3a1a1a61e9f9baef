"""``denskit runs``: the table of runs, and their removal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli_calls import denskit
from denskit.files import locked


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """runs/first and runs/deeper/second, finished, and a folder that is no run."""
    monkeypatch.chdir(tmp_path)
    for name in ("first", "deeper/second"):
        done = denskit(
            "train", "demo", "data=embedded", "data.molecule=ethanol", "training.max_steps=2", f"output=runs/{name}"
        )
        assert done.exit_code == 0, done.output
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / "notes" / "config.yaml").write_text("mine: 1\n")
    return tmp_path


def test_runs_are_listed_and_deleted(folder: Path) -> None:
    listed = json.loads(denskit("runs", "--json").stdout)["runs"]
    assert [run["path"] for run in listed] == ["runs/deeper/second", "runs/first"]
    assert {(run["state"], run["step"], run["model"], run["data"]) for run in listed} == {
        ("finished", 2, "equiformer", "embedded ethanol")
    }
    assert listed[0]["validation"]["forces_mae_meV_per_A"] > 0 and listed[0]["test"] == {}
    compare = ("compare", "a=runs/first", "b=runs/deeper/second", "-o", "compared")
    assert len(json.loads(denskit(*compare, "--json").stdout)["runs"]) == 2
    refused = denskit(*compare)
    assert refused.exit_code == 1 and "table.md exists already" in refused.stderr
    assert denskit(*compare, "--force").exit_code == 0
    twice = denskit("compare", "runs/first", "runs/first")
    assert twice.exit_code == 1 and "have the same settings and seed" in twice.stderr
    shown = denskit("runs", "runs").output
    assert "runs/first" in shown and "finished" in shown and "notes" not in shown
    damaged = Path("runs/damaged")
    damaged.mkdir()
    for name, text in (("config.yaml", "model: 3\n"), ("environment.json", "{}")):
        (damaged / name).write_text(text)
    told = denskit("runs", "runs")
    assert told.exit_code == 0 and "runs/first" in told.stdout
    assert "left out: runs/damaged/config.yaml does not say what is trained; it is damaged" in told.stderr
    shutil.rmtree(damaged)
    with locked(Path("runs/first")):
        assert {run["state"] for run in json.loads(denskit("runs", "--json").stdout)["runs"]} == {"finished", "running"}
        refused = denskit("runs", "delete", "runs/first", "--force")
        assert refused.exit_code == 1 and "is in use by" in refused.stderr
    assert "not confirmed" in denskit("runs", "delete", "runs/first", "--json", answer="").stdout
    assert denskit("runs", "delete", "runs/first", answer="n\n").exit_code == 0 and Path("runs/first").is_dir()
    assert denskit("runs", "delete", "runs/first", answer="y\n").exit_code == 0 and not Path("runs/first").exists()
    refused = denskit("runs", "delete", "runs/deeper/second", "runs/notes", "--force")
    assert refused.exit_code == 1 and "runs/notes holds no run" in refused.stderr
    assert Path("runs/deeper/second").is_dir() and Path("runs/notes/config.yaml").is_file()


def test_the_working_directory_is_not_deleted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "runs" / "first" / "checkpoints")
    refused = denskit("runs", "delete", "..", "--force")
    assert refused.exit_code == 1 and "working directory" in refused.stderr
    assert (folder / "runs" / "first" / "config.yaml").is_file()


def test_no_runs_and_no_folder(tmp_path: Path) -> None:
    assert "no runs in" in denskit("runs", tmp_path).output
    assert denskit("runs", tmp_path / "absent").exit_code == 1
