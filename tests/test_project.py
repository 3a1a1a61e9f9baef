"""The project itself: one version, sizes that CI really checks, mutations that still fit the code."""

from __future__ import annotations

import ast
import importlib.util
import runpy
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import denskit

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


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
    assert PROJECT["version"] == denskit.__version__
    assert f"## [{denskit.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"\nversion: {denskit.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f'set version = "{denskit.__version__}"' in (ROOT / "recipe" / "meta.yaml").read_text("utf-8")


def test_defaults_of_settings_are_given_by_name() -> None:
    """Type checkers without pydantic's plugin take ``Field(0.5)`` for a setting that must be given."""
    texts = {path: path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")}
    fields = [
        (path.name, node.lineno, len(node.args))
        for path, text in texts.items()
        if "Field(" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Field"
    ]
    assert len(fields) > 100
    assert [(file, line) for file, line, given in fields if given] == []


def test_oldest_versions_are_those_of_the_project() -> None:
    """Those that `make test-minimum` installs and those of the conda recipe."""
    oldest = dict(requirement.lower().split(">=") for requirement in PROJECT["dependencies"])
    torch = oldest.pop("torch")
    assert f"OLDEST_TORCH := torch=={torch}" in (ROOT / "Makefile").read_text("utf-8")
    lines = (ROOT / "constraints-min.txt").read_text("utf-8").lower().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    assert {name: pinned[name] for name in oldest if not f"{pinned[name]}.".startswith(f"{oldest[name]}.")} == {}
    recipe = (ROOT / "recipe" / "meta.yaml").read_text("utf-8").replace("matplotlib-base", "matplotlib")
    wanted = [f"    - {name} >={version}\n" for name, version in [*oldest.items(), ("pytorch", torch)]]
    assert [line for line in wanted if line not in recipe] == []


@pytest.mark.parametrize(("lines", "status"), [(80, 0), (81, 1)])
def test_long_function_fails_the_structure_check(checker: ModuleType, tmp_path: Path, lines: int, status: int) -> None:
    (tmp_path / "src" / "long.py").write_text("def f():\n" + "    pass\n" * (lines - 1))
    assert checker.main() == status


@pytest.mark.parametrize(("lines", "status"), [(600, 0), (601, 1)])
def test_long_file_fails_the_structure_check(checker: ModuleType, tmp_path: Path, lines: int, status: int) -> None:
    (tmp_path / "src" / "long.py").write_text("x = 1\n" * lines)
    assert checker.main() == status


def test_every_mutation_finds_its_text_and_its_test() -> None:
    """`make mutations` takes minutes and runs seldom: what it names must still be there."""
    lost = []
    for mutation in runpy.run_path(str(ROOT / "scripts" / "check_mutations.py"))["MUTATIONS"]:
        source = (ROOT / "src" / "denskit" / mutation.file).read_text("utf-8")
        file, _, test = mutation.test.partition("::")
        if source.count(mutation.before) != 1 or f"\ndef {test}(" not in (ROOT / file).read_text("utf-8"):
            lost.append(mutation.mistake)
    assert lost == []
