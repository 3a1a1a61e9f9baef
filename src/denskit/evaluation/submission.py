"""Files of predictions for the Open Catalyst Project's servers: npz, float32, sorted by id.

One split has ``ids`` [B] ("sid_fid"), ``energy`` [B] in eV, ``forces`` [M, 3] in eV/Å of one structure after the other,
and ``chunk_idx`` [B - 1], where all but the first structure begin in ``forces`` (as ``np.split`` takes it).  A file for
the server has these of every split under ``<split>_<key>``.  The EvalAI layout has forces of free atoms, the later
leaderboard's those of all atoms, zero on fixed ones.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from denskit.batch import System
from denskit.data.base import Source
from denskit.evaluation.evaluate import load_predictor
from denskit.evaluation.judged_structures import Models, source_of
from denskit.files import atomic_write, new_file
from denskit.models.prediction import Predictor, batches
from denskit.reading.arrays import read_npz
from denskit.runtime.memory import memory_named
from denskit.runtime.processes import Processes
from denskit.runtime.warning import warn
from denskit.training.reading_settings import Reading

Layout = Literal["evalai", "leaderboard"]
Arrays = dict[str, np.ndarray]
_KEYS = ("ids", "energy", "forces", "pos", "chunk_idx")  # of S2EF, IS2RE and IS2RS
_PER_ATOM = ("forces", "pos")


def write_submission(
    model: Models,
    splits: Mapping[str, Source | str | Path] | Source | str | Path,
    output: str | Path,
    *,
    layout: Layout = "evalai",
    device: str = "auto",
    batch_size: int = 32,
    processes: Processes | None = None,
    data: Reading = None,
    force: bool = False,
) -> int:
    """Predict structures and write them for a server; returns the number of different structures.

    Args:
        model, device, batch_size, data: as for :func:`denskit.evaluation.evaluate.evaluate`.
        splits: sets of structures by name (for OC20 ``id``, ``ood_ads``, ``ood_cat``, ``ood_both``; for OC22 ``id`` and
            ``ood``), which get one file with the names as prefixes; or one set, which gets a file without.
        output: the npz file to write; ``force`` replaces an existing one.
        layout: forces of free atoms, or of all.
        processes: the processes that share the work, each of which calls this; the first one writes.

    Energies are of the kind that the model was trained on, element references included: adsorption energies for OC20,
    totals for OC22.  Where a split fails, those before it are written to files of their own, which
    :func:`merge_submissions` takes, and a warning names them.

    Raises ValueError for a structure without sid or fid, for another file type, and where ``output`` exists.
    """
    named = splits if isinstance(splits, Mapping) else {"": splits}
    read = [source for source in named.values() if isinstance(source, str | Path)]
    output = new_file(_npz(output), inputs=read, force=force)
    force_field = load_predictor(model, None, str(processes.device) if processes else device)
    sources = {name: source_of(model, source, name, data) for name, source in named.items()}  # all, before the work
    predicted: dict[str, Arrays] = {}
    try:
        for name, source in sources.items():
            predicted[name] = _predict(force_field, source, layout, batch_size, processes)
    except BaseException:  # Ctrl-C, too
        if predicted and (processes is None or processes.is_first):
            _keep(output, predicted, [name for name in named if name not in predicted])
        raise
    if processes is None or processes.is_first:
        _write(output, predicted)
    return sum(len(arrays["ids"]) for arrays in predicted.values())


def merge_submissions(files: Mapping[str, str | Path], output: str | Path, *, force: bool = False) -> int:
    """Merge files of single splits into one with the names of the splits as prefixes; returns the number of structures.

    Files of relaxed energies or structures (``ids``, ``energy`` or ``pos``) merge as well.  Raises FileNotFoundError;
    ValueError for files that are no complete submission of one split, and where ``output`` exists or is one of them.
    """
    output = new_file(_npz(output), inputs=files.values(), force=force)
    splits = {name: _read(Path(file)) for name, file in files.items()}
    kinds = {tuple(sorted(arrays)) for arrays in splits.values()}
    if len(kinds) > 1:
        raise ValueError(f"the files hold different things: {' against '.join(', '.join(kind) for kind in kinds)}")
    _write(output, splits)
    return sum(len(arrays["ids"]) for arrays in splits.values())


def _predict(
    force_field: Predictor, source: Source, layout: Layout, batch_size: int, processes: Processes | None
) -> Arrays:
    rows: list[tuple[str, np.float32, np.ndarray]] = []
    rank, count = (processes.rank, processes.count) if processes else (0, 1)
    for systems, batch, _ in batches(force_field, source, batch_size, first=rank, step=count):
        with torch.no_grad(), memory_named(batch, "lower the batch size (--batch-size)"):
            found = force_field.predict(batch, outputs=("energy", "forces"))
        energies = found["energy"].float().cpu().numpy()
        forces = found["forces"].float().cpu().split([len(system) for system in systems])
        rows += [
            (_id(system, source.name), energy, _shown(chunk.numpy(), system.fixed, layout))
            for system, energy, chunk in zip(systems, energies, forces, strict=True)
        ]
    first: dict[str, tuple[np.float32, np.ndarray]] = {}
    for part in processes.gather(rows) if processes else [rows]:
        for name, energy, chunk in part:
            first.setdefault(name, (energy, chunk))
    names = sorted(first)  # as text
    chunks = [first[name][1] for name in names]
    return {
        "ids": np.array(names, dtype=str),
        "energy": np.array([first[name][0] for name in names], dtype=np.float32),
        "forces": np.concatenate([np.zeros((0, 3), np.float32), *chunks]),
        "chunk_idx": np.cumsum([len(chunk) for chunk in chunks])[:-1].astype(np.int64),
    }


def _id(system: System, name: str) -> str:
    if not system.sid or system.fid is None:
        raise ValueError(f"{name}, frame {system.index}: no sid or fid, by which submissions name OC20 and OC22 frames")
    return f"{system.sid}_{system.fid}"


def _shown(forces: np.ndarray, fixed: np.ndarray, layout: Layout) -> np.ndarray:
    if layout == "evalai":
        return forces[~fixed]
    return np.where(fixed[:, None], np.float32(0), forces)


def _npz(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"{path}: submissions are npz files; name it .npz")
    return path


def _write(path: Path, splits: Mapping[str, Arrays]) -> None:
    named = {
        f"{name}_{key}" if name else key: value for name, arrays in splits.items() for key, value in arrays.items()
    }
    with atomic_write(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **named)  # type: ignore[arg-type]


def _keep(output: Path, finished: Mapping[str, Arrays], rest: list[str]) -> None:
    """Write finished splits to files of their own, and say how these and the other splits become one file."""
    parts = []
    for name, arrays in finished.items():
        path = output.with_name(f"{output.stem}_finished_{name.replace(os.sep, '-')}.npz")
        _write(path, {"": arrays})
        parts.append(shlex.quote(f"{name}={path}"))
    parts += [shlex.quote(f"{name}={name}.npz") for name in rest]
    warn(
        f"not all splits were predicted; {', '.join(finished)} are kept. Predict the others each alone "
        f"({', '.join(f'{name}.npz' for name in rest)}), and make one file of all: "
        f"denskit submission merge {' '.join(parts)} -o {shlex.quote(str(output))}",
    )


def _read(path: Path) -> Arrays:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    arrays = read_npz(path)
    unknown = sorted(arrays.keys() - set(_KEYS))
    if unknown or "ids" not in arrays:
        raise ValueError(f"{path} has {', '.join(arrays)}; wanted a submission of one split: {', '.join(_KEYS)}")
    count = len(arrays["ids"])
    wrong = [f"{len(arrays['energy'])} energy"] if len(arrays.get("energy", arrays["ids"])) != count else []
    if any(key in arrays for key in _PER_ATOM) and len(arrays.get("chunk_idx", ())) != count - 1:
        wrong.append(f"{len(arrays.get('chunk_idx', ()))} chunk_idx")
    if wrong:
        raise ValueError(f"{path} has {count} ids, but {' and '.join(wrong)}: it was not written to its end")
    return arrays
