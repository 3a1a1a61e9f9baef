"""The table of a study as Markdown, LaTeX and for the terminal."""

from __future__ import annotations

import math
from pathlib import Path

from rich.markup import escape
from rich.table import Column as RichColumn
from rich.table import Table

from denskit.evaluation.study.config import FORCES, METRICS
from denskit.evaluation.study.results import ROUNDING, Column, Results, Row, as_csv, means_as_csv
from denskit.evaluation.study.statistics import Mean

_BOLD = ("\x02", "\x03")  # no text has them
_LATEX = str.maketrans(
    {name: f"\\{name}" for name in "%&_#${}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\\": r"\textbackslash{}"}
    | {"^": r"\^{}", "~": r"\~{}", "±": r"$\pm$", "Å": r"\AA{}", "³": "$^3$", "Δ": r"$\Delta$"}
    | dict(zip(_BOLD, (r"\textbf{", "}"), strict=True))
)


def text_of(mean: Mean) -> str:
    """``25.2 ± 0.4``."""
    digits = 1 if abs(mean.value) >= 1 else 3
    if math.isnan(mean.error):
        return f"{mean.value:.{digits}f}"
    return f"{mean.value:.{digits}f} ± {mean.error:.{digits}f}"


def _columns(results: Results) -> tuple[list[Column], list[Column]]:
    """The columns with differences to the reference, and those with published numbers."""
    gaps = [column for column in results.columns if column.metric == FORCES]
    return gaps, [column for column in results.columns if any(column in row.published for row in results.rows)]


def _header(results: Results) -> list[str]:
    gaps, published = _columns(results)
    titles = {column: column.title(results.several_tests) for column in results.columns}
    extra = [_change_of(titles[column]) for column in gaps] + [f"published {titles[column]}" for column in published]
    return ["", "variant", "seeds", *titles.values(), *extra, "minutes", "parameters"]


def _change_of(title: str) -> str:
    """Title of a column of differences, which are in percent."""
    return f"Δ {title.partition(' (')[0]} (%)"


def _marked(results: Results, row: Row, column: Column, bold: tuple[str, str]) -> str:
    """The mean as text, in bold where it is the best of its point."""
    if column not in row.means:
        return "-"
    text = text_of(row.means[column])
    return f"{bold[0]}{text}{bold[1]}" if (row.point, row.variant) in results.best(column) else text


def _gap(row: Row, column: Column) -> str:
    """``-20.1 % [-24.0, -16.2]``: paired difference and its 95 % confidence interval, in percent; may be empty."""
    if (gap := row.differences.get(column)) is None:
        return ""
    return f"{gap.percent:+.1f} %" + ("" if math.isnan(gap.low) else f" [{gap.low:+.1f}, {gap.high:+.1f}]")


def _cells(results: Results, row: Row, bold: tuple[str, str]) -> list[str]:
    gaps, published = _columns(results)
    count = str(max((mean.count for mean in row.means.values()), default=0))
    extra = [_gap(row, column) for column in gaps]
    extra += [f"{row.published[column]:g}" if column in row.published else "" for column in published]
    means = [_marked(results, row, column, bold) for column in results.columns]
    return [row.point, row.label, count, *means, *extra, f"{row.minutes:.1f}", f"{row.parameters:,}"]


_NOTE = (
    "Errors are MAE ({tests}); mean ± standard error over seeds. Δ: to '{reference}', paired by the seeds that both "
    "have, with its 95 % confidence interval (of two seeds or more)."
)

_OF_TUNED = (
    " A row 'best ...' has each variant at the value with the lowest validation error (mean over seeds); its "
    "difference is to '{reference}' at its own best."
)

_OF_COMMITTEES = (
    " A mean of models is the committee of the seeds, compared with single models of '{reference}' at the same values; "
    "its minutes and parameters are those of all."
)


def as_cells(results: Results, bold: tuple[str, str] = ("", "")) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table as text, without empty columns; ``bold`` surrounds the best of each point."""
    rows = [_cells(results, row, bold) for row in results.all_rows]
    filled = [column for column in zip(_header(results), *rows, strict=True) if any(column[1:])]
    header, *cells = map(list, zip(*filled, strict=True))
    return header, cells


def note(results: Results) -> str:
    """How to read the table."""
    tests = dict.fromkeys(column.test for column in results.columns if "_mae_" in column.metric)
    words = _NOTE + (_OF_TUNED if results.tuned else "") + (_OF_COMMITTEES if results.committees else "")
    warned = [f"The variants were {results.warning}."] if results.warning else []
    if results.unresolved:
        titles = ", ".join(column.title(results.several_tests) for column in results.unresolved)
        warned.append(f"Errors below {ROUNDING:g} ({titles}) are rounding, and are not compared.")
    return " ".join([words.format(reference=results.reference, tests=", ".join(tests)), *warned, *results.remarks])


def as_markdown(results: Results) -> str:
    """The table with its title and how to read it."""
    header, rows = as_cells(results, ("**", "**"))
    lines = ([cell.replace("|", r"\|") for cell in cells] for cells in (header, ["---"] * len(header), *rows))
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"## {results.title}\n\n{table}\n\n{note(results)}\n"


def as_latex(results: Results) -> str:
    """A booktabs table."""

    def line(cells: list[str]) -> str:
        return " & ".join(cell.translate(_LATEX) for cell in cells) + r" \\"

    header, cells = as_cells(results, _BOLD)
    rows = [line(row) for row in cells]
    begin = rf"\begin{{tabular}}{{{''.join('l' if name in ('', 'variant') else 'r' for name in header)}}}"
    return "\n".join([begin, r"\toprule", line(header), r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", ""])


def as_rich(results: Results) -> list[Table | str]:
    """Tables for a terminal, one a test, and how to read them."""
    tables: list[Table | str] = []
    tests = list(dict.fromkeys(column.test for column in results.columns))
    for test in tests:
        columns = [column for column in results.columns if column.test == test]
        gaps = [column for column in columns if column.metric == FORCES]
        names = [METRICS[column.metric] for column in columns] + [_change_of(METRICS[FORCES]) for _ in gaps]
        heads = [RichColumn(name, justify="right") for name in names]
        title = results.title if len(tests) == 1 else f"{results.title}: {test}"
        variant = RichColumn("variant", overflow="fold")
        table = Table(*([""] if results.rows[0].point else []), variant, *heads, title=escape(title))
        for row in results.all_rows:
            errors = [_marked(results, row, column, ("[bold]", "[/bold]")) for column in columns]
            changes = [_gap(row, column) for column in gaps]
            names_of = [escape(name) for name in ([row.point] if results.rows[0].point else []) + [row.label]]
            table.add_row(*names_of, *errors, *(escape(change) for change in changes))
        tables.append(table)
    return [*tables, escape(note(results))]


def write_tables(results: Results, folder: Path) -> list[Path]:
    """Write table.md, table.tex, means.csv (their numbers) and table.csv (every run); returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "table.md": as_markdown(results), "table.tex": as_latex(results),
        "means.csv": means_as_csv(results), "table.csv": as_csv(results),
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
