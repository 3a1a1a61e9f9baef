"""One HTML page per run: settings, errors, curves.  Self-contained: images are inlined and nothing is fetched."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template

import numpy as np

from denskit.analysis.plots import plot_learning_curves, read_metrics
from denskit.reading.documents import read_json
from denskit.training.run_folder import RunFolder

TEST_FILE = "test.json"  # errors on the test split, in a run folder
PARITY_FILE = "parity.png"

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


def report_run(run: Path) -> Path:
    """Write ``report.html`` (and ``learning_curves.png``) into a run folder and return its path.

    Errors on the test split and the parity plot appear once ``denskit evaluate`` has written them.
    Raises FileNotFoundError when ``run`` is no run folder.
    """
    folder = RunFolder(run)
    if not folder.config.is_file():
        raise FileNotFoundError(f"{run}: no config.yaml in it; give a run folder made by `denskit train`")
    columns = read_metrics(folder.metrics)
    last = {name: values[np.isfinite(values)] for name, values in columns.items() if name.startswith("valid_")}
    sections = []
    if (run / TEST_FILE).is_file():
        sections.append(("Test", _numbers(read_json(run / TEST_FILE))))
    sections.append(("Last validation", _numbers({name: values[-1] for name, values in last.items() if len(values)})))
    sections.append(("Learning curves", html_image(plot_learning_curves({run.name: run}, run / "learning_curves.png"))))
    if (run / PARITY_FILE).is_file():
        sections.append(("Test, predicted against reference", html_image(run / PARITY_FILE)))
    for heading, path in (("Configuration", folder.config), ("Environment", folder.environment)):
        sections.append((heading, f"<pre>{html.escape(path.read_text(encoding='utf-8'))}</pre>"))
    return write_page(run / "report.html", f"denskit run {run.name}", sections)


def _numbers(values: Mapping[str, object]) -> str:
    rows = [(name, f"{value:.4g}" if isinstance(value, float) else str(value)) for name, value in values.items()]
    return html_table(["quantity", "value"], rows)
