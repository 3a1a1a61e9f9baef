"""The HTML page: sections of text, tables, pictures and scenes in one file that fetches nothing."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template

from matplotlib.figure import Figure

from denskit.analysis.plots import png_of
from denskit.analysis.scenes import Scene

VIEWER = "3Dmol-2.5.5.min.js"  # from npm, unchanged; its licence lies beside it

_WIDTH = 96  # pixels of the page an inch of a figure

_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,"><title>$title</title>
<style>
$style</style></head><body><h1>$title</h1>
$body
$scripts</body></html>
""")
_SCENE = Template("""<figure class="scene" data-name="$name"><div class="stage"></div>
<div class="controls">$controls</div><output></output>
<script type="application/json">$document</script>
<figcaption>$legend$caption</figcaption></figure>""")


@dataclass(frozen=True)
class Picture:
    """A figure with its caption; ``name`` is that of its PNG file."""

    name: str
    figure: Figure
    caption: str = ""


Part = str | Picture | Scene  # str: HTML


@dataclass(frozen=True)
class Section:
    """A heading and its parts: HTML, pictures, scenes."""

    title: str
    parts: Sequence[Part]


def write_page(title: str, sections: Sequence[Section]) -> str:
    """The page as text."""
    body = "\n".join(f"<h2>{html.escape(section.title)}</h2>\n{html_of(section.parts)}" for section in sections)
    scripts = ""
    if '<figure class="scene"' in body:
        scripts = "".join(f"<script>\n{_text(name)}</script>\n" for name in (VIEWER, "viewer.js"))
    return _PAGE.substitute(title=html.escape(title), style=_text("page.css"), body=body, scripts=scripts)


def html_of(parts: Iterable[Part]) -> str:
    """Parts of a section as HTML."""
    return "\n".join(part if isinstance(part, str) else _html_of(part) for part in parts)


def paragraph(text: str) -> str:
    """A paragraph; the text is escaped."""
    return f"<p>{html.escape(text).replace('/Å', '/&NoBreak;Å')}</p>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; every cell is escaped, numbers are aligned to the right."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>\n" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def listed(lines: Iterable[str], kind: str = "") -> str:
    """A list of lines, each escaped; ``kind`` is its class in page.css."""
    return f'<ul class="{kind}">' + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def folded(summary: str, content: str) -> str:
    """HTML that a click unfolds; the summary is escaped."""
    return f"<details><summary>{html.escape(summary)}</summary>\n{content}\n</details>"


def verbatim(text: str) -> str:
    """Text as it is, such as YAML."""
    return f"<pre>{html.escape(text)}</pre>"


def _cell(text: str) -> str:
    number = text[:1] in "+-0123456789" and text[:1] != ""
    return f'<td class="number">{html.escape(text)}</td>' if number else f"<td>{html.escape(text)}</td>"


def _html_of(part: Picture | Scene) -> str:
    if isinstance(part, Scene):
        return _scene(part)
    data = base64.b64encode(png_of(part.figure)).decode("ascii")
    width = round(_WIDTH * part.figure.get_figwidth())
    image = f'<img alt="{html.escape(part.name)}" width="{width}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{html.escape(part.caption)}</figcaption></figure>"


def _scene(scene: Scene) -> str:
    legend = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{html.escape(meaning)}</span>'
        for colour, meaning in scene.legend.items()
    )
    last = len(scene.frames) - 1
    play = '<button type="button">Play</button>' if scene.control == "play" else ""
    slider = f'<input type="range" min="0" max="{last}" value="{scene.first}" aria-label="frame">' if last else ""
    return _SCENE.substitute(
        name=html.escape(scene.name),
        controls=play + slider,
        document=json.dumps(scene.document(), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c"),
        legend=legend,
        caption=html.escape(f"{scene.title}. {scene.caption}".strip()),
    )


@cache
def _text(name: str) -> str:
    return (files(__package__) / "viewer" / name).read_text(encoding="utf-8")
