"""Labels of frames by a reference method: GFN2-xTB, or any calculator of ASE."""

from __future__ import annotations

import hashlib
import importlib
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np
from ase.stress import voigt_6_to_full_3x3_stress

from denskit.active.frames import read_frames
from denskit.data.datasets.generate import METHOD, xtb_calculator
from denskit.data.writing import relabelled
from denskit.files import atomic_write, new_frames_file
from denskit.runtime.progress import Report, counted, unreported
from denskit.runtime.work_folder import append_line, whole_lines

XTB = "xtb"
_calculator: Any = None  # of this process


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The end of a labelling."""

    path: Path
    labels: int
    failures: dict[int, str]  # reason by number of the frame; these are not in the file
    taken: int  # labels from an earlier, interrupted call
    finished: bool  # False: stopped; the same call continues


def label(
    frames: str | Path | Sequence[ase.Atoms],
    output: str | Path,
    *,
    method: str = XTB,
    processes: int = 1,
    force: bool = False,
    progress: Report = unreported,
    stop: Callable[[], bool] = lambda: False,
) -> Labelled:
    """Compute energy, forces and (periodic frames, where the calculator has it) stress; write them as extxyz.

    They are in eV and Å, as the field ``result_unit`` says.  All fields are kept; labels and results that the frames
    bring become ``input_energy``, ``input_forces``, ....  Each label goes at once into ``OUTPUT.progress``, so the same
    call continues after a kill; the file is removed at the end.

    Args:
        frames: frames, or a file of them.
        output: the file to write.
        method: "xtb" (GFN2-xTB), or "package.module:function": a function without arguments that returns a calculator
            of ASE, also from a file in the current folder.
        processes: frames labelled at the same time, each by a process with a calculator of its own.
        force: replace an existing output.
        progress: called after each frame.
        stop: asked after each frame whether to end.

    Raises:
        FileNotFoundError: No such file.
        ValueError: No such calculator; an output that exists or is no extxyz by its name; labels of other frames or
            another method in the progress file; no frame that could be labelled.
    """
    path = new_frames_file(output, inputs=[frames] if isinstance(frames, str | Path) else [], force=force)
    structures = read_frames(frames) if isinstance(frames, str | Path) else list(frames)
    calculator_of(method)  # raises before the work begins
    journal = _Journal(path.with_name(f"{path.name}.progress"), {"method": method, "frames": _sha256(structures)})
    taken = len(journal.results)
    left = [number for number in range(len(structures)) if number not in journal.results]
    stopped = False
    results = _computed(structures, left, method, processes)
    for done, (number, result) in enumerate(results, start=taken + 1):
        journal.add(number, result)
        failed = sum("error" in each for each in journal.results.values())
        progress(done, counted(done, "frame") + (f", {failed} failed" if failed else ""), len(structures))
        stopped = done < len(structures) and stop()
        if stopped:
            results.close()
            break
    failures = {number: result["error"] for number, result in sorted(journal.results.items()) if "error" in result}
    labels = {number: result for number, result in sorted(journal.results.items()) if "error" not in result}
    if not stopped:
        if not labels:
            first, reason = next(iter(failures.items()))
            journal.path.unlink()
            raise ValueError(f"none of {len(failures)} frames could be labelled by {method}; frame {first}: {reason}")
        found = [relabelled(structures[number], _arrays(result)) for number, result in labels.items()]
        with atomic_write(path) as temporary:
            ase.io.write(temporary, found, format="extxyz")
        journal.path.unlink()
    return Labelled(path=path, labels=len(labels), failures=failures, taken=taken, finished=not stopped)


def calculator_of(method: str) -> Any:
    """A new calculator of ASE by name: "xtb", or "package.module:function".

    Raises ValueError for a name that leads to no calculator.
    """
    if method == XTB:
        return xtb_calculator()
    module, colon, name = method.partition(":")
    if not colon:
        raise ValueError(f"{method!r} is no method: wanted {XTB} ({METHOD}) or package.module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        calculator = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ValueError(f"{method}: {error}; wanted a function package.module:function that can be imported") from None
    except Exception as error:  # the user's own code raises anything
        raise ValueError(
            f"{method} raised {type(error).__name__}: {error}; wanted a function without arguments that returns a "
            "calculator of ASE"
        ) from error
    if not hasattr(calculator, "get_potential_energy"):
        found = type(calculator).__name__
        raise ValueError(f"{method} returned an object of class {found}; wanted a calculator of ASE")
    return calculator


class _Journal:
    """Results as lines of JSON, each on the disk as soon as it is there; the first line says of which frames."""

    def __init__(self, path: Path, origin: dict[str, str]) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [value for _, value in whole_lines(path)] if path.exists() else []
        if lines and lines[0] != origin:
            raise ValueError(
                f"{path} holds labels of other frames or by another method ({lines[0].get('method')}); bring these "
                "frames back, remove the file, or give another output (nothing changed)"
            )
        if not lines:
            append_line(path, origin)
        self.results: dict[int, dict[str, Any]] = {line["frame"]: line for line in lines[1:]}

    def add(self, number: int, result: dict[str, Any]) -> None:
        """Save the result of a frame."""
        self.results[number] = {"frame": number, **result}
        append_line(self.path, self.results[number])


def _computed(
    structures: Sequence[ase.Atoms], left: Sequence[int], method: str, processes: int
) -> Generator[tuple[int, dict[str, Any]]]:
    """Results by number of the frame, in the order in which they are ready."""
    if processes == 1 or len(left) < 2:
        _begin(method)
        for number in left:
            yield number, _result(structures[number])
        return
    # spawned: forked processes share locks and threads of torch
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (method,)) as pool:
        with _ctrl_c_ignored():
            running = {pool.submit(_result, structures[number]): number for number in left}  # starts the processes
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BrokenProcessPool:
            raise ValueError(
                f"a process of {method} was killed or crashed; the labels so far are saved: the same call continues"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Processes that start in the block ignore Ctrl-C, which a terminal sends to all; the first process acts."""
    if threading.current_thread() is not threading.main_thread():  # no other may set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _begin(method: str) -> None:
    global _calculator
    _calculator = calculator_of(method)


def _result(atoms: ase.Atoms) -> dict[str, Any]:
    """Energy, forces, perhaps stress as lists; or "error"."""
    if not (np.isfinite(atoms.positions).all() and np.isfinite(atoms.cell.array).all()):
        return {"error": "positions or cell are NaN or infinite"}  # some methods pass over such an atom in silence
    bare = ase.Atoms(
        atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc, info=dict(atoms.info),
        charges=atoms.get_initial_charges(), magmoms=atoms.get_initial_magnetic_moments(),
    )  # fmt: skip
    bare.calc = _calculator
    try:
        found = {"energy": float(bare.get_potential_energy()), "forces": bare.get_forces()}
        if bare.pbc.all() and "stress" in getattr(_calculator, "implemented_properties", ()):
            found["stress"] = voigt_6_to_full_3x3_stress(bare.get_stress())
    except Exception as error:  # calculators raise errors of any class
        return {"error": f"{type(error).__name__}: {error}"}
    bad = [name for name, value in found.items() if not np.isfinite(value).all()]
    if bad:
        return {"error": f"{bad[0]} is not finite"}
    return {name: np.asarray(value).tolist() for name, value in found.items()}


def _arrays(result: dict[str, Any]) -> dict[str, Any]:
    names = ("energy", "forces", "stress")
    return {name: np.asarray(result[name]) if name != "energy" else result[name] for name in names if name in result}


def _sha256(structures: Sequence[ase.Atoms]) -> str:
    digest = hashlib.sha256()
    for atoms in structures:
        for array in (atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc):
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
