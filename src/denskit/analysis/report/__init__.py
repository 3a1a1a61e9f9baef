"""Reports: one self-contained HTML page for a run, a study, several runs, a simulation; and its pictures as PNG."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from denskit.analysis.plots import save_figure
from denskit.analysis.report.crystals import crystals, is_crystals
from denskit.analysis.report.page import Picture, Section, write_page
from denskit.analysis.report.run import SECTIONS, run_sections, several_sections, study_sections
from denskit.analysis.report.simulation import dynamics, is_dynamics, is_relaxation, relaxation
from denskit.analysis.report.stability import is_stability, stability
from denskit.analysis.run_results import RunResults
from denskit.analysis.scenes import Scene
from denskit.files import atomic_write, new_file, output_folder, short_names

PAGE = "report.html"
Folders = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]  # one folder or several


def report(folders: Folders, output: str | Path | None = None, *, device: str = "auto", force: bool = False) -> Path:
    """Write the HTML page of a folder (a run, a study, simulations, a relaxation, crystals) or of several runs.

    output: the file; None: ``report.html`` in the folder, which is renewed, or here for several runs.
    Returns the path of the page.  Raises FileNotFoundError for a folder that is none of these, ValueError for an output
    that exists (and not ``force``) or is no HTML by its name, and for a study without a finished run.
    """
    paths = _paths(folders)
    if output is None and len(paths) == 1:
        file = paths[0] / PAGE
    else:
        file = new_file(output or PAGE, force=force)
        if file.suffix not in (".html", ".htm"):
            raise ValueError(f"{file}: the report is an HTML page; name the file {file.with_suffix('.html')}")
    title = " · ".join(path.resolve().name for path in paths)
    text = write_page(title, sections_of(paths, device=device))
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return file


def _paths(folders: Folders) -> list[Path]:
    return [Path(folder) for folder in ([folders] if isinstance(folders, str | os.PathLike) else folders)]


def plot(
    folders: Folders, output: str | Path, what: Sequence[str] = (), *, device: str = "auto", force: bool = False
) -> list[Path]:
    """Write the pictures of :func:`report` as PNG files into the folder ``output``; returns their paths.

    what: sections of a run, some of ``SECTIONS``; none: all.  Raises as :func:`report`; ValueError for an unknown
    section, for sections of something else than one run, and for an ``output`` that is a file by its name.
    """
    folder = output_folder(output)
    sections = sections_of(_paths(folders), what, device=device)
    files = {folder / f"{name}.png": part for name, part in _pictures(sections)}
    for file in files:
        new_file(file, force=force)
    return [
        save_figure(part.figure if isinstance(part, Picture) else part.figure(), file) for file, part in files.items()
    ]


def sections_of(paths: Sequence[Path], what: Sequence[str] = (), *, device: str = "auto") -> list[Section]:
    """The sections of the page.  Raises as :func:`plot`."""
    unknown = [name for name in what if name not in SECTIONS]
    if unknown:
        raise ValueError(f"{unknown[0]}: no section of a report; they are {', '.join(SECTIONS)}")
    first = paths[0]
    is_run = len(paths) == 1 and (first / "config.yaml").is_file()
    if what and not is_run:
        raise ValueError("sections can be chosen for one run folder only")
    if len(paths) > 1:
        runs = zip(paths, short_names(paths), strict=True)
        return several_sections([RunResults(path, name=name, device=device) for path, name in runs])
    if is_run:
        return run_sections(RunResults(first, device=device), what or tuple(SECTIONS))
    if (first / "study.yaml").is_file():
        return study_sections(first, device=device)
    if is_dynamics(first):
        return dynamics(first)
    if is_relaxation(first):
        return relaxation(first)
    if is_stability(first):
        return [stability(first)]
    if is_crystals(first):
        return crystals(first)
    raise FileNotFoundError(
        f"{first}: no config.yaml, study.yaml, restart.safetensors, finished.jsonl, stability.json or crystals.jsonl "
        "in it; give a folder made by `denskit train`, `study`, `md`, `relax`, `stability` or `crystal`"
    )


def _pictures(sections: Sequence[Section]) -> Iterator[tuple[str, Picture | Scene]]:
    """Pictures and scenes by the names of their files."""
    for section in sections:
        for part in section.parts:
            if not isinstance(part, str):
                yield "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in part.name), part
