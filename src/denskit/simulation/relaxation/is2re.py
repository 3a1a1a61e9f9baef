"""Relaxed energies and structures (IS2RE, IS2RS): references, errors, submission files."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from denskit.batch import System
from denskit.files import atomic_write
from denskit.geometry.lattice import nearest_image
from denskit.runtime.warning import warn
from denskit.simulation.relaxation.results import Relaxed
from denskit.simulation.state import Structures

LISTED = 10  # unreadable frames that are named
ENERGY_THRESHOLD = 0.02  # eV, of EwT
THRESHOLDS = np.arange(0.01, 0.5, 0.001)  # Å, of ADwT


def first_frames(frames: Structures) -> list[System]:
    """The first frame of each relaxation in a trajectory file, with the last frame as the reference.

    Frames of one ``sid`` belong to one relaxation and are ordered by ``fid``.  ``relaxed_energy`` (perhaps None) and
    ``relaxed_positions`` are those of the last frame.  Frames that cannot be read are left out with a warning that
    names them.  Those returned are in the order of the file, also where it mixes relaxations.  Raises ValueError for
    frames without sid or fid, and where none can be read.
    """
    first: dict[str, System] = {}
    last: dict[str, System] = {}
    unreadable: list[ValueError] = []
    for index in range(len(frames)):
        try:
            frame = frames[index]
        except ValueError as error:
            unreadable.append(error)
            continue
        if not frame.sid or frame.fid is None:
            raise ValueError(f"frame {frame.index} has no sid or no fid, so its relaxation is not known")
        if frame.sid not in first or frame.fid < _number(first[frame.sid]):
            first[frame.sid] = frame
        if frame.sid not in last or frame.fid > _number(last[frame.sid]):
            last[frame.sid] = frame
    if unreadable and not first:
        raise unreadable[0]
    if unreadable:
        more = f"; and {len(unreadable) - LISTED} more" if len(unreadable) > LISTED else ""
        warn(
            f"{len(unreadable)} of {len(frames)} frames cannot be read and are left out. Where one was the first or "
            "the last of its relaxation, the next or the one before takes its place: "
            f"{'; '.join(map(str, unreadable[:LISTED]))}{more}"
        )
    return [
        replace(frame, relaxed_energy=last[sid].energy, relaxed_positions=last[sid].positions)
        for sid, frame in sorted(first.items(), key=lambda item: item[1].index)  # as fields of a file are read
    ]


def errors(results: Iterable[Relaxed], source: Structures) -> dict[str, float]:
    """Errors against the relaxed references of the source; empty for a source without references.

    ``energy_mae_meV``; ``energy_within_threshold``, the share of structures with an error below 0.02 eV (EwT);
    ``distance_mean_A``, the mean over structures of the mean distance of free atoms from their relaxed positions
    (nearest images); ``distance_within_threshold``, the share below a threshold, averaged over thresholds from 0.01 to
    0.5 Å (ADwT).  ``references`` counts the structures compared; one without an energy counts in ``without_energy`` and
    as outside every threshold, but in no mean.
    """
    energy, distance = [], []
    for relaxed in results:
        if len(relaxed.positions) == 0:
            continue
        system = source[relaxed.index]
        if system.relaxed_energy is not None:
            energy.append(np.inf if relaxed.energy is None else abs(relaxed.energy - system.relaxed_energy))
        if system.relaxed_positions is not None and not system.fixed.all():
            distance.append(np.inf if relaxed.energy is None else _mean_distance(relaxed, system))
    found: dict[str, float] = {}
    if energy:
        values = np.array(energy)
        found["references"] = len(values)
        found["without_energy"] = int(np.isinf(values).sum())
        found["energy_mae_meV"] = 1000 * _mean(values)
        found["energy_within_threshold"] = float((values < ENERGY_THRESHOLD).mean())
    if distance:
        values = np.array(distance)
        found["distance_mean_A"] = _mean(values)
        found["distance_within_threshold"] = float((values[:, None] < THRESHOLDS).mean())
    return found


def write_submission(results: Iterable[Relaxed], source: Structures, folder: Path) -> list[str]:
    """Write ``is2re.npz`` (ids, energy) and ``is2rs.npz`` (ids, pos, chunk_idx) in the published layout, float32.

    Rows are sorted by id as text; ``chunk_idx`` are the cumulative numbers of atoms without the last, all atoms
    counted.  Returns the structures that are left out because they have no energy or could not be read; a server wants
    all.  Raises ValueError for structures without a sid, or two with the same.
    """
    left_out = []
    rows: dict[str, tuple[float | None, np.ndarray]] = {}
    for relaxed in results:
        if len(relaxed.positions) == 0:
            left_out.append(f"structure {relaxed.index}")
            continue
        sid = source[relaxed.index].sid
        _require_new(sid, relaxed.index, rows)
        rows[sid] = (relaxed.energy, relaxed.positions)
    if not rows:
        raise ValueError("no structure was relaxed, so there is nothing to submit")
    ids = sorted(rows)
    energies = {sid: energy for sid in ids if (energy := rows[sid][0]) is not None}
    counts = [len(rows[sid][1]) for sid in ids]
    with atomic_write(folder / "is2re.npz") as temporary:
        np.savez_compressed(
            temporary, ids=np.array(list(energies)), energy=np.array(list(energies.values()), dtype=np.float32)
        )
    with atomic_write(folder / "is2rs.npz") as temporary:
        np.savez_compressed(
            temporary,
            ids=np.array(ids),
            pos=np.concatenate([rows[sid][1] for sid in ids]).astype(np.float32),
            chunk_idx=np.cumsum(counts)[:-1],
        )
    return left_out + [sid for sid in ids if sid not in energies]


def require_sids(source: Structures) -> None:
    """Raise ValueError, before the work, where :func:`write_submission` could not name each structure by its sid."""
    seen: set[str] = set()
    for index in range(len(source)):
        try:
            sid = source[index].sid
        except ValueError:  # an unreadable record, which is left out
            continue
        _require_new(sid, index, seen, "; of trajectories --first-frames takes the first of each")
        seen.add(sid)


def _require_new(sid: str, index: int, seen: Container[str], advice: str = "") -> None:
    if not sid:
        raise ValueError(f"structure {index} has no sid: a submission names every structure by its sid")
    if sid in seen:
        raise ValueError(f"two structures have the sid {sid}: a submission names every structure once{advice}")


def _mean_distance(relaxed: Relaxed, system: System) -> float:
    assert system.relaxed_positions is not None
    difference = (relaxed.positions - system.relaxed_positions)[~system.fixed]
    difference = nearest_image(difference, system.cell, system.pbc)
    return float(np.linalg.norm(difference, axis=1).mean())


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def _number(frame: System) -> int:
    assert frame.fid is not None
    return frame.fid
