"""Reports of the folders of ``denskit crystal``: table, remarks, equations of state, phonons, settings."""

from __future__ import annotations

from pathlib import Path

from denskit.analysis.crystal_plots import MOST, crystal_figure
from denskit.analysis.crystal_results import crystal_table, is_measured, remarks
from denskit.analysis.report.page import Part, Picture, Section, listed, paragraph, table
from denskit.analysis.report.simulation import models_in_words, settings_section
from denskit.reading.documents import read_json
from denskit.runtime.progress import counted
from denskit.simulation.crystals.folder import MARKER, PROPERTIES, properties_in
from denskit.simulation.crystals.ground_state import CrystalSettings


def is_crystals(path: Path) -> bool:
    """Whether ``denskit crystal`` wrote the folder."""
    return (path / MARKER).is_file() and (path / PROPERTIES).is_file()


def crystals(path: Path) -> list[Section]:
    """Properties of all crystals, and pictures of the first."""
    found, record = list(properties_in(path)), read_json(path / MARKER)
    measured = sum(map(is_measured, found))
    told = f"{measured} of {counted(record['crystals'], 'crystal')} measured.{models_in_words(record)}"
    if measured > MOST:
        told += f" The picture shows the first {MOST}."
    header, rows = crystal_table(found)
    parts: list[Part] = [paragraph(told)]
    if rows:
        parts.append(table([" ".join(name.replace("-\n", "").split("\n")) for name in header], rows))
    if told_more := [text for crystal in found for text in remarks(crystal)]:
        parts.append(listed(told_more))
    if (figure := crystal_figure(found)) is not None:
        caption = "Energy against volume, with a Birch-Murnaghan bulk modulus; density of phonon states if measured."
        parts.append(Picture("crystals", figure, caption))
    return [Section("Crystals", parts), settings_section(record["settings"], CrystalSettings)]
