"""From any files of structures to one folder of shards, in parallel, and again where it was interrupted."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols

from denskit.batch import System
from denskit.data.base import Source
from denskit.data.config import DataConfig
from denskit.data.loading import read_file
from denskit.data.readers.shards import FORMAT, INDEX, LABELS, SIZES, ShardFile, read_index, write_shard
from denskit.data.structure_arrays import CLOSEST, close_pair
from denskit.files import atomic_write, is_empty, locked, sha256_of, write_json

STRUCTURES = 16_384  # of a shard: some 30 MB of OC20, and as much memory as its writer needs
PROGRESS = "progress.jsonl"
Progress = Callable[[int, int], None]  # structures done, structures in all


@dataclass(frozen=True)
class _Plan:
    """Which structures become which shard: shard i holds those from i * per_shard on, over all inputs."""

    sources: tuple[Source, ...]
    output: Path
    per_shard: int

    @cached_property
    def ends(self) -> list[int]:
        """Structures up to the end of each source."""
        return np.cumsum([len(source) for source in self.sources]).tolist()

    def systems(self, shard: int) -> Iterator[System]:
        """The structures of a shard, checked.  Raises ValueError naming file and record."""
        begin, end = shard * self.per_shard, (shard + 1) * self.per_shard
        for source, last in zip(self.sources, self.ends, strict=True):
            first = last - len(source)
            yield from _checked(source, max(begin - first, 0), min(end - first, len(source)))

    def write(self, shard: int) -> dict[str, Any]:
        """Write a shard; its entry in the index."""
        systems = list(self.systems(shard))
        path = self.output / f"shard-{shard:05d}.safetensors"
        write_shard(path, systems)
        labels = {name: sum(getattr(system, name) is not None for system in systems) for name in LABELS}
        elements = np.bincount(np.concatenate([system.atomic_numbers for system in systems]))
        return {
            "file": path.name,
            "structures": len(systems),
            "atoms": sum(len(system) for system in systems),
            "bytes": path.stat().st_size,
            "sha256": sha256_of(path),
            "labels": {name: count for name, count in labels.items() if count},
            "elements": {chemical_symbols[z]: int(elements[z]) for z in np.flatnonzero(elements)},
        }


def _checked(source: Source, begin: int, end: int) -> Iterator[System]:
    """The structures ``begin`` to ``end - 1`` of a source (none where the end comes first)."""
    for system in source.iterate(begin, end):
        where = f"{source.name}, record {system.index} (counted from 0)"
        try:
            pair = close_pair(system.positions, system.cell, system.pbc)
        except np.linalg.LinAlgError:
            raise ValueError(f"{where}: cell vectors of periodic directions are zero or linearly dependent") from None
        if pair is not None:
            raise ValueError(
                f"{where}: atoms {pair[0]} and {pair[1]} are at one place, less than {CLOSEST} Å apart. Leave it out"
            )
        yield system


def convert(
    inputs: Sequence[str | Path],
    output: str | Path,
    config: DataConfig | None = None,
    *,
    workers: int = 1,
    per_shard: int = STRUCTURES,
    progress: Progress = lambda done, total: None,
) -> list[str]:
    """Write the structures of all inputs, one behind the other, as a folder of shards; what was found out and done.

    ``inputs``: files, and folders of shards, of any form that training reads; ``config`` says how (its paths and split
    are ignored).  ``workers``: processes, each writing shards of its own; memory is one shard for each.

    Killed, it goes on where it was when called again with the same inputs: whole shards are kept.  The folder can be
    used once index.json is there.

    Raises ValueError naming file and record for a structure that no model can learn from, and for a folder that holds
    other data or that another conversion writes into; FileNotFoundError.
    """
    config, output = config or DataConfig(), Path(output).expanduser()
    opened = [read_file(path, config) for path in inputs]
    plan = _Plan(tuple(source for source, _ in opened), output, per_shard)
    messages = [line for _, said in opened for line in said]
    total = plan.ends[-1]
    with locked(output):
        journal = _Journal(output, _task(plan, config))
        if journal.begin():
            messages.append(f"{output}: {len(journal.done)} shards were there already")
        missing = [shard for shard in range(-(-total // per_shard)) if shard not in journal.done]
        progress(journal.structures, total)
        for shard, entry in _written(plan, missing, workers):
            journal.add(shard, entry)
            progress(journal.structures, total)
        index = journal.finish()
    size = sum(shard["bytes"] for shard in index["shards"])
    found = ", ".join(f"{label} of {count}" for label, count in index["labels"].items()) or "no labels"
    messages.append(f"{output}: {total} structures in {len(index['shards'])} shards, {size / 1e6:.1f} MB; {found}")
    return messages


def verify(folder: str | Path, progress: Progress = lambda done, total: None) -> int:
    """Read all shards of a folder and compare their SHA-256 with the index; the number of structures.

    Raises ValueError naming the first shard that differs; FileNotFoundError.
    """
    folder = Path(folder).expanduser()
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(f"{folder} is not a folder of shards: it has no {INDEX}")
    index, done = read_index(folder), 0
    for shard in index["shards"]:
        path = folder / shard["file"]
        if not path.is_file() or sha256_of(path) != shard["sha256"]:
            raise ValueError(f"{path} is missing, or not what was written. Copy or convert it again")
        done += shard["structures"]
        progress(done, index["structures"])
    return done


def _task(plan: _Plan, config: DataConfig) -> dict[str, Any]:
    """What tells this conversion from others."""
    reading = config.model_dump(mode="json", exclude_defaults=True, exclude={"path", "train", "valid", "test", "split"})
    inputs = [{"name": source.name, "structures": len(source)} for source in plan.sources]
    return {"format": FORMAT, "inputs": inputs, "reading": reading, "structures_per_shard": plan.per_shard}


_plan: _Plan  # of a worker


def _start_worker(plan: _Plan) -> None:
    global _plan
    _plan = plan


def _write(shard: int) -> dict[str, Any]:
    return _plan.write(shard)


def _written(plan: _Plan, shards: Sequence[int], workers: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The entries of shards as they get written, by this process or by several others."""
    if workers == 1 or len(shards) < 2:
        for shard in shards:
            yield shard, plan.write(shard)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
    with ProcessPoolExecutor(workers, context, _start_worker, (plan,)) as pool:
        waiting = iter(shards)
        running: dict[Future[dict[str, Any]], int] = {}
        try:
            while True:
                running |= {pool.submit(_write, shard): shard for shard in islice(waiting, 2 * workers - len(running))}
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@dataclass
class _Journal:
    """What of a conversion is done, kept in a file line by line, so that a kill loses at most shards being written."""

    folder: Path
    task: dict[str, Any]
    done: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def structures(self) -> int:
        """Structures written."""
        return sum(entry["structures"] for entry in self.done.values())

    def begin(self) -> bool:
        """Start the journal or take up an older one; whether there was one.  Raises ValueError for other data."""
        path = self.folder / PROGRESS
        if path.exists():  # also beside the index, where the kill came before the end of finish()
            self._take_up(path)
            return True
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"{self.folder} is a file. Choose another name for the folder of shards")
        if (self.folder / INDEX).exists():
            raise ValueError(f"{self.folder} holds shards already ({INDEX}). Choose another folder, or delete this one")
        if not is_empty(self.folder):
            raise ValueError(f"{self.folder} is not empty. Choose another folder")
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(self.task) + "\n", encoding="utf-8")
        return False

    def _take_up(self, path: Path) -> None:
        lines = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:  # cut off by the kill
                continue
        if not lines or lines[0] != self.task:
            begun = ", ".join(one["name"] for one in lines[0].get("inputs", ())) if lines else "nothing"
            raise ValueError(
                f"{self.folder} holds the beginning of another conversion (of {begun}, or with other settings). "
                "Repeat that one, choose another folder, or delete this one"
            )
        for line in lines[1:]:
            file = self.folder / line["entry"]["file"]
            if file.is_file() and file.stat().st_size == line["entry"]["bytes"]:
                self.done[line["shard"]] = line["entry"]
        if not path.read_text(encoding="utf-8").endswith("\n"):
            with path.open("a", encoding="utf-8") as journal:
                journal.write("\n")

    def add(self, shard: int, entry: dict[str, Any]) -> None:
        """A shard is written."""
        self.done[shard] = entry
        self._append({"shard": shard, "entry": entry})

    def _append(self, line: dict[str, Any]) -> None:
        with (self.folder / PROGRESS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> dict[str, Any]:
        """All shards are there: write the sizes, then the index, and remove the journal."""
        entries = [self.done[shard] for shard in sorted(self.done)]
        labels, elements = Counter[str](), Counter[str]()
        for entry in entries:
            labels.update(entry.pop("labels"))
            elements.update(entry.pop("elements"))
        with atomic_write(self.folder / SIZES) as temporary:
            sizes = np.lib.format.open_memmap(temporary, "w+", np.int32, (self.structures,))
            first = 0
            for entry in entries:
                shard = ShardFile(self.folder / entry["file"], entry["structures"], entry["bytes"])
                sizes[first : first + len(shard)] = shard.sizes
                first += len(shard)
            sizes.flush()
        index = {
            **self.task,
            "units": {"length": "Å", "energy": "eV"},
            "structures": self.structures,
            "atoms": sum(entry["atoms"] for entry in entries),
            "labels": dict(labels),
            "elements": dict(elements),
            "shards": entries,
        }
        write_json(self.folder / INDEX, index, indent=1)
        (self.folder / PROGRESS).unlink()
        return index
