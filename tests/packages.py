"""Packages as pip installs them, in a folder to be put on the path: modules, and metadata that names entry points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(
    folder: Path, package: str, modules: Mapping[str, str], entry_points: Mapping[str, Mapping[str, str]]
) -> None:
    """Write the package, with the text of each module, and the entry points of each group."""
    (folder / package).mkdir(parents=True)
    for name, text in {"__init__": "", **modules}.items():
        (folder / package / f"{name}.py").write_text(text, encoding="utf-8")
    metadata = folder / f"{package}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n", encoding="utf-8")
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in entry_points.items()
    )
    (metadata / "entry_points.txt").write_text("".join(groups), encoding="utf-8")
