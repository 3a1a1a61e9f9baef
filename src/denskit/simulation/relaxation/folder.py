"""Relaxation of a file into a folder.

``finished.jsonl`` gets a line when a structure is done; ``running.safetensors`` holds coordinates and histories of the
structures under way.  A killed run continues from these two files.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np

from denskit.batch import System
from denskit.data.extxyz_fields import header_fields
from denskit.data.frames import exact_extxyz
from denskit.data.writing import IDENTIFIERS, names_of, plain, relaxed_at
from denskit.files import atomic_write, write_json, write_rows, writing
from denskit.reading.budget import naming
from denskit.reading.documents import parse_json, read_json
from denskit.runtime.progress import Report, unreported
from denskit.runtime.work_folder import WorkFolder, append_line, read_state, whole_lines, write_state
from denskit.simulation.potential import EnergyAndForces
from denskit.simulation.relaxation.optimizers import FIRE, LBFGS
from denskit.simulation.relaxation.relaxer import Relaxer
from denskit.simulation.relaxation.results import Relaxed, Snapshot
from denskit.simulation.relaxation.running import Running
from denskit.simulation.relaxation.settings import RelaxationSettings
from denskit.simulation.state import Structures

SAVE_EVERY = 60.0  # s
LARGE_CHANGE = 25.0  # % of the volume: more than a relaxation of a crystal does
Original = Callable[[System], ase.Atoms]
COLUMNS = (
    "index", "name", "formula", "atoms", "status", "moves", "energy_eV", "fmax_eV_per_A", "moved_A",
    "volume_change_percent", "message",
)  # fmt: skip


class RelaxationFolder(WorkFolder):
    """Reads and writes the files of one relaxation."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, "relaxation", "settings.json")
        self.finished = self.path / "finished.jsonl"
        self.running = self.path / "running.safetensors"
        self.structures = self.path / "relaxed.extxyz"
        self.table = self.path / "summary.csv"
        self.summary = self.path / "summary.json"
        self.trajectories = self.path / "trajectories"
        self._places: dict[int, int] = {}  # structure -> offset of its line in finished.jsonl

    def read_finished(self) -> set[int]:
        """Indices of the finished structures."""
        lines = whole_lines(self.finished) if self.finished.is_file() else ()
        self._places = {int(relaxed["index"]): offset for offset, relaxed in lines}
        return set(self._places)

    def add_finished(self, relaxed: Relaxed) -> None:
        """Append a finished structure."""
        self._places[relaxed.index] = append_line(self.finished, relaxed.to_dict())

    def results(self) -> Iterator[Relaxed]:
        """All finished structures in the order of the source, read one by one."""
        if not self._places:
            self.read_finished()
        for index in sorted(self._places):
            with self.finished.open("rb") as file:
                file.seek(self._places[index])
                yield Relaxed.from_dict(parse_json(file.readline(), self.finished))

    def save_running(self, running: Running | None) -> None:
        """Save coordinates and histories of the structures under way."""
        if running is None:
            self.running.unlink(missing_ok=True)
        else:
            write_state(self.running, running.tensors(), {})

    def read_running(self, optimizer: LBFGS | FIRE) -> Running | None:
        """The structures of :meth:`save_running`, or None.  Raises ValueError for a damaged file."""
        if not self.running.is_file():
            return None
        tensors, _ = read_state(self.running)
        with naming(self.running, "holds no relaxation"):
            return Running.from_tensors(tensors, optimizer)

    def trajectory(self, index: int) -> Path:
        """The trajectory of a structure."""
        return self.trajectories / f"{index:06d}.extxyz"

    def add_snapshot(self, snapshot: Snapshot, system: System) -> None:
        """Append a frame to the trajectory of its structure."""
        results = {"energy": snapshot.energy, "forces": snapshot.forces}
        atoms = relaxed_at(plain(system), snapshot.positions, snapshot.cell, results)
        atoms.info = header_fields(atoms.info)[0] | {"moves": snapshot.moves}
        self.trajectories.mkdir(exist_ok=True)
        with writing(path := self.trajectory(snapshot.index)):
            ase.io.write(path, atoms, format="extxyz", append=True)

    def cut_trajectories(self, finished: set[int], running: Running | None) -> None:
        """Remove the frames after the last save, which will be computed again."""
        moves: dict[int, int] = {}
        if running is not None:
            moves = dict(zip(running.index.tolist(), running.moves.tolist(), strict=True))
        for path in self.trajectories.glob("*.extxyz"):
            index = int(path.stem)
            if index in finished:
                continue
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            keep = moves.get(index, 0) * (int(lines[0]) + 2) if lines else 0
            with atomic_write(path) as temporary:
                temporary.write_text("".join(lines[:keep]), encoding="utf-8")

    def write_results(
        self, source: Structures, seconds: float, original: Original = plain, models: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Write relaxed.extxyz, summary.csv and summary.json; returns the summary.

        ``original``: see :func:`relax_into`; ``models``: files of the models.
        """
        marker = read_json(self.marker)
        cells_relax = marker["settings"]["cell"] is not None
        counts: Counter[str] = Counter()
        total_moves = 0
        changed = 0  # structures with a large change of the volume
        rows: list[dict[str, Any]] = []
        fields: list[dict[str, Any]] = []
        with atomic_write(self.structures) as temporary, temporary.open("w", encoding="utf-8") as frames:
            for relaxed in self.results():
                counts[relaxed.status] += 1
                total_moves += relaxed.moves
                rows.append({"index": relaxed.index, "status": relaxed.status, "moves": relaxed.moves})
                rows[-1]["message"] = relaxed.message
                fields.append({})
                if len(relaxed.positions) == 0:  # a record that cannot be read
                    continue
                system = source[relaxed.index]
                given = original(system)
                fields[-1] = {name: given.info[name] for name in IDENTIFIERS if name in given.info}
                atoms = relaxed.atoms(given)
                atoms.calc.of_model = False  # that is of frames in memory
                frames.writelines(exact_extxyz([atoms]))
                relaxes = cells_relax and relaxed.status != "refused"
                change = _volume_change(system, relaxed) if relaxes and system.pbc.all() else None
                changed += relaxed.sound and abs(change or 0.0) > LARGE_CHANGE
                rows[-1] |= {"formula": given.get_chemical_formula(), **_numbers(system, relaxed, change)}
        names = names_of(fields)
        columns = [column for column in COLUMNS if column != "name" or any(names)]
        write_rows(self.table, columns, [{**row, "name": name} for row, name in zip(rows, names, strict=True)])
        summary = {
            "models": list(models),
            "structures": counts.total(),
            "status": dict(counts),
            "moves": total_moves,
            "seconds_of_last_run": round(seconds, 3),
            "large_volume_changes": changed,
            **marker,
        }
        write_json(self.summary, summary)
        return summary


def relax_into(
    folder: RelaxationFolder,
    potential: EnergyAndForces,
    source: Structures,
    settings: RelaxationSettings,
    *,
    origin: dict[str, Any] | None = None,
    original: Original = plain,
    resume: bool = False,
    batch_atoms: int = 1000,
    trajectories: bool = False,
    save_every: float = SAVE_EVERY,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
    progress: Report = unreported,
) -> dict[str, Any] | None:
    """Relax all structures of a source into a folder; returns the summary, or None where ``stop`` ended the run.

    ``resume`` continues the relaxation in the folder, with the same settings and ``origin`` (plain JSON about model and
    file); finished structures are not repeated.  ``original`` gives each structure with the fields that relaxed.extxyz
    keeps; called in ascending order (as for :class:`denskit.data.writing.Originals`).  ``trajectories`` keeps every
    evaluated geometry.  The structures under way are saved every ``save_every`` seconds, after an exception and after a
    stop.  After every step ``stop`` is asked and ``progress`` gets the number of finished structures.  All other
    arguments are those of :class:`Relaxer`.

    Raises ValueError for a folder with other work or in use, and as :class:`Relaxer`.
    """
    started = saved = time.monotonic()
    observe = (lambda snapshot: folder.add_snapshot(snapshot, source[snapshot.index])) if trajectories else None
    relaxer = Relaxer(
        potential, source, settings, batch_atoms=batch_atoms, say=lambda text: say(f"warning: {text}"), observe=observe
    )
    record = {"settings": settings.model_dump(), "structures_given": len(source), "trajectories": trajectories}
    record |= origin or {}
    with folder.opened(resume=resume, say=say) as continues:
        if continues:
            folder.require_same(read_json(folder.marker), record)
        else:
            write_json(folder.marker, record)
        finished, running = folder.read_finished(), folder.read_running(settings.optimizer)
        folder.cut_trajectories(finished, running)
        relaxer.restore(finished, running)
        unsound = sum(not relaxed.sound for relaxed in folder.results())
        try:
            while not relaxer.done and not stop():
                for relaxed in relaxer.step():
                    folder.add_finished(relaxed)
                    finished.add(relaxed.index)
                    unsound += not relaxed.sound
                if time.monotonic() - saved > save_every:
                    folder.save_running(relaxer.under_way())
                    saved = time.monotonic()
                progress(len(finished), _progress_text(relaxer, len(finished), unsound), len(source))
        finally:
            folder.save_running(relaxer.under_way())
        if not relaxer.done:
            return None
        return folder.write_results(source, time.monotonic() - started, original, getattr(potential, "files", ()))


def _progress_text(relaxer: Relaxer, finished: int, unsound: int) -> str:
    running = 0 if relaxer.running is None else relaxer.running.num_systems
    troubles = f", {unsound} without a result" if unsound else ""
    return f"{finished} of {len(relaxer.source)} relaxed, {running} under way{troubles}"


def _volume_change(system: System, relaxed: Relaxed) -> float:
    """In %."""
    return 100 * abs(float(np.linalg.det(relaxed.cell) / np.linalg.det(system.cell))) - 100


def _numbers(system: System, relaxed: Relaxed, change: float | None) -> dict[str, Any]:
    return {
        "atoms": len(system),
        "energy_eV": "" if relaxed.energy is None else f"{relaxed.energy:.8f}",
        "fmax_eV_per_A": "" if relaxed.fmax is None else f"{relaxed.fmax:.6f}",
        "moved_A": f"{relaxed.moved:.4f}",
        "volume_change_percent": "" if change is None else f"{change:.3f}",
    }
