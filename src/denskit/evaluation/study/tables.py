"""The table of a study as Markdown, LaTeX and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column as RichColumn
from rich.table import Table

from denskit.evaluation.study.config import ENERGY, FORCES, MEAN, METRICS, STRESS, TEST, StudyConfig
from denskit.evaluation.study.results import ROUNDING, Column, Results, Row, as_csv, means_as_csv, published_rows
from denskit.evaluation.study.runs import points_of
from denskit.evaluation.study.statistics import Mean

_COMPARED = (ENERGY, FORCES, STRESS)  # metrics with differences in the table; means.csv has those of all
_BOLD = ("\x02", "\x03")  # no text has them
_LATEX = str.maketrans(
    {name: f"\\{name}" for name in "%&_#${}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\\": r"\textbackslash{}"}
    | {"^": r"\^{}", "~": r"\~{}", "±": r"$\pm$", "Å": r"\AA{}", "³": "$^3$", "Δ": r"$\Delta$"}
    | dict(zip(_BOLD, (r"\textbf{", "}"), strict=True))
)


def text_of(mean: Mean, digits: int) -> str:
    """``25.2 ± 0.4``, with so many decimals."""
    if math.isnan(mean.error):
        return f"{mean.value:.{digits}f}"
    return f"{mean.value:.{digits}f} ± {mean.error:.{digits}f}"


def _columns(results: Results) -> tuple[list[Column], list[Column]]:
    """The columns with differences to the reference, and those with published numbers."""
    gaps = [column for column in results.columns if column.metric in _COMPARED]
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
    text = text_of(row.means[column], results.decimals(row.point, column))
    return f"{bold[0]}{text}{bold[1]}" if (row.point, row.variant) in results.best(column) else text


def _gap(row: Row, column: Column) -> str:
    """``-20.1 % [-24.0, -16.2]``: paired difference and its 95 % confidence interval, in percent; may be empty."""
    if (gap := row.differences.get(column)) is None:
        return ""
    interval = "" if math.isnan(gap.low) else f" [{_signed(gap.low)}, {_signed(gap.high)}]"
    return f"{_signed(gap.percent)} %{interval}"


def _signed(percent: float) -> str:
    """``+1.5``; zero has no sign."""
    text = f"{percent:+.1f}"
    return text if float(text) else "0.0"


def _seeds(row: Row, columns: Sequence[Column]) -> str:
    return str(max((row.means[column].count for column in columns if column in row.means), default=0))


def _cells(results: Results, row: Row, bold: tuple[str, str]) -> list[str]:
    gaps, published = _columns(results)
    extra = [_gap(row, column) for column in gaps]
    extra += [f"{row.published[column]:g}" if column in row.published else "" for column in published]
    means = [_marked(results, row, column, bold) for column in results.columns]
    count = _seeds(row, results.columns)
    return [row.point, row.label, count, *means, *extra, f"{row.minutes:.1f}", f"{row.parameters:,}"]


_NOTE = (
    "Errors are MAE ({tests}); mean ± standard error over seeds. Δ: to '{reference}', paired by the seeds that both "
    "have, with its 95 % confidence interval (of two pairs or more)."
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


def _missing_seeds(results: Results) -> str:
    """Variants that lack seeds of others at their point, and how many pairs differences have for this; may be empty."""
    said = []
    for row in results.rows:
        there = [other.seeds for other in results.rows if other.point == row.point]
        lacking, pairs = set[int](), set[int]()
        for column, seeds in row.seeds.items():
            of_all = seeds.union(*(other.get(column, ()) for other in there))
            lacking |= of_all - seeds
            gap = row.differences.get(column)
            if gap is not None and gap.pairs < len(of_all):
                pairs.add(gap.pairs)
        words = [f"lacks {', '.join(map(str, sorted(lacking)))}"] if lacking else []
        words += [f"has {' or '.join(map(str, sorted(pairs)))} pair{'s' * (pairs != {1})} in Δ"] if pairs else []
        if words:
            said.append(", ".join(filter(None, [f"'{row.variant}'", row.point])) + f" {' and '.join(words)}")
    return f"Seeds are missing: {'; '.join(said)}." if said else ""


def note(results: Results) -> str:
    """How to read the table."""
    tests = dict.fromkeys(column.test for column in results.columns if "_mae_" in column.metric)
    words = _NOTE + (_OF_TUNED if results.tuned else "") + (_OF_COMMITTEES if results.committees else "")
    warned = [f"The variants were {results.warning}."] if results.warning else []
    if results.unresolved:
        titles = ", ".join(column.title(results.several_tests) for column in results.unresolved)
        warned.append(f"Errors below {ROUNDING:g} ({titles}) are rounding, and are not compared.")
    read = [words.format(reference=results.reference, tests=", ".join(tests)), *warned, _missing_seeds(results)]
    return " ".join(filter(None, [*read, *results.remarks]))


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


def as_rich(results: Results, width: int) -> list[Table | str]:
    """Tables for a terminal of so many columns, one a test, and how to read them."""
    tables: list[Table | str] = []
    narrow = set[str]()
    console = Console(width=10 * width)  # as wide as a table wants to be
    for test in dict.fromkeys(column.test for column in results.columns):
        table = _rich_table(results, test, _COMPARED)
        if console.measure(table).maximum > width:
            narrow |= {column.metric for column in results.columns if column.test == test} & {ENERGY, STRESS}
            table = _rich_table(results, test, (FORCES,))
        tables.append(table)
    names = " and ".join(_change_of(METRICS[metric]) for metric in (ENERGY, STRESS) if metric in narrow)
    left_out = f" {names} need{'s' * (len(narrow) < 2)} a wider terminal; table.md (--output) has it." if names else ""
    return [*tables, escape(note(results) + left_out)]


def _rich_table(results: Results, test: str, compared: Sequence[str]) -> Table:
    """The table of one test, with the differences of the metrics ``compared``."""
    columns = [column for column in results.columns if column.test == test]
    gaps = [column for column in columns if column.metric in compared]
    names = ["seeds", *(METRICS[column.metric] for column in columns)]
    heads = [RichColumn(name, justify="right") for name in names + [_change_of(METRICS[gap.metric]) for gap in gaps]]
    title = f"{results.title}: {test}" if results.several_tests else results.title
    points = bool(results.rows[0].point)
    table = Table(*[""] * points, RichColumn("variant", overflow="fold"), *heads, title=escape(title))
    for row in results.all_rows:
        errors = [_marked(results, row, column, ("[bold]", "[/bold]")) for column in columns]
        changes = [_gap(row, column).replace(" %", "") for column in gaps]  # the title has it, and lines are short
        names_of = [row.point] * points + [row.label]
        table.add_row(*map(escape, names_of), _seeds(row, columns), *errors, *map(escape, changes))
    return table


def published_table(study: StudyConfig) -> Table:
    """The published numbers that the results of a study are compared with."""
    rows = published_rows(study.published, list(points_of(study)), MEAN if study.mean_of_tests else TEST)
    columns = list(dict.fromkeys(column for numbers in rows.values() for column in numbers))
    several = len({column.test for column in columns}) > 1
    heads = [RichColumn(column.title(several), justify="right") for column in columns]
    points = any(point for point, _ in rows)
    table = Table(
        *[""] * points, RichColumn("variant", overflow="fold"), *heads, title=f"{escape(study.title)}: published"
    )
    for (point, variant), numbers in rows.items():
        cells = [f"{numbers[column]:g}" if column in numbers else "-" for column in columns]
        table.add_row(*map(escape, [point] * points + [variant]), *cells)
    return table


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
