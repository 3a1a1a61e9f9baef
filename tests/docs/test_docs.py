"""The documentation is true: its Python runs, its links lead somewhere, its commands exist.

The ```python blocks of one page run in order in one namespace, in an empty folder.  A line ``<!-- not run: reason -->``
directly above a block excludes it.
"""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest
import typer

from denskit.cli import app
from denskit.training.load_config import load_config

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^(?P<indent> *)```python\n(?P<code>.*?)^ *```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: .+ -->\s*\Z")
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?: {4}|torchrun .* -m )?denskit (.+)$", re.MULTILINE)
SETTINGS = re.compile(r"^\| [^|]+ \| `([\w.]+=[^`]+)` \|$", re.MULTILINE)  # rows of tables: what one wants, what to say
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:|#)([^)#\s]+)")


def blocks(text: str) -> list[str]:
    """The Python blocks of a page that are to run, behind as many empty lines as precede them (for tracebacks)."""
    return [
        "\n" * (text[: match.start()].count("\n") + 1) + match["code"]
        for match in BLOCK.finditer(text)
        if not NOT_RUN.search(text[: match.start()])
    ]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page.read_text("utf-8"))], ids=lambda page: page.name
)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": f"docs_{page.stem}"}
    for code in blocks(page.read_text("utf-8")):
        exec(compile(code, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    text = FENCED.sub("", page.read_text("utf-8"))
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []


def test_blocks_finds_what_runs_and_leaves_what_does_not() -> None:
    text = "# Page\n```python\nx = 1\n```\n<!-- not run: downloads -->\n```python\nx = 2\n```\n```bash\nx\n```\n"
    assert blocks(text) == ["\n\nx = 1\n"]


def commands(page: Path) -> list[list[str]]:
    """The words after ``denskit`` of every command that a page shows, without shell comments and redirections."""
    shown = (shlex.split(line, comments=True) for line in COMMAND.findall(page.read_text("utf-8")))
    return [words[: words.index(">")] if ">" in words else words for words in shown]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    verbs = typer.main.get_command(app).commands
    assert [words for words in commands(page) if words[0] not in verbs] == []


def test_documented_trainings_are_valid_configurations() -> None:
    trainings = [words[1:] for page in PAGES for words in commands(page) if words[0] == "train"]
    shipped = [words for words in trainings if not words[0].endswith(".yaml") and "..." not in words]
    assert len(shipped) >= 5
    for preset, *overrides in shipped:
        load_config(preset, [word for word in overrides if not word.startswith("--")])


def test_documented_settings_are_valid() -> None:
    rows = [row.split() for page in PAGES for row in SETTINGS.findall(page.read_text("utf-8"))]
    assert len(rows) >= 5
    for overrides in rows:
        own_files = any(word.startswith("data.train=") for word in overrides)
        load_config("equiformer", [*([] if own_files else ["data.path=mine.extxyz"]), *overrides])


def test_the_page_of_settings_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "make_settings_page.py"))
    assert script["PAGE"].read_text("utf-8") == script["page"](), "run: python scripts/make_settings_page.py"
