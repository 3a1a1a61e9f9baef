"""The documentation is true: its Python runs, its links lead somewhere, its commands have these options.

The ```python blocks of one page run in order in one namespace, in an empty folder.  A line ``<!-- not run: reason -->``
directly above a block excludes it.  Commands are parsed, not run: most need data or hours.  Those of the first page
run, on fewer steps.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import denskit
from denskit.cli import app
from denskit.cli.output import with_common_options
from denskit.evaluation.study.config import load_study
from denskit.evaluation.study.runs import runs_of
from denskit.training.load_config import load_config

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "llms.txt")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"^(?P<indent> *)```python\n(?P<code>.*?)^ *```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: .+ -->\s*\Z")
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?: {4})?(?:exec )?(?:torchrun .* -m )?denskit (.+)$", re.MULTILINE)
SHELL = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETTINGS = re.compile(r"^\| [^|]+ \| `([\w.]+=[^`]+)` \|$", re.MULTILINE)  # rows of tables: what one wants, what to say
STUDY = re.compile(r"^```yaml\n((?:(?!```).*\n)*?variants:(?:(?!```).*\n)*)```$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:|#|gallery/index.rst)([^)#\s]+)")  # the build makes the gallery
SECTION = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")  # a link to a heading of this page or of another
HEADING = re.compile(r"^#{1,3} (.+)$", re.MULTILINE)  # those that have an anchor on the site


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


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub and the site make them."""
    headings = HEADING.findall(FENCED.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_headings(page: Path) -> None:
    sections = SECTION.findall(FENCED.sub("", page.read_text("utf-8")))
    named = [(page if not name else (page.parent / name).resolve(), anchor) for name, anchor in sections]
    pages = {to: anchors(to) for to, _ in named if to.suffix == ".md"}
    assert [f"{to.name}#{anchor}" for to, anchor in named if to in pages and anchor not in pages[to]] == []


def test_blocks_finds_what_runs_and_leaves_what_does_not() -> None:
    text = "# Page\n```python\nx = 1\n```\n<!-- not run: downloads -->\n```python\nx = 2\n```\n```bash\nx\n```\n"
    assert blocks(text) == ["\n\nx = 1\n"]


def commands(page: Path) -> list[list[str]]:
    """The words after ``denskit`` of every command that a page shows, without shell comments and redirections."""
    shown = (shlex.split(line, comments=True) for line in COMMAND.findall(page.read_text("utf-8")))
    return [words[: words.index(">")] if ">" in words else words for words in shown]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_these_options(page: Path) -> None:
    for words in commands(page):
        command = with_common_options(typer.main.get_command(app))
        while words and hasattr(command, "commands"):
            assert words[0] in command.commands, f"no verb {words[0]}"
            command, words = command.commands[words[0]], words[1:]
        command.make_parser(command.context_class(command)).parse_args(words)  # raises for an unknown option


@pytest.mark.one_thread
def test_commands_of_the_first_page_run(tmp_path: Path) -> None:
    first, *blocks = SHELL.findall((ROOT / "docs" / "start.md").read_text("utf-8"))
    assert first.startswith("pip install")
    script = "".join(blocks).replace("examples/", f"{ROOT}/examples/")
    assert script.count("max_steps=1200") == script.count("--time 1 ") == 1
    script = script.replace("max_steps=1200", "max_steps=4").replace("--time 1 ", "--time 0.005 ")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", script], cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "predicted.extxyz").is_file()


def test_documented_trainings_are_valid_configurations() -> None:
    trainings = [words[1:] for page in PAGES for words in commands(page) if words[0] == "train"]
    shipped = [words for words in trainings if not words[0].endswith(".yaml") and "..." not in words]
    assert len(shipped) >= 5
    for preset, *overrides in shipped:
        load_config(preset, [word for word in overrides if "=" in word])


def test_documented_studies_are_study_files(tmp_path: Path) -> None:
    texts = [text for page in PAGES for text in STUDY.findall(page.read_text("utf-8"))]
    assert len(texts) >= 4
    for text in texts:
        (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
        study = load_study(tmp_path / "own.yaml")
        assert (study.title == "own") == ("title:" not in text)
        for run in runs_of(study):
            run.config()  # raises for an unknown setting


def test_documented_settings_are_valid() -> None:
    rows = [row.split() for page in PAGES for row in SETTINGS.findall(page.read_text("utf-8"))]
    assert len(rows) >= 5
    for overrides in rows:
        own_files = any(word.startswith("data.train=") for word in overrides)
        load_config("equiformer", [*([] if own_files else ["data.path=mine.extxyz"]), *overrides])


def test_the_page_of_settings_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "make_settings_page.py"))
    assert script["PAGE"].read_text("utf-8") == script["page"](), "run: python scripts/make_settings_page.py"


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    documented = set(re.findall(r"^\.\. auto(?:function|class):: ([\w.]+)$", page, re.MULTILINE))
    public = {name: getattr(denskit, name) for name in denskit.__all__}
    assert [name for name, thing in public.items() if f"{thing.__module__}.{thing.__name__}" not in documented] == []
