"""The sdist and the wheel: what they hold, and that the wheel works in an empty environment."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import denskit

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 3_000_000
pytestmark = pytest.mark.one_thread


def run(*command: str | Path, cwd: Path) -> str:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    for tool in ("build", "hatchling", "hatch_fancy_pypi_readme"):
        pytest.importorskip(tool)
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


def test_wheel_holds_the_package_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"denskit", f"denskit-{denskit.__version__}.dist-info"}
    shipped = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    assert {name for name in shipped if "__pycache__" not in name} == {n for n in names if n.startswith("denskit/")}
    assert wheel.stat().st_size < MOST_BYTES


def test_sdist_holds_sources_tests_and_documents(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = [
        "LICENSES.md",
        "CITATION.cff",
        "Makefile",
        "docs/start.md",
        "tests/conftest.py",
        "examples/data/SOURCES.md",
    ]
    assert [name for name in wanted if name not in names] == []
    assert [name for name in names if re.search(r"docs/gallery|/runs/|\.venv|__pycache__", name)] == []


def test_description_has_no_link_that_an_index_cannot_follow(wheel: Path) -> None:
    (name,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("METADATA"))
    metadata = email.message_from_bytes(zipfile.ZipFile(wheel).read(name))
    text = metadata.get_payload()
    assert "# Denskit" in text
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", text) == []
    assert metadata["Author"]
    assert metadata.get_all("License-File") == ["LICENSE", "LICENSES.md"]


def environment(python: str | Path, folder: Path, wheel: Path) -> Path:
    """An empty environment with the wheel and nothing else; its folder of programs."""
    run(python, "-m", "venv", folder, cwd=folder.parent)
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    run(programs / "python", "-m", "pip", "install", "-qq", "--no-deps", "--no-index", wheel, cwd=folder)
    return programs


def test_wheel_trains_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Dependencies are those of this environment; the package is that of the wheel."""
    programs = environment(sys.executable, tmp_path / "empty", wheel)
    inside = Path(
        run(programs / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    )
    # behind the wheel, which comes first
    (inside / "zz_dependencies.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})")
    place = run(programs / "python", "-c", "import denskit; print(denskit.__file__)", cwd=tmp_path)
    assert str(inside) in place
    assert denskit.__version__ in run(programs / "denskit", "--version", cwd=tmp_path)
    assert "equiformer" in run(programs / "denskit", "presets", cwd=tmp_path)
    command = [
        "training.max_steps=4",
        "training.batch_size=2",
        "data.split={train: 8, valid: 4, test: 4}",
        "output=run",
    ]
    run(programs / "denskit", "train", "demo", "task=dens", *command, cwd=tmp_path)
    assert "forces" in run(programs / "denskit", "evaluate", "run", cwd=tmp_path)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_wheel_installs_and_compiles_on(version: str, wheel: Path, tmp_path: Path) -> None:
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "--version"], capture_output=True).returncode:
        pytest.skip(f"no Python {version} here")
    programs = environment(python, tmp_path / "empty", wheel)
    code = (
        "import compileall, denskit, pathlib, sys; print(denskit.__version__); "
        "sys.exit(not compileall.compile_dir(pathlib.Path(denskit.__file__).parent, quiet=1, force=True))"
    )
    assert run(programs / "python", "-W", "error", "-c", code, cwd=tmp_path).strip() == denskit.__version__
