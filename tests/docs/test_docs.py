"""The documentation is true: its Python runs, its links lead somewhere, its commands exist.

The ```python blocks of one page run in order in one namespace, in an empty folder.  A line ``<!-- not run: reason -->``
directly above a block excludes it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^(?P<indent> *)```python\n(?P<code>.*?)^ *```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: .+ -->\s*\Z")
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
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
