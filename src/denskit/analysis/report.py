"""One HTML page per run: settings, errors, curves.  Self-contained: images are inlined and nothing is fetched."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template

_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .2rem 1.2rem .2rem 0; }
th { border-bottom: 1px solid #999; } td { border-bottom: 1px solid #eee; }
img { max-width: 100%; } pre { background: #f6f6f4; padding: .8rem; overflow: auto; font-size: 13px; }
</style></head><body><h1>$title</h1>
$body
</body></html>
""")


def html_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table; every cell is escaped."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def html_image(path: Path) -> str:
    """A PNG file as an inlined image, named by its file name."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<img alt="{html.escape(path.stem)}" src="data:image/png;base64,{data}">'


def write_page(output: Path, title: str, sections: Iterable[tuple[str, str]]) -> Path:
    """Write a page of (heading, HTML) sections to ``output`` and return it."""
    body = "\n".join(f"<h2>{html.escape(heading)}</h2>\n{content}" for heading, content in sections)
    output.write_text(_PAGE.substitute(title=html.escape(title), body=body), encoding="utf-8")
    return output
