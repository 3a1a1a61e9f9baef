"""Conversion of files of structures to one folder of shards, parallel and resumable."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols

from denskit.batch import System
from denskit.data.base import Source, Subset
from denskit.data.config import DataConfig
from denskit.data.filters import without_filtered
from denskit.data.inspection import wrong_units_or_signs
from denskit.data.inspection.labels import likely_labels
from denskit.data.loading import read_files
from denskit.data.readers.ase_files import require_one_name
from denskit.data.readers.formats import (
    LABEL_KEYS,
    path_of,
    places_in,
    reading_of_index,
    require_effect,
    require_keys,
)
from denskit.data.readers.shards import (
    FORMAT,
    INDEX,
    LABELS,
    PROGRESS,
    SIZES,
    ShardFile,
    open_shards,
    read_index,
    write_shard,
)  # fmt: skip
from denskit.data.records import Joined
from denskit.data.splits import content_in_words
from denskit.data.structure_arrays import StructureArrays, close_pair
from denskit.files import atomic_write, output_folder, sha256_of, write_json
from denskit.geometry.lattice import SAME_PLACE
from denskit.runtime.children import end_worker_with_parent
from denskit.runtime.progress import Report, counted, unreported
from denskit.runtime.work_folder import WorkFolder, append_line, whole_lines

HOLDS = "shards of structures (ase convert IN OUT writes one file, such as extxyz)"
STRUCTURES = 16_384  # of a shard: some 30 MB of OC20, in the file and in memory of its writer


@dataclass(frozen=True)
class _Plan:
    """The division of all inputs into shards of ``per_shard`` structures."""

    inputs: Joined
    output: Path
    per_shard: int

    def systems(self, shard: int) -> Iterator[System]:
        """The structures of a shard, checked.  Raises ValueError naming file and record."""
        begin = shard * self.per_shard
        for place, system in enumerate(self.inputs.iterate(begin, begin + self.per_shard), begin):
            if (pair := close_pair(system.positions, system.cell, system.pbc)) is not None:
                source, record = self.inputs.locate(place)
                record = source.indices[record] if isinstance(source, Subset) else record
                raise ValueError(
                    f"{source.name}, record {record} (counted from 0): atoms {pair[0]} and {pair[1]} are at one place, "
                    f"less than {SAME_PLACE} Å apart. Leave it out"
                )
            yield system

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


def _opened(inputs: Sequence[str | Path], config: DataConfig) -> tuple[tuple[Source, ...], list[str]]:
    """The structures to write of each input, and messages."""
    read = [read_files(path, config) for path in inputs]
    require_keys(config.model_dump(include=set(LABEL_KEYS)), *(source for source, _ in read))
    require_one_name(", ".join(map(str, inputs)), [source for source, _ in read])
    kept = [without_filtered(source, config.filter) for source, _ in read]
    messages = [line for (_, said), (_, left_out) in zip(read, kept, strict=True) for line in said + left_out]
    messages += [f"warning: {source.name}: {text}" for source, _ in kept for text in wrong_units_or_signs(source)]
    return tuple(source for source, _ in kept), messages


def _require_inputs(inputs: Sequence[str | Path]) -> None:
    """Raise ValueError where there are none, or two that hold one file."""
    if not inputs:
        raise ValueError("no file of structures is given: denskit data convert FILE ... -o FOLDER")
    holds: dict[str, str | Path] = {}
    for given in inputs:
        for place in places_in(given):
            if place in holds:
                raise ValueError(
                    f"{place} is given twice, by {holds[place]} and by {given}: its structures would double"
                )
            holds[place] = given


def convert(
    inputs: Sequence[str | Path],
    output: str | Path,
    config: DataConfig | None = None,
    *,
    workers: int = 1,
    per_shard: int = STRUCTURES,
    progress: Report = unreported,
) -> list[str]:
    """Write the structures of all inputs in order as a folder of shards; returns messages for the user.

    ``inputs``: files and folders of shards, of any format that training reads; ``config``: how to read them (its paths
    and split are ignored).  ``workers``: processes that write shards; each holds one shard in memory.

    The same call continues a killed conversion; finished shards are kept.  index.json completes the folder.

    Raises ValueError naming file and record for a structure that no model can learn from, for a named field that no
    frame has, and for a folder with other data or in use; FileNotFoundError.
    """
    config, output = config or DataConfig(), output_folder(Path(output).expanduser(), HOLDS)
    _require_inputs(inputs)
    require_effect(config, inputs)
    sources, messages = _opened(inputs, config)
    plan = _Plan(Joined("", sources), output, per_shard)
    total = len(plan.inputs)
    task = _task(plan, config, inputs)
    if (output / INDEX).is_file() and not (output / PROGRESS).exists():
        return [*messages, _finished(output, task)]
    journal = _Journal(output, task)
    with journal.opened(resume=True) as continues:
        if continues:
            journal.load()
            messages.append(f"{output}: found {counted(len(journal.done), 'shard')} of an earlier call")
        else:
            journal.begin()
        missing = [shard for shard in range(-(-total // per_shard)) if shard not in journal.done]
        _report(progress, journal.structures, total)
        for shard, entry in _written(plan, missing, workers):
            journal.add(shard, entry)
            _report(progress, journal.structures, total)
        index = journal.finish()
    size = sum(shard["bytes"] for shard in index["shards"])
    found = ", ".join(f"{label} of {count}" for label, count in index["labels"].items())
    found = found or f"no labels{_likely(sources)}"
    written = f"{counted(total, 'structure')} in {counted(len(index['shards']), 'shard')}"
    messages.append(f"{output}: {written}, {size / 1e6:.1f} MB; {found}")
    return messages


def _likely(sources: Sequence[Source]) -> str:
    """The fields that may be labels, where none was read."""
    keys = {key for source in sources if isinstance(source, StructureArrays) for key in likely_labels(source.keys)}
    if not keys:
        return ""
    return f", though {', '.join(sorted(keys))} may be some: name them, data.energy_key=KEY data.forces_key=KEY"


def verify(folder: str | Path, progress: Report = unreported) -> int:
    """Compare the SHA-256 of all shards of a folder with the index; returns the number of structures.

    Raises ValueError naming the first shard that differs; FileNotFoundError.
    """
    folder = Path(folder).expanduser()
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(f"{folder} is not a folder of shards: it has no {INDEX}")
    index, done = read_index(folder), 0
    for shard in index["shards"]:
        path = folder / shard["file"]
        if not path.is_file() or sha256_of(path) != shard["sha256"]:
            raise ValueError(f"{path} is missing, or differs from the written file. Copy or convert it again")
        done += shard["structures"]
        _report(progress, done, index["structures"])
    shards, sizes = open_shards(folder)
    if not np.array_equal(sizes, np.concatenate([shard.sizes for shard in shards])):
        raise ValueError(f"{folder / SIZES} does not have the sizes of the structures. Copy or convert it again")
    return done


def _report(progress: Report, done: int, total: int) -> None:
    progress(done, f"{done} of {total} structures", total)


def _finished(output: Path, task: Mapping[str, Any]) -> str:
    """A message that the conversion is there.  Raises ValueError where it is another one."""
    index = read_index(output)
    open_shards(output)  # raises where a shard is missing
    if other := [key for key in task if index.get(key) != task[key]]:
        raise ValueError(
            f"{output} holds another finished conversion ({', '.join(other)} differ); give another folder with -o, or "
            "remove it (nothing changed)"
        )
    return f"{output}: {counted(index['structures'], 'structure')}, converted before; nothing to do"


def _task(plan: _Plan, config: DataConfig, inputs: Sequence[str | Path]) -> dict[str, Any]:
    """The record of the conversion, with which alone it continues."""
    reading = config.model_dump(mode="json", exclude_defaults=True, exclude={"path", "train", "valid", "test", "split"})
    before = [reading_of_index(path_of(path)) for path in inputs]
    for key in ("oc20_ref", "origin"):  # what converted folders have had done stays known
        had = {found.get(key) for found in before}
        if key == "oc20_ref" and key not in reading and len(had) > 1:
            raise ValueError(
                f"{', '.join(map(str, inputs))}: some were converted with data.oc20_ref, others not or with another; "
                "convert them from their first files, or list them in data.train"
            )
        if len(had) == 1 and had != {None}:
            reading.setdefault(key, had.pop())
    read = [
        {"name": source.name, "structures": len(source), "content": content_in_words(path_of(path))}
        for source, path in zip(plan.inputs.sources, inputs, strict=True)
    ]
    return {"format": FORMAT, "inputs": read, "reading": reading, "structures_per_shard": plan.per_shard}


_plan: _Plan  # of a worker


def _start_worker(plan: _Plan) -> None:
    global _plan
    _plan = plan
    end_worker_with_parent()


def _write(shard: int) -> dict[str, Any]:
    return _plan.write(shard)


def _written(plan: _Plan, shards: Sequence[int], workers: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Write shards in this process or in several others; yields their numbers and entries."""
    if workers == 1 or len(shards) < 2:
        for shard in shards:
            yield shard, plan.write(shard)
        return
    context = multiprocessing.get_context("spawn")  # a fork copies locks held by other threads
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


class _Journal(WorkFolder):
    """The finished shards of a conversion, a line each in a file, so that a kill loses the shards under way at most."""

    def __init__(self, folder: Path, task: dict[str, Any]) -> None:
        super().__init__(folder, "conversion", PROGRESS)
        self.task = task
        self.done: dict[int, dict[str, Any]] = {}  # shard -> its entry in the index

    @property
    def structures(self) -> int:
        """Structures written."""
        return sum(entry["structures"] for entry in self.done.values())

    def begin(self) -> None:
        """Write the task into a new journal."""
        with atomic_write(self.marker) as temporary:
            temporary.write_text(json.dumps(self.task) + "\n", encoding="utf-8")

    def load(self) -> None:
        """Read the finished shards.  Raises ValueError for a journal of another task."""
        (_, task), *lines = whole_lines(self.marker)
        if not lines and task != self.task:  # nothing is lost
            self.begin()
            return
        self.require_same(task, self.task)
        for _, line in lines:
            file = self.path / line["entry"]["file"]
            if file.is_file() and file.stat().st_size == line["entry"]["bytes"]:
                self.done[line["shard"]] = line["entry"]

    def add(self, shard: int, entry: dict[str, Any]) -> None:
        """Note a written shard."""
        self.done[shard] = entry
        append_line(self.marker, {"shard": shard, "entry": entry})

    def finish(self) -> dict[str, Any]:
        """Write the sizes, then the index, and remove the journal; returns the index."""
        entries = [self.done[shard] for shard in sorted(self.done)]
        labels, elements = Counter[str](), Counter[str]()
        for entry in entries:
            labels.update(entry.pop("labels"))
            elements.update(entry.pop("elements"))
        with atomic_write(self.path / SIZES) as temporary:
            sizes = np.lib.format.open_memmap(temporary, "w+", np.int32, (self.structures,))
            first = 0
            for entry in entries:
                shard = ShardFile(self.path / entry["file"], entry["structures"], entry["bytes"])
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
        write_json(self.path / INDEX, index, indent=1)
        self.marker.unlink()
        return index
