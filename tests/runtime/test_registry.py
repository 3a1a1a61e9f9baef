"""Entries of installed packages: found when first looked up, and left out with one warning where they are wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from denskit.runtime import registry
from denskit.runtime.registry import Registry
from packages import install


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages, on the path of this process."""
    monkeypatch.syspath_prepend(tmp_path)
    registry.installed.cache_clear()
    yield tmp_path
    registry.installed.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("first_pack", "second_pack")]:
        del sys.modules[name]


def numbers() -> Registry[int]:
    """Numbers by name; those of packages are to be above 10."""
    return Registry("number", {"one": 1}, lambda name, entry: None if entry > 10 else f"found {entry}")


def test_an_entry_is_imported_when_a_name_is_looked_up(site: Path) -> None:
    install(
        site, "first_pack", {"entries": "TWELVE = 12\n"}, {"denskit.numbers": {"twelve": "first_pack.entries:TWELVE"}}
    )
    found = numbers()
    found["two"] = 2
    assert "first_pack.entries" not in sys.modules
    assert found["twelve"] == 12
    assert dict(found) == {"one": 1, "two": 2, "twelve": 12}
    del found["twelve"]
    assert "twelve" not in found and len(found) == 2


def test_what_a_script_says_comes_first(site: Path) -> None:
    install(
        site, "first_pack", {"entries": "TWELVE = 12\n"}, {"denskit.numbers": {"twelve": "first_pack.entries:TWELVE"}}
    )
    found = numbers()
    found["twelve"] = 13
    assert found["twelve"] == 13


@pytest.mark.parametrize(
    ("module", "name", "value", "reason"),
    [
        (
            "import absent_thing",
            "bad",
            "X",
            r"first_pack.entries:X cannot be imported \(ModuleNotFoundError: No .*absent",
        ),
        ("Y = 12", "bad", "X", r"first_pack.entries:X cannot be imported \(AttributeError: .*'X'"),
        ("raise SystemExit('stop')", "bad", "X", r"cannot be imported \(SystemExit: stop"),
        ("1/0", "bad", "X", r"cannot be imported \(ZeroDivisionError: division"),
        ("X = 3", "bad", "X", "found 3"),
        ("X = 12", "one", "X", "Denskit has a number of this name, so the package must choose another"),
    ],
)
def test_a_wrong_entry_is_left_out_with_one_warning(
    site: Path, module: str, name: str, value: str, reason: str
) -> None:
    install(
        site,
        "first_pack",
        {"entries": module, "good": "GOOD = 20\n"},
        {"denskit.numbers": {name: f"first_pack.entries:{value}", "good": "first_pack.good:GOOD"}},
    )
    found = numbers()
    with pytest.warns(
        UserWarning, match=f"the number '{name}' of the package first_pack 1.2 is left out: .*{reason}"
    ) as said:
        assert dict(found) == {"one": 1, "good": 20}
    assert len(said) == 1
    with warnings.catch_warnings(action="error"):
        assert "bad" not in found
    if name == "bad":  # what a file with this name is told
        assert "'bad' of the package first_pack 1.2 is left out" in found.absent("bad")


def test_of_two_packages_with_one_name_the_second_is_left_out(site: Path) -> None:
    install(site / "a", "first_pack", {"entries": "X = 12\n"}, {"denskit.numbers": {"x": "first_pack.entries:X"}})
    install(site / "b", "second_pack", {"entries": "X = 13\n"}, {"denskit.numbers": {"x": "second_pack.entries:X"}})
    sys.path[:0] = [str(site / "a"), str(site / "b")]
    try:
        with pytest.warns(
            UserWarning, match=r"package second_pack 1.2 is left out: the package first_pack 1.2 gives one"
        ):
            assert numbers()["x"] == 12
    finally:
        sys.path.remove(str(site / "a"))
        sys.path.remove(str(site / "b"))


def test_damaged_metadata_stop_nothing(site: Path) -> None:
    install(site, "first_pack", {}, {})
    (site / "first_pack-1.2.dist-info" / "entry_points.txt").write_bytes(b"[denskit.numbers]\nx = \xff\xfe\n")
    with pytest.warns(
        UserWarning, match="numbers of installed packages are left out: their entry points cannot be read"
    ):
        assert dict(numbers()) == {"one": 1}


def test_metadata_without_a_name_are_named_by_the_module(site: Path) -> None:
    install(site, "first_pack", {}, {"denskit.numbers": {"x": "first_pack.absent:X"}})
    (site / "first_pack-1.2.dist-info" / "METADATA").unlink()
    with pytest.warns(UserWarning, match=r"of the package first_pack.absent is left out"):
        assert dict(numbers()) == {"one": 1}


def test_an_unknown_name_is_told_what_to_do() -> None:
    said = numbers().absent("mine")
    assert said.startswith("no number 'mine' here: it is of a package that is not installed here, or of another")
    assert said.endswith("(one)")


MODULE = """
from denskit.models import MODELS, ModelEntry
from denskit.tasks import TASKS, DeNS, DeNSConfig, TaskEntry
from denskit.data import DATASETS
from typing import Literal

class OwnConfig(DeNSConfig):
    name: Literal["own"] = "own"

class ESENLikeConfig(MODELS["esen"].config):
    name: Literal["like_esen"] = "like_esen"

MODEL = ModelEntry(ESENLikeConfig, MODELS["esen"].backbone)
TASK = TaskEntry(OwnConfig, DeNS)
DATA = DATASETS["embedded"]
"""
FIRST = """
import {first}
import {second}
from denskit.models import MODELS
from denskit.tasks import TASKS
from denskit.data import DATASETS
print([name for names in (MODELS, TASKS, DATASETS) for name in names if "own" in name or "like" in name])
"""


@pytest.mark.one_thread
@pytest.mark.parametrize("order", [("denskit.models", "first_pack.entries"), ("first_pack.entries", "denskit.models")])
def test_package_and_denskit_may_import_each_other_in_any_order(tmp_path: Path, order: tuple[str, str]) -> None:
    points = {"models": {"like_esen": "MODEL"}, "tasks": {"own": "TASK"}, "datasets": {"own_data": "DATA"}}
    groups = {
        f"denskit.{group}": {name: f"first_pack.entries:{entry}" for name, entry in named.items()}
        for group, named in points.items()
    }
    install(tmp_path, "first_pack", {"entries": MODULE}, groups)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", FIRST.format(first=order[0], second=order[1])],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "['like_esen', 'own', 'own_data']\n", done.stderr
