"""The project itself: one version, sizes that CI really checks, everything in the wheel that the code reads."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import denskit

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_structure", ROOT / "scripts" / "check_structure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "src").mkdir()
    return module


def test_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == denskit.__version__
    assert f"## [{denskit.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


@pytest.mark.parametrize(("lines", "status"), [(80, 0), (81, 1)])
def test_long_function_fails_the_structure_check(checker: ModuleType, tmp_path: Path, lines: int, status: int) -> None:
    (tmp_path / "src" / "long.py").write_text("def f():\n" + "    pass\n" * (lines - 1))
    assert checker.main() == status


@pytest.mark.parametrize(("lines", "status"), [(600, 0), (601, 1)])
def test_long_file_fails_the_structure_check(checker: ModuleType, tmp_path: Path, lines: int, status: int) -> None:
    (tmp_path / "src" / "long.py").write_text("x = 1\n" * lines)
    assert checker.main() == status
