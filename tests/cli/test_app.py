"""The program as a whole: help is fast and complete, errors are messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import denskit
from denskit.cli import app

VERBS = (
    "info train evaluate study compare predict relax md stability crystal report plot import export demo doctor "
    "presets data runs"
).split()


def test_help_names_every_verb_without_importing_torch() -> None:
    code = "import sys; from typer.testing import CliRunner; from denskit.cli import app\n"
    code += "print(CliRunner().invoke(app, ['--help']).output)\n"
    code += "sys.exit(any(name in sys.modules for name in ('torch', 'ase', 'matplotlib', 'pydantic')))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, f"--help imports a heavy package; {result.stderr}"
    missing = [verb for verb in VERBS if f" {verb} " not in result.stdout]
    assert not missing


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    result = CliRunner().invoke(app, [verb, "--help"])
    assert result.exit_code == 0
    assert "denskit" in result.output


def test_a_users_error_is_a_message_and_exit_code_1(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["info", str(tmp_path / "absent.safetensors")])
    assert result.exit_code == 1
    assert "absent.safetensors" in result.stderr
    assert "Traceback" not in result.stderr


def test_settings_are_described() -> None:
    shown = CliRunner().invoke(app, ["presets", "settings", "training.log"])
    assert shown.exit_code == 0 and "training.log_every" in shown.output and "metrics.csv" in shown.output
    for section in ("task=ndem", "task.ndem"):
        shown = CliRunner().invoke(app, ["presets", "settings", section])
        assert "task.smallest_noise" in shown.output and "task=dens" not in shown.output, shown.output
    unknown = CliRunner().invoke(app, ["presets", "settings", "nowhere"])
    assert unknown.exit_code == 1 and "no setting has 'nowhere'" in unknown.stderr


def test_debug_shows_the_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DENSKIT_DEBUG", "1")
    result = CliRunner().invoke(app, ["presets", "show", "equiformr"])
    assert isinstance(result.exception, ValueError)


def test_presets_are_listed_and_shown() -> None:
    listed = CliRunner().invoke(app, ["presets"]).output
    assert "md17/equiformer_l3_dens" in listed
    shown = CliRunner().invoke(app, ["presets", "show", "demo"])
    assert shown.exit_code == 0
    assert "model:" in shown.output
    misspelt = CliRunner().invoke(app, ["presets", "show", "equiformr"])
    assert misspelt.exit_code == 1
    assert "did you mean equiformer" in misspelt.stderr


def test_the_version() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"denskit {denskit.__version__}\n")


def test_doctor_reports_versions() -> None:
    output = CliRunner().invoke(app, ["doctor"]).output
    assert "torch" in output
    assert "CPU threads" in output


def test_a_verb_of_a_group_is_named_with_it() -> None:
    result = CliRunner().invoke(app, ["convert", "x.npz", "-o", "x"])
    assert result.exit_code == 2
    assert "Did you mean denskit data convert?" in result.output
