"""Reports of the folders of ``denskit md`` and ``denskit relax``: numbers, figures, trajectories to play."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np

from denskit.analysis.report.page import Part, Picture, Section, paragraph, table
from denskit.analysis.scenes import MOST_ATOMS, MOST_FRAMES, Frame, Scene, cell_of
from denskit.analysis.simulation_plots import dynamics_figure, relaxation_figure
from denskit.reading.budget import naming
from denskit.reading.documents import read_json
from denskit.runtime.progress import counted
from denskit.settings import Settings, dotted, fields_of
from denskit.simulation.dynamics.folder import RESTART, STATISTICS, SUMMARY
from denskit.simulation.dynamics.loop import ends_in_words
from denskit.simulation.dynamics.settings import DynamicsSettings
from denskit.simulation.relaxation.folder import RelaxationFolder
from denskit.simulation.relaxation.settings import RelaxationSettings

_SHOWN = 3  # trajectories
_DRIFT = "drift_meV_per_atom"


def is_dynamics(path: Path) -> bool:
    """Whether ``denskit md`` wrote the folder."""
    return (path / RESTART).is_file()


def is_relaxation(path: Path) -> bool:
    """Whether ``denskit relax`` wrote the folder."""
    folder = RelaxationFolder(path)
    return folder.marker.is_file() and folder.finished.is_file()


def dynamics(path: Path) -> list[Section]:
    """Outcome, temperature and energy, trajectories."""
    parts: list[Part] = []
    if (path / SUMMARY).is_file():
        with naming(path / SUMMARY, "is no summary of a simulation; it is damaged"):
            summary = read_json(path / SUMMARY)
            parts.append(paragraph(_dynamics_in_words(summary) + models_in_words(summary)))
    with naming(path / STATISTICS, "holds no statistics of a simulation; it is damaged"):
        replicas = _statistics(path / STATISTICS)
        means = _means_in_words(replicas) if replicas else ""
    if replicas:
        parts.append(paragraph(means))
        caption = "Temperature, potential energy and, at constant pressure, volume of each replica."
        parts.append(Picture("simulation", dynamics_figure(replicas), caption))
    trajectories = sorted(path.glob("trajectory_*.extxyz"))
    scenes = [scene for file in trajectories[:_SHOWN] if (scene := _trajectory(file, "time_ps", "ps")) is not None]
    given = read_json(path / SUMMARY)["settings"] if (path / SUMMARY).is_file() else {}
    return [Section("Simulation", parts), Section("Trajectories", scenes), settings_section(given, DynamicsSettings)]


def settings_section(values: Mapping[str, Any], cls: type[Settings]) -> Section:
    """Settings of the run and their meanings, with units."""
    meanings = {key: field.description or "" for key, field in fields_of(cls)}
    rows = [(key, str(value), meanings.get(key, "")) for key, value in dotted(values) if value is not None]
    return Section("Settings", [table(["setting", "value", "meaning"], rows)] if rows else [])


def models_in_words(summary: Mapping[str, Any]) -> str:
    """Files of the models that made a folder; folders of earlier versions do not tell."""
    files = summary.get("models", [])
    return f" {'Model' if len(files) == 1 else 'Models'}: {', '.join(files)}." if files else ""


def _dynamics_in_words(summary: dict[str, Any]) -> str:
    stable, failures = summary["stable_replicas"], summary["failures"]
    told = f"{summary['time_ps']:.4g} ps in {summary['step']:,} steps; "
    told += ends_in_words(len(stable), [failure["check"] for failure in failures])
    told += ", interrupted." if summary["interrupted"] else "."
    ends = [
        f" Replica {failure['replica']} ended at step {failure['step']}: {failure['reason']}." for failure in failures
    ]
    return told + "".join(ends)


def _means_in_words(replicas: dict[int, dict[str, np.ndarray]]) -> str:
    """Temperature and the drift of the conserved energy, the first to look at."""
    half = [own["temperature_K"][len(own["temperature_K"]) // 2 :].mean() for own in replicas.values()]
    told = f"Mean temperature of the second half: {np.mean(half):.0f} K"
    told += f" ({min(half):.0f} to {max(half):.0f} K in {len(half)} replicas)." if len(half) > 1 else "."
    drifts = [own[_DRIFT][-1] for own in replicas.values() if _DRIFT in own]
    return f"{told} The conserved energy drifted by up to {np.abs(drifts).max():.2g} meV an atom." if drifts else told


def _statistics(path: Path) -> dict[int, dict[str, np.ndarray]]:
    """Columns of statistics.csv by replica."""
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    found: dict[int, list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault(int(row["replica"]), []).append(row)
    names = [
        name for name in ("time_ps", "temperature_K", "potential_eV", "volume_A3", _DRIFT) if rows and name in rows[0]
    ]
    return {
        replica: {name: np.array([float(row[name]) for row in own]) for name in names} for replica, own in found.items()
    }


def relaxation(path: Path) -> list[Section]:
    """Outcome of each structure, energies and forces over the moves, trajectories or the relaxed structures."""
    folder = RelaxationFolder(path)
    results = list(folder.results())
    counts = ", ".join(
        f"{count} {status.replace('_', ' ')}" for status, count in Counter(r.status for r in results).items()
    )
    moves = sum(result.moves for result in results)
    told = f"{counted(len(results), 'structure')}: {counts}; {counted(moves, 'move', ',')}."
    told += models_in_words(read_json(folder.summary)) if folder.summary.is_file() else ""
    parts: list[Part] = [paragraph(told)]
    header = ["structure", "status", "moves", "largest force (eV/Å)", "moved at most (Å)"]
    rows = [
        [str(r.index), r.status, str(r.moves), "" if r.fmax is None else f"{r.fmax:.3f}", f"{r.moved:.2f}"]
        for r in results[:MOST_FRAMES]
    ]
    parts.append(table(header, rows))
    if len(results) > MOST_FRAMES:
        parts.append(paragraph(f"The first {MOST_FRAMES} are shown; all are in summary.csv."))
    trajectories = sorted(folder.trajectories.glob("*.extxyz"))[:_SHOWN]
    scenes: list[Part] = []
    if trajectories:
        parts.append(_moves(trajectories))
        scenes += [scene for file in trajectories if (scene := _trajectory(file, "moves", "moves")) is not None]
    elif folder.structures.is_file() and (scene := _trajectory(folder.structures, "moves", "moves")) is not None:
        scenes.append(scene)
    given = read_json(folder.marker)["settings"]
    return [Section("Relaxation", parts), Section("Structures", scenes), settings_section(given, RelaxationSettings)]


def _moves(files: Sequence[Path]) -> Picture:
    energies, forces = {}, {}
    for file in files:
        frames = ase.io.read(file, ":")
        label = f"structure {int(file.stem)}"
        energies[label] = np.array([frame.get_potential_energy() for frame in frames])
        forces[label] = np.array([np.linalg.norm(frame.get_forces(), axis=-1).max() for frame in frames])
    return Picture("relaxation", relaxation_figure(energies, forces), "Energy and largest force after each move.")


def _trajectory(file: Path, key: str, unit: str) -> Scene | None:
    """At most 100 frames of an extxyz file, evenly spaced; None where the structures are too large to show."""
    with file.open("rb") as lines:
        total = sum(b"Properties=" in line for line in lines)
    step = -(-total // MOST_FRAMES)
    read = enumerate(ase.io.read(file, f"::{step}")) if total else ()
    chosen = [(step * number, atoms) for number, atoms in read if len(atoms) <= MOST_ATOMS]
    if not chosen:
        return None
    return Scene(
        name=file.stem,
        title=f"{file.name}: {len(chosen)} of {total} frames",
        control="play",
        frames=[
            Frame(
                label=_label(atoms, number, key, unit),
                numbers=atoms.numbers,
                positions=atoms.positions,
                cell=cell_of(np.array(atoms.cell), atoms.pbc),
            )
            for number, atoms in chosen
        ],
    )


def _label(atoms: ase.Atoms, number: int, key: str, unit: str) -> str:
    """Time or moves, and the energy; of relaxed structures, each of which is another, also number and status."""
    label, status = f"{atoms.info.get(key, number):.4g} {unit}", atoms.info.get("status")
    if status is not None:
        label = f"frame {number}: {str(status).replace('_', ' ')}, {label}"
    energy = None if atoms.calc is None else atoms.calc.results.get("energy")  # a structure that was refused has none
    return label if energy is None else f"{label}, energy {energy:.3f} eV"
