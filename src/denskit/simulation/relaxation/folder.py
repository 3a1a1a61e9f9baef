"""The folder of a relaxation of a file: what is finished, what is under way, and the results.

``finished.jsonl`` gets a line when a structure is done; ``running.safetensors`` holds coordinates and histories of
those under way.  A run that was killed goes on from these two, as if nothing had happened since the last save.
"""

from __future__ import annotations

import csv
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ase
import ase.io
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from denskit.batch import System
from denskit.data.writing import plain, relaxed_at
from denskit.files import atomic_write, is_empty, locked, write_json
from denskit.reading.documents import read_json
from denskit.simulation.relaxation.ragged import Ragged
from denskit.simulation.relaxation.relaxer import EnergyAndForces, Relaxer, Structures
from denskit.simulation.relaxation.results import Frame, Relaxed
from denskit.simulation.relaxation.running import Running
from denskit.simulation.relaxation.settings import RelaxationSettings

SAVE_EVERY = 60.0  # s
Original = Callable[[System], ase.Atoms]
COLUMNS = ("index", "sid", "formula", "atoms", "status", "moves", "energy_eV", "fmax_eV_per_A", "moved_A", "message")


class RelaxationFolder:
    """Reads and writes the files of one relaxation."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.record = self.path / "settings.json"
        self.finished = self.path / "finished.jsonl"
        self.running = self.path / "running.safetensors"
        self.structures = self.path / "relaxed.extxyz"
        self.table = self.path / "summary.csv"
        self.summary = self.path / "summary.json"
        self.trajectories = self.path / "trajectories"
        self._places: dict[int, int] = {}  # where the line of a finished structure begins

    def begin(self, record: dict[str, Any], *, resume: bool) -> None:
        """Note in an empty folder what is done there, or check that it was begun with the same ``record`` (plain JSON).

        Raises ValueError: something is there and ``resume`` is False, or it is no relaxation, or one with other
        settings.
        """
        begun = self.record.is_file()
        if not is_empty(self.path) and not (begun and resume):
            advice = "continue it with --resume, or " if begun else ""
            raise ValueError(f"{self.path} exists already: {advice}give another output (nothing changed)")
        if not begun:
            write_json(self.record, record)
            return
        before, now = read_json(self.record), json.loads(json.dumps(record))
        changed = [name for name in before.keys() | now.keys() if before.get(name) != now.get(name)]
        if changed:
            differences = "; ".join(f"{name}: {before.get(name)} then, {now.get(name)} now" for name in sorted(changed))
            raise ValueError(f"{self.path} cannot be resumed with other settings ({differences})")

    def read_finished(self) -> set[int]:
        """Indices of the finished structures; a last line that was cut off is removed."""
        self._places = {}
        if not self.finished.is_file():
            return set()
        end = 0
        with self.finished.open("r+b") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    file.truncate(end)
                    break
                self._places[int(json.loads(line)["index"])] = end
                end += len(line)
        return set(self._places)

    def add_finished(self, relaxed: Relaxed) -> None:
        """Note that a structure is done."""
        with self.finished.open("ab") as file:
            self._places[relaxed.index] = file.tell()
            file.write(json.dumps(relaxed.to_dict()).encode() + b"\n")

    def results(self) -> Iterator[Relaxed]:
        """All finished structures in the order of the source, read one by one."""
        if not self._places:
            self.read_finished()
        for index in sorted(self._places):
            with self.finished.open("rb") as file:
                file.seek(self._places[index])
                yield Relaxed.from_dict(json.loads(file.readline()))

    def save_running(self, running: Running | None) -> None:
        """Save coordinates and histories of what is under way."""
        if running is None:
            self.running.unlink(missing_ok=True)
            return
        tensors = {}
        for part, ragged in (("geometry", running.geometry), ("optimizer", running.optimizer)):
            tensors[f"{part}/counts"] = ragged.counts
            tensors |= {f"{part}/rows/{name}": value for name, value in ragged.rows.items()}
            tensors |= {f"{part}/systems/{name}": value for name, value in ragged.systems.items()}
        # tensors that share memory are refused
        tensors = {name: value.contiguous().clone() for name, value in tensors.items()}
        with atomic_write(self.running) as temporary:
            save_file(tensors, temporary, metadata={"with_cell": str(int(running.with_cell))})

    def read_running(self) -> Running | None:
        """What :meth:`save_running` saved, or None.  Raises ValueError for a damaged file."""
        if not self.running.is_file():
            return None
        try:
            with safe_open(self.running, framework="pt") as file:
                names = file.keys()
                tensors = {name: file.get_tensor(name) for name in names}
                with_cell = file.metadata()["with_cell"] == "1"
        except SafetensorError as error:
            raise ValueError(
                f"{self.running} is damaged ({error}); remove it, and the structures that it held begin anew"
            ) from None
        geometry, optimizer = (
            Ragged(
                tensors[f"{part}/counts"],
                _below(tensors, f"{part}/rows/"),
                _below(tensors, f"{part}/systems/"),
            )
            for part in ("geometry", "optimizer")
        )
        return Running(geometry, optimizer, with_cell)

    def trajectory(self, index: int) -> Path:
        """The trajectory of a structure."""
        return self.trajectories / f"{index:06d}.extxyz"

    def add_frame(self, frame: Frame, system: System) -> None:
        """Append a frame to the trajectory of its structure."""
        results = {"energy": frame.energy, "forces": frame.forces}
        atoms = relaxed_at(plain(system), frame.positions, frame.cell, results)
        atoms.info["moves"] = frame.moves
        self.trajectories.mkdir(exist_ok=True)
        ase.io.write(self.trajectory(frame.index), atoms, format="extxyz", append=True)

    def cut_trajectories(self, finished: set[int], running: Running | None) -> None:
        """Remove frames that will be computed again: those after the last save."""
        moves: dict[int, int] = {}
        if running is not None:
            systems = running.geometry.systems
            moves = dict(zip(systems["index"].tolist(), systems["moves"].tolist(), strict=True))
        for path in self.trajectories.glob("*.extxyz"):
            index = int(path.stem)
            if index in finished:
                continue
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            keep = moves.get(index, 0) * (int(lines[0]) + 2) if lines else 0
            with atomic_write(path) as temporary:
                temporary.write_text("".join(lines[:keep]), encoding="utf-8")

    def write_results(self, source: Structures, seconds: float, original: Original = plain) -> dict[str, Any]:
        """Write relaxed.extxyz, summary.csv and summary.json; the content of the last.  original: see relax_into."""
        counts: Counter[str] = Counter()
        total_moves = 0
        with (
            atomic_write(self.structures) as structures,
            atomic_write(self.table) as table,
            structures.open("w", encoding="utf-8") as frames,
            table.open("w", encoding="utf-8", newline="") as rows,
        ):
            writer = csv.writer(rows)
            writer.writerow(COLUMNS)
            for relaxed in self.results():
                counts[relaxed.status] += 1
                total_moves += relaxed.moves
                if len(relaxed.positions) == 0:  # a record that cannot be read
                    writer.writerow([relaxed.index, "", "", "", relaxed.status, 0, "", "", "", relaxed.message])
                    continue
                system = source[relaxed.index]
                atoms = _relaxed_atoms(original(system), relaxed)
                ase.io.write(frames, atoms, format="extxyz")
                writer.writerow(_row(system, relaxed, atoms.get_chemical_formula()))
        summary = {
            "structures": counts.total(),
            "status": dict(counts),
            "moves": total_moves,
            "seconds_of_last_run": round(seconds, 3),
            **read_json(self.record),
        }
        write_json(self.summary, summary)
        return summary


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a relaxation of a file is."""

    structures: int
    finished: int
    running: int
    unsound: int  # finished, but neither converged nor out of steps


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
    show: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, Any] | None:
    """Relax all structures of a source into a folder; returns its summary, or None where it was stopped before the end.

    Args:
        folder: where to.
        potential, source, settings, batch_atoms, say: see :class:`denskit.simulation.relaxation.relaxer.Relaxer`.
        original: gives each structure with the fields that relaxed.extxyz keeps, asked in ascending order (as
            :class:`denskit.data.writing.Originals` does).
        origin: plain JSON about model and file, kept with the settings; a run resumes only with the same.
        resume: go on with what the folder holds; finished structures are not repeated.
        trajectories: keep every evaluated geometry.
        save_every: s between saves of what is under way; an exception and a stop save it, too.
        stop: asked after every step.
        show: told after every step.

    Raises ValueError as :meth:`RelaxationFolder.begin` and :class:`Relaxer` do, and where another process is at work in
    the folder.
    """
    started = time.monotonic()
    observe = (lambda frame: folder.add_frame(frame, source[frame.index])) if trajectories else None
    relaxer = Relaxer(potential, source, settings, batch_atoms=batch_atoms, say=say, observe=observe)
    record = {"settings": settings.model_dump(), "structures_given": len(source), "trajectories": trajectories}
    with locked(folder.path):
        if resume and not folder.record.is_file():
            say(f"{folder.path} holds no relaxation yet: starting from the beginning")
        folder.begin({**record, **(origin or {})}, resume=resume)
        finished, running = folder.read_finished(), folder.read_running()
        folder.cut_trajectories(finished, running)
        relaxer.restore(finished, running)
        unsound = sum(not relaxed.sound for relaxed in folder.results())
        try:
            saved = time.monotonic()
            while not relaxer.done and not stop():
                for relaxed in relaxer.step():
                    folder.add_finished(relaxed)
                    finished.add(relaxed.index)
                    unsound += not relaxed.sound
                if time.monotonic() - saved > save_every:
                    folder.save_running(relaxer.under_way())
                    saved = time.monotonic()
                active = 0 if relaxer.running is None else relaxer.running.num_systems
                show(Progress(structures=len(source), finished=len(finished), running=active, unsound=unsound))
        finally:
            folder.save_running(relaxer.under_way())
        return folder.write_results(source, time.monotonic() - started, original) if relaxer.done else None


def _relaxed_atoms(original: ase.Atoms, relaxed: Relaxed) -> ase.Atoms:
    results = {
        "energy": relaxed.energy,
        "forces": relaxed.forces,
        "stress": relaxed.stress if original.pbc.all() else None,
    }
    atoms = relaxed_at(original, relaxed.positions, relaxed.cell, results)
    atoms.info |= {"status": relaxed.status, "moves": relaxed.moves}
    return atoms


def _row(system: System, relaxed: Relaxed, formula: str) -> list[Any]:
    energy = "" if relaxed.energy is None else f"{relaxed.energy:.8f}"
    fmax = "" if relaxed.fmax is None else f"{relaxed.fmax:.6f}"
    names = [relaxed.index, system.sid, formula, len(system), relaxed.status, relaxed.moves]
    return [*names, energy, fmax, f"{relaxed.moved:.4f}", relaxed.message]


def _below(tensors: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
